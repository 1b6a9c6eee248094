// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::ps {

// The most bytes that a worker may have pushed to a server without an answer. All workers push in one order, so the
// first missing part is always being sent, and no worker waits forever.
inline constexpr std::size_t usual_in_flight = std::size_t{64} << 20;

// Keeps the pushes of each part of a round until all workers have pushed it, and the answer until all workers report
// that they have completed the round. A repeated part is therefore answered twice and added once.
template <class Message>
class RoundTable {
 public:
  // A worker's data: the sent bytes, or a position in one of its windows, which also receives the answer.
  struct Part {
    Message message{};
    std::span<std::byte> mapped{};
    std::uint32_t window = 0;
    std::uint64_t place = 0;
    bool has = false;  // its worker already has the result, and only needs to know that the round is complete
  };
  struct Cell {     // one round of one piece
    Frame frame{};  // head of the first push that arrived
    std::vector<Part> parts{};
    std::vector<bool> has{}, packed{};
    std::size_t count = 0;
    bool open = false, answered = false;
    bool forgotten = false;  // answered, and the answer's memory has been reused
    Moment due{};
    std::span<std::byte> sum{};  // empty: all workers have the result, in their windows or from before
    PendingSends under_way{};
    Buffer memory{};
  };

  explicit RoundTable(int workers)
      : workers_(static_cast<std::size_t>(workers)), pending_(workers_), arrays_(workers_), aligned_(workers_) {}

  [[nodiscard]] Cell* find(std::uint64_t round, std::uint64_t offset) noexcept {
    for (const auto& c : cells_)
      if (in_use(*c) && c->frame.round == round && c->frame.offset == offset) return c.get();
    return nullptr;
  }
  [[nodiscard]] bool has(const Cell& c, std::uint32_t worker) const { return c.has[worker]; }
  [[nodiscard]] std::size_t pending(std::uint32_t worker) const { return pending_[worker]; }

