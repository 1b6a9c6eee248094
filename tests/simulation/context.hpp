// SPDX-License-Identifier: MIT
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <utility>

#include "system.hpp"

namespace tutti::simulation {

// A thread of the operating system that runs only while it has the baton. Exactly one thread of the program has it.
// Each simulated thread is such a thread, so thread-local variables, exceptions and sanitizers work as usual.
class Context {
 public:
  // The calling thread, which has the baton.
  Context() = default;
  // A new thread, which calls `body` when it gets the baton for the first time. body must not return.
  explicit Context(std::function<void()> body) : body_(std::move(body)) {
    futex(baton_, FUTEX_WAKE_PRIVATE, 0);  // finds the system's function before there is a second thread
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_t thread{};
    if (TUTTI_SYSTEM(pthread_create)(&thread, &attributes, &Context::run, this) != 0) std::abort();
    ::pthread_attr_destroy(&attributes);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Gives the baton to `next`. Returns when the calling thread, which is this one, gets it back.
  void hand_over(Context& next) {
    next.baton_.store(1, std::memory_order_release);
    futex(next.baton_, FUTEX_WAKE_PRIVATE, 1);
    await();
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 20;

  static void* run(void* of) {
    auto& self = *static_cast<Context*>(of);
    self.await();
    self.body_();
    std::abort();
  }
  void await() {
    while (baton_.load(std::memory_order_acquire) == 0) futex(baton_, FUTEX_WAIT_PRIVATE, 0);
    baton_.store(0, std::memory_order_relaxed);
  }
  static void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
    TUTTI_SYSTEM(syscall)(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
  }

  std::atomic<std::uint32_t> baton_{0};
  std::function<void()> body_;
};

}  // namespace tutti::simulation
