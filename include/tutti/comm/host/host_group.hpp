// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/host/host_barrier.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The shared memory by which the ranks of one host work together: one object for all ranks, initially all zero.
struct HostControl {
  // A rank's announcement of its next operation.
  struct alignas(64) Call {
    std::uint64_t offset = 0;  // offset of its data in mapped memory, or address of its data
    std::uint64_t bytes = 0;
    std::uint32_t direct = 0;  // 0: other ranks cannot access it; otherwise the number of the mapped memory, from 1
    std::uint32_t kind = 0;
  };
  HostBarrierState barrier;
  std::array<std::array<Call, HostBarrierState::max_ranks>, 2> calls;
};

// Collective operations of the ranks of one host through memory that all of them can access: threads of one process, or
// processes with a shared window. All calls block; every rank makes the same calls in the same order. Sums are taken in
// the order of the ranks, whichever rank computes them, so all ranks and all sizes of slices give the same bits.
class HostGroup {
 public:
  static constexpr std::size_t scratch_bytes = std::size_t{256} << 10;  // for each rank
  static constexpr std::size_t small_bytes = 16 << 10;  // data up to this size is sent through the scratch memory

  // scratch: scratch_bytes for each rank, 64-byte aligned. same_addresses: the ranks are threads of one process, so
  // each can access the memory of all.
  HostGroup(HostControl& control, std::vector<std::byte*> scratch, int rank, bool same_addresses,
            std::vector<std::string> names = {})
      : c_(control),
        scratch_(std::move(scratch)),
        rank_(rank),
        size_(static_cast<int>(scratch_.size())),
        same_addresses_(same_addresses),
        barrier_(control.barrier, rank, static_cast<int>(scratch_.size()), std::move(names)) {
    peers_.resize(scratch_.size());
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  // Registers memory of every rank, by its addresses in this process. Data in this memory is processed in place. All
  // ranks make the same calls.
  void map(std::vector<std::byte*> bases, std::size_t bytes) { mapped_.push_back({std::move(bases), bytes}); }

  void barrier(const Deadline& deadline, std::string_view what) { barrier_.wait(deadline, what); }
  void abort() noexcept { barrier_.abort(); }
  // Returns the rank that called abort() first, or -1.
  [[nodiscard]] int aborted_by() const noexcept { return barrier_.aborted_by(); }

  // Combines the data of all ranks, in place.
  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    if (size_ == 1) return;
    if (data.size() > small_bytes && exchange_addresses(data, Op::all_reduce, deadline, what)) {
      const auto mine = share_of(data.size() / size_of(t), size_of(t), size_, rank_);
      combine(t, op, peers_, peers_, mine.begin, mine.end);
      barrier_.wait(deadline, what);
      return;
    }
    in_pieces(data, Op::all_reduce, deadline, what, [&](std::span<std::byte> piece) {
      std::byte* const to[] = {piece.data()};
      combine(t, op, peers_, to, 0, piece.size() / size_of(t));
    });
  }

  // Combines the data of all ranks. Rank 0 gets the result.
  void reduce_to_first(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline,
                       std::string_view what) {
    if (size_ == 1) return;
    if (data.size() > small_bytes && exchange_addresses(data, Op::reduce_to_first, deadline, what)) {
      const auto mine = share_of(data.size() / size_of(t), size_of(t), size_, rank_);
      combine(t, op, peers_, {peers_.data(), 1}, mine.begin, mine.end);
      barrier_.wait(deadline, what);
      return;
    }
    in_pieces(data, Op::reduce_to_first, deadline, what, [&](std::span<std::byte> piece) {
      std::byte* const to[] = {piece.data()};
      if (rank_ == 0) combine(t, op, peers_, to, 0, piece.size() / size_of(t));
    });
  }