  Cell& open(const Frame& f) {
    Cell* c = nullptr;
    for (const auto& free : cells_)
      if (!in_use(*free) && free->under_way.none()) {
        c = free.get();
        break;
      }
    if (c == nullptr) c = cells_.emplace_back(std::make_unique<Cell>()).get();
    c->frame = f;
    c->parts.resize(workers_);
    c->has.assign(workers_, false);
    c->packed.assign(workers_, false);
    c->count = 0;
    c->open = true;
    c->answered = c->forgotten = false;
    c->due = std::chrono::steady_clock::now() + std::chrono::milliseconds(f.patience);
    return *c;
  }
  // mapped: the data, if it is in a window. Returns whether it was the last missing part.
  bool add(Cell& c, const Frame& f, Message&& m, std::span<std::byte> mapped) {
    c.parts[f.worker] = {std::move(m), mapped, f.window, f.place, f.has};
    c.has[f.worker] = true;
    c.packed[f.worker] = f.packed;
    pending_[f.worker] += f.bytes;
    return ++c.count == workers_;
  }
  // Combines the workers' data in the order of their ranks. The result is written into all windows that held data, and
  // into the table's memory if a worker sent its data in a message.
  void combine(Cell& c) {
    const Frame& f = c.frame;
    to_.clear();
    std::size_t have = 0;
    for (const Part& p : c.parts) {
      if (!p.mapped.empty()) to_.push_back(p.mapped.data());
      have += p.has ? 1 : 0;
    }
    c.sum = {};
    if (to_.size() + have < workers_) {
      if (c.memory.bytes() < f.bytes) c.memory = Buffer(host_memory(), f.bytes);
      c.sum = {static_cast<std::byte*>(c.memory.data()), f.bytes};
      to_.push_back(c.sum.data());
    }
    if (f.operation == Operation::take) {
      const Part& root = c.parts[f.root];
      const std::byte* const from = root.mapped.empty() ? root.message.data().data() : root.mapped.data();
      for (std::byte* const to : to_)
        if (to != from) std::memmove(to, from, f.bytes);  // a worker can name a position twice
    } else {
      for (std::size_t w = 0; w < workers_; ++w) {
        const Part& p = c.parts[w];
        const bool sent = p.mapped.empty() || c.packed[w];
        arrays_[w] = sent ? readable(p.message.data(), c.packed[w] ? f.bytes : 0, w) : p.mapped.data();
      }
      tutti::combine(f.dtype, f.operation == Operation::max ? ReduceOp::max : ReduceOp::sum, arrays_, to_, 0,
                     f.bytes / size_of(f.dtype));
    }
    for (std::size_t w = 0; w < workers_; ++w) {
      c.parts[w].message = Message();
      c.parts[w].mapped = {};
      pending_[w] -= f.bytes;
    }
    c.open = false;
    c.answered = true;
    kept_ += c.sum.size();
  }
  // Drops the answers of rounds that all workers have completed.
  void forget_below(std::uint64_t round) noexcept {
    if (round <= floor_) return;
    floor_ = round;
    for (const auto& c : cells_)
      if (c->answered && c->frame.round < round) {
        if (!c->forgotten) kept_ -= c->sum.size();
        c->answered = false;
      }
  }
  // Drops the oldest kept answers, to bound the memory. A repeated part of such a round is still recognised as old.
  void keep_within(std::size_t bytes) {
    while (kept_ > bytes) {
      Cell* oldest = nullptr;
      for (const auto& c : cells_)
        if (c->answered && !c->forgotten && !c->sum.empty() &&
            (oldest == nullptr ||
             std::pair(c->frame.round, c->frame.offset) < std::pair(oldest->frame.round, oldest->frame.offset)))
          oldest = c.get();
      kept_ -= oldest->sum.size();
      oldest->forgotten = true;
      // If it is still being sent to a worker, it is freed with the cell.
      if (oldest->under_way.none()) oldest->memory = Buffer();
    }
  }
  // Puts off the deadlines of the incomplete parts.
  void put_off(std::chrono::nanoseconds time) noexcept {
    if (time == time.zero()) return;
    for (const auto& c : cells_)
      if (c->open) c->due += time;
  }
  // Returns the earliest deadline of an incomplete part.
  [[nodiscard]] std::optional<Moment> next_due() const noexcept {
    std::optional<Moment> first;
    for (const auto& c : cells_)
      if (c->open && (!first || c->due < *first)) first = c->due;
    return first;
  }
  [[nodiscard]] const Cell& most_overdue() const noexcept {
    const Cell* first = nullptr;
    for (const auto& c : cells_)
      if (c->open && (first == nullptr || c->due < first->due)) first = c.get();
    return *first;
  }
  // Returns the largest number of cells that were needed at once.
  [[nodiscard]] std::size_t cells() const noexcept { return cells_.size(); }

 private:
  [[nodiscard]] static bool in_use(const Cell& c) noexcept { return c.open || c.answered; }
  static Memory& host_memory() {
    static HostMemory memory;
    return memory;
  }
  // Returns the data aligned for every type: a small message may have any address. combine() only reads it. packed:
  // number of bytes after unpacking from two bits a number; 0: not packed.
  std::byte* readable(std::span<const std::byte> data, std::size_t packed, std::size_t worker) {
    if (packed > 0) {
      auto& wide = aligned_[worker];
      wide.resize(packed);
      two_bit::unpack(data, {reinterpret_cast<float*>(wide.data()), packed / sizeof(float)});
      return wide.data();
    }
    if (reinterpret_cast<std::uintptr_t>(data.data()) % alignof(std::max_align_t) == 0)
      return const_cast<std::byte*>(data.data());
    auto& copy = aligned_[worker];
    copy.assign(data.begin(), data.end());
    return copy.data();
  }

  std::size_t workers_;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::vector<std::size_t> pending_;
  std::vector<std::byte*> arrays_, to_;
  std::vector<std::vector<std::byte>> aligned_;
  std::uint64_t floor_ = 0;
  std::size_t kept_ = 0;
};

}  // namespace tutti::ps
