// SPDX-License-Identifier: MIT
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

// Functions to sleep on a word in memory that several processes share. std::atomic::wait works only within one process.
namespace tutti {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

// Sleeps while the word is `seen`, at most for this time. May return early.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::nanoseconds at_most) noexcept {
  if (at_most.count() <= 0) return;
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  timespec t{};
  t.tv_sec = static_cast<std::time_t>(whole.count());
  t.tv_nsec = static_cast<long>((at_most - whole).count());
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {  // wakes all threads that wait on the word
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tutti
