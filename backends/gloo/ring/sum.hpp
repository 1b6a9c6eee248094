// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tutti/backends/gloo/ring/connections.hpp>
#include <tutti/backends/gloo/ring/values.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/ring_chunks.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/isa.hpp>

namespace tutti {

// All-reduce over a ring of TCP connections (RingChunks). One thread sends, receives and adds: what it has received is
// added while it is in a cache, and is sent on before the rest of the chunk has arrived. The sums have the bits of
// Gloo's ring.
class RingSum {
 public:
  explicit RingSum(RingConnections& ring) : ring_(ring), room_(room_bytes), packed_(room_bytes) {}

  // Sums in place. wire: the type in which values are sent: that of the data, or bf16 for sums of f32, which rounds
  // each addend and each sum. tag: equal on all ranks if they run the same operation. Throws ::gloo::IoException.
  void run(DType t, DType wire, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::uint64_t tag) {
    data_ = data;
    type_ = t;
    wire_ = wire;
    op_ = op;
    chunks_ = RingChunks(ring_.rank(), ring_.size(), data.size() / size_of(t), size_of(wire));
    send_ = receive_ = {};
    header_ = {tag, data.size()};
    header_sent_ = header_received_ = 0;
    packed_begin_ = packed_end_ = filled_ = 0;
    skip_sent();
    skip_received();
    while (header_sent_ < sizeof(Header) || header_received_ < sizeof(Header) || !ended(send_) || !ended(receive_)) {
      const bool sent = send_some(), received = receive_some();
      if (!sent && !received) ring_.wait(sendable() > 0, awaited(), deadline);
    }
  }

 private:
  static constexpr std::size_t room_bytes = std::size_t{128} << 10;  // a part of a core's cache
  static constexpr std::size_t most = std::size_t{1} << 20;          // bytes of a call that sends
  static constexpr std::size_t wake_bytes = std::size_t{512} << 10;  // received bytes for which the thread wakes up
  static constexpr std::size_t line = 64;                            // elements that are added at once

  struct Position {
    std::size_t step = 0, done = 0;  // elements of the step's chunk
  };
  struct Header {
    std::uint64_t tag = 0, bytes = 0;
  };

  [[nodiscard]] bool ended(const Position& p) const { return p.step == chunks_.steps(); }

  // Returns how many elements of the chunk that is being sent may be sent now, including those in packed_. Waits for
  // the end of the chunk or for enough to fill a packet.
  [[nodiscard]] std::size_t sendable() const {
    if (header_sent_ < sizeof(Header)) return 1;
    if (ended(send_)) return 0;
    const std::size_t all = chunks_.sent(send_.step).size;
    std::size_t there = all;
    if (send_.step > 0 && receive_.step < send_.step) there = receive_.step + 1 == send_.step ? receive_.done : 0;
    const std::size_t left = there - std::min(there, send_.done);
    return there == all || left * size_of(wire_) >= room_bytes / 2 ? left : 0;
  }
  // Returns how many bytes to wait for. The neighbour can always send the rest of the chunk, so no rank waits in vain.
  [[nodiscard]] std::size_t awaited() const {
    if (header_received_ < sizeof(Header)) return sizeof(Header) - header_received_;
    if (ended(receive_)) return 0;
    const std::size_t left = (chunks_.received(receive_.step).size - receive_.done) * size_of(wire_) - filled_;
    return std::min(left, wake_bytes);
  }
  [[nodiscard]] bool send_some() {
    if (header_sent_ < sizeof(Header)) {
      const bool more = send_.step == 0;  // values follow at once
      header_sent_ += ring_.send(std::as_bytes(std::span(&header_, 1)).subspan(header_sent_), more);
      return header_sent_ == sizeof(Header);
    }
    const std::size_t ready = sendable();
    if (ready == 0) return false;
    const RingChunks::Chunk c = chunks_.sent(send_.step);
    std::size_t n = 0;
    if (type_ == wire_) {
      const std::size_t unit = size_of(type_);
      const auto bytes = data_.subspan((c.begin + send_.done) * unit, ready * unit).subspan(packed_begin_);
      n = ring_.send(bytes.first(std::min(bytes.size(), most)));
      packed_begin_ += n;
      send_.done += packed_begin_ / unit;
      packed_begin_ %= unit;  // bytes of an element that was sent in part
    } else {
      if (packed_begin_ == packed_end_) {
        packed_begin_ = 0;
        packed_end_ = std::min(ready, room_bytes / 2) * 2;
        detail::pack_bf16<>(isa_, floats(c.begin + send_.done), reinterpret_cast<bf16*>(packed_.data()),
                            packed_end_ / 2);
      }
      n = ring_.send(std::span(packed_).subspan(packed_begin_, packed_end_ - packed_begin_));
      packed_begin_ += n;
      if (packed_begin_ == packed_end_) send_.done += packed_end_ / 2;
    }
    skip_sent();
    return n > 0;
  }