  // Copies the root's data to all ranks.
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    if (size_ == 1) return;
    const auto from = static_cast<std::size_t>(root);
    if (data.size() > small_bytes && exchange_addresses(data, Op::broadcast, deadline, what)) {
      if (rank_ != root) std::memcpy(data.data(), peers_[from], data.size());
      barrier_.wait(deadline, what);
      return;
    }
    in_pieces(data, Op::broadcast, deadline, what, [&](std::span<std::byte> piece) {
      if (rank_ != root) std::memcpy(piece.data(), peers_[from], piece.size());
    });
  }

  // all: receives size() times mine.size() bytes, in the order of the ranks.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    const std::size_t n = mine.size();
    if (n == 0) return;  // the addresses may be null
    std::memcpy(all.data() + static_cast<std::size_t>(rank_) * n, mine.data(), n);
    if (size_ == 1) return;
    std::size_t done = 0;
    in_pieces(all.subspan(static_cast<std::size_t>(rank_) * n, n), Op::all_gather, deadline, what,
              [&](std::span<std::byte> piece) {
                for (std::size_t r = 0; r < peers_.size(); ++r)
                  if (static_cast<int>(r) != rank_) std::memcpy(all.data() + r * n + done, peers_[r], piece.size());
                done += piece.size();
              });
  }

 private:
  struct Op {
    static constexpr std::uint32_t all_reduce = 1, reduce_to_first = 2, broadcast = 3, all_gather = 4;
  };

  struct Mapped {
    std::vector<std::byte*> bases;
    std::size_t bytes;
  };

  // Returns what other ranks need to find this rank's data. `direct` is 0 if they cannot access the data.
  [[nodiscard]] HostControl::Call call_for(std::span<std::byte> data, std::uint32_t kind) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data.data());
    if (same_addresses_) return {address, data.size(), 1, kind};
    for (std::size_t i = 0; i < mapped_.size(); ++i) {
      const std::uintptr_t at =
          address - reinterpret_cast<std::uintptr_t>(mapped_[i].bases[static_cast<std::size_t>(rank_)]);
      if (at <= mapped_[i].bytes && data.size() <= mapped_[i].bytes - at)
        return {at, data.size(), static_cast<std::uint32_t>(i + 1), kind};
    }
    return {0, data.size(), 0, kind};
  }

  static void compare(const HostControl::Call& call, std::size_t bytes, std::uint32_t kind, std::size_t r,
                      std::string_view what) {
    if (call.bytes != bytes || call.kind != kind)
      fail<CommunicationError>(what, "the same operation on all ranks",
                               {bytes, " bytes on this rank and ", call.bytes, " on local rank ", r});
  }

  // Waits for all ranks and reads the addresses of their data. Returns false on all ranks if the data of any rank
  // cannot be accessed.
  bool exchange_addresses(std::span<std::byte> data, std::uint32_t kind, const Deadline& deadline,
                          std::string_view what) {
    auto& calls = c_.calls[parity_];
    parity_ ^= 1U;
    calls[static_cast<std::size_t>(rank_)] = call_for(data, kind);
    barrier_.wait(deadline, what);
    bool direct = true;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      const auto& call = calls[r];
      compare(call, data.size(), kind, r, what);
      direct = direct && call.direct != 0;
      if (!direct) continue;
      if (same_addresses_)
        peers_[r] = reinterpret_cast<std::byte*>(call.offset);  // NOLINT(performance-no-int-to-ptr): it was one
      else
        peers_[r] = mapped_[call.direct - 1].bases[r] + call.offset;
    }
    return direct;
  }

  // Exchanges the data through the scratch memory. It uses two halves alternately, so that one barrier for each piece
  // is enough: before a rank writes to a half again, it has passed the barrier of the other half, and so have all ranks
  // that read the first half.
  template <class F>
  void in_pieces(std::span<std::byte> data, std::uint32_t kind, const Deadline& deadline, std::string_view what,
                 F&& f) {
    constexpr std::size_t half = scratch_bytes / 2;
    for (std::size_t at = 0; at < data.size(); at += half) {
      const auto piece = data.subspan(at, std::min(half, data.size() - at));
      const std::size_t place = parity_ * half;
      auto& calls = c_.calls[parity_];
      parity_ ^= 1U;
      calls[static_cast<std::size_t>(rank_)] = {0, data.size(), 0, kind};
      std::memcpy(scratch_[static_cast<std::size_t>(rank_)] + place, piece.data(), piece.size());
      barrier_.wait(deadline, what);
      for (std::size_t r = 0; r < peers_.size(); ++r) {
        compare(calls[r], data.size(), kind, r, what);
        peers_[r] = scratch_[r] + place;
      }
      f(piece);
    }
  }

  HostControl& c_;
  std::vector<std::byte*> scratch_, peers_;
  std::vector<Mapped> mapped_;
  int rank_, size_;
  bool same_addresses_;
  unsigned parity_ = 0;
  HostBarrier barrier_;
};

}  // namespace tutti
