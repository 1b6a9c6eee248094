// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/deadline.hpp>
#include <tutti/comm/host/futex.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/threads/spin_pause.hpp>

namespace tutti {

// The memory by which the ranks of one host wait for each other. In its first state all bytes are zero, as in new
// memory from the system.
struct HostBarrierState {
  static constexpr int max_ranks = 256;
  struct alignas(64) Word {  // a cache line of its own
    std::atomic<std::uint32_t> value{0};
  };
  Word generation, arrived, sleepers, aborted;
  std::array<Word, max_ranks> seen;  // number of barriers that each rank has reached
};

// A barrier for threads or processes. There may be more of them than cores: a rank spins for some microseconds and then
// sleeps, because a spinning rank may take the core from the rank for which it waits.
class HostBarrier {
 public:
  // names: names of the ranks for messages; by default their numbers.
  HostBarrier(HostBarrierState& state, int rank, int size, std::vector<std::string> names = {})
      : s_(state), rank_(rank), size_(size), names_(std::move(names)) {
    if (size < 1 || size > HostBarrierState::max_ranks || rank < 0 || rank >= size)
      fail<UsageError>("HostBarrier", "1 to 256 ranks on a host", size);
  }

  // Returns when all ranks have arrived. Throws CommunicationError after the deadline, with the names of the missing
  // ranks, or after a rank has called abort().
  void wait(const Deadline& deadline, std::string_view what) {
    const std::uint32_t mine = s_.generation.value.load(std::memory_order_acquire);
    check(what);
    s_.seen[static_cast<std::size_t>(rank_)].value.store(mine + 1, std::memory_order_relaxed);
    if (s_.arrived.value.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
      s_.arrived.value.store(0, std::memory_order_relaxed);
      s_.generation.value.store(mine + 1, std::memory_order_seq_cst);
      if (s_.sleepers.value.load(std::memory_order_seq_cst) != 0) futex_wake_all(s_.generation.value);
      return;
    }
    for (int i = 0; i < spins; ++i) {
      if (s_.generation.value.load(std::memory_order_acquire) != mine) return;
      spin_pause();
    }
    s_.sleepers.value.fetch_add(1, std::memory_order_seq_cst);
    while (s_.generation.value.load(std::memory_order_seq_cst) == mine && s_.aborted.value.load() == 0) {
      if (deadline.is_over()) break;
      // Sleeps for short times, also because abort() does not change the word.
      futex_wait(s_.generation.value, mine, deadline.next_wait());
    }
    s_.sleepers.value.fetch_sub(1, std::memory_order_relaxed);
    if (s_.generation.value.load(std::memory_order_acquire) != mine) return;
    check(what);
    const std::string who = missing(mine + 1);
    abort();
    fail<CommunicationError>(what, "all ranks of this host within the deadline", {"no message from ", who},
                             "check these ranks, or raise --comm-deadline");
  }

  // Makes every wait of every rank throw, now and later. Messages name the first rank that called it.
  void abort() noexcept {
    std::uint32_t nobody = 0;
    s_.aborted.value.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_seq_cst);
    futex_wake_all(s_.generation.value);
  }
  // Returns the rank that called abort() first, or -1.
  [[nodiscard]] int aborted_by() const noexcept {
    return static_cast<int>(s_.aborted.value.load(std::memory_order_acquire)) - 1;
  }

 private:
  static constexpr int spins = 1000;  // about 10 us

  void check(std::string_view what) const {
    if (const int by = aborted_by(); by >= 0)
      fail<CommunicationError>(what, "all ranks of this host",
                               {(by == rank_ ? "this rank" : name(by)), " has aborted"});
  }
  [[nodiscard]] std::string name(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < names_.size() ? names_[i] : "rank " + std::to_string(r);
  }
  [[nodiscard]] std::string missing(std::uint32_t generation) const {
    std::string list;
    for (int r = 0; r < size_; ++r)
      if (s_.seen[static_cast<std::size_t>(r)].value.load(std::memory_order_relaxed) != generation)
        list += (list.empty() ? "" : ", ") + name(r);
    return list.empty() ? "anyone" : list;
  }

  HostBarrierState& s_;
  int rank_, size_;
  std::vector<std::string> names_;
};

}  // namespace tutti