  [[nodiscard]] bool receive_some() {
    if (header_received_ < sizeof(Header)) return receive_header();
    if (ended(receive_)) return false;
    const RingChunks::Chunk c = chunks_.received(receive_.step);
    const std::size_t unit = size_of(wire_), left = (c.size - receive_.done) * unit;
    const bool adds = receive_.step < chunks_.adding_steps();
    if (!adds && type_ == wire_) {
      const auto to = data_.subspan((c.begin + receive_.done) * unit, left).subspan(filled_);
      const std::size_t n = ring_.receive(to.first(std::min(to.size(), most)));
      filled_ += n;
      receive_.done += filled_ / unit;
      filled_ %= unit;
      skip_received();
      return n > 0;
    }
    const std::size_t n = ring_.receive(std::span(room_).first(std::min(room_bytes, left)).subspan(filled_));
    filled_ += n;
    std::size_t whole = filled_ / unit;
    if (filled_ < left) whole -= whole % line;
    if (whole == 0) return n > 0;
    take(c.begin + receive_.done, whole, adds);
    filled_ -= whole * unit;
    std::memmove(room_.data(), room_.data() + whole * unit, filled_);
    receive_.done += whole;
    skip_received();
    return true;
  }
  [[nodiscard]] bool receive_header() {
    header_received_ += ring_.receive(std::as_writable_bytes(std::span(&other_header_, 1)).subspan(header_received_));
    if (header_received_ < sizeof(Header)) return false;
    if (other_header_.tag != header_.tag || other_header_.bytes != header_.bytes)
      throw ::gloo::IoException("the neighbour runs another operation");
    return true;
  }
  // Adds received elements to those of the data, or replaces them.
  void take(std::size_t at, std::size_t n, bool adds) {
    const auto* const values = reinterpret_cast<const bf16*>(room_.data());
    if (type_ != wire_) {
      if (adds)
        detail::add_bf16<>(isa_, values, floats(at), n);
      else
        detail::unpack_bf16<>(isa_, values, floats(at), n);
      return;
    }
    std::byte* const mine = data_.data() + at * size_of(type_);
    const std::array<std::byte*, 2> from{mine, room_.data()};
    const std::array<std::byte*, 1> to{mine};
    combine(type_, op_, from, to, 0, n);
  }
  // These go to the next step after the end of a chunk. Chunks may be empty.
  void skip_sent() {
    while (!ended(send_) && send_.done == chunks_.sent(send_.step).size) send_ = {send_.step + 1, 0};
  }
  void skip_received() {
    while (!ended(receive_) && receive_.done == chunks_.received(receive_.step).size) receive_ = {receive_.step + 1, 0};
  }
  [[nodiscard]] float* floats(std::size_t at) const { return reinterpret_cast<float*>(data_.data()) + at; }

  RingConnections& ring_;
  const cpu::Isa isa_ = cpu::detect_isa();
  std::vector<std::byte> room_, packed_;
  std::span<std::byte> data_;
  DType type_ = DType::u8, wire_ = DType::u8;
  ReduceOp op_ = ReduceOp::sum;
  RingChunks chunks_;
  Position send_, receive_;
  Header header_, other_header_;
  std::size_t header_sent_ = 0, header_received_ = 0;
  std::size_t packed_begin_ = 0, packed_end_ = 0, filled_ = 0;
};

}  // namespace tutti
