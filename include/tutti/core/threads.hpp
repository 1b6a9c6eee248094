// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>

namespace tutti {

// Cores that this process may use: taskset and cpusets count, unlike in std::thread::hardware_concurrency.
[[nodiscard]] inline int usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  const auto n = static_cast<int>(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
}

// A thread that runs f. Throws DeviceError, with `where`, if the system starts no more.
[[nodiscard]] TUTTI_CORE_FUNCTION std::thread start_thread(std::string_view where, std::function<void()> f);

// A pool for short parallel loops. The caller works too, so `threads` counts it. Tasks are handed out one by one, so a
// thread that lost its core holds up one task and not a fixed share of the loop; waiting threads spin for some
// microseconds and then sleep in a futex, because a spinning thread takes the core from the one it waits for.
class ThreadPool {
 public:
  // on_start runs once in every worker thread before its first task, e.g. to set a library's per-thread options.
  // Throws DeviceError, with no thread left behind, if not all can be started.
  explicit ThreadPool(int threads, std::function<void()> on_start = {});
  ~ThreadPool() { stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(task, worker) for every task in [0, tasks), worker in [0, threads()); returns when all are done. The first
  // exception is thrown again here. Not reentrant: a task may not call run() on its own pool.
  template <class F>
  void run(int tasks, F&& f) {
    if (tasks <= 0) return;
    if (tasks == 1 || workers_.empty()) {
      for (int t = 0; t < tasks; ++t) f(t, 0);
      return;
    }
    call_.store([](void* ctx, int task, int worker) { (*static_cast<std::remove_reference_t<F>*>(ctx))(task, worker); },
                std::memory_order_relaxed);
    context_.store(const_cast<void*>(static_cast<const void*>(&f)), std::memory_order_relaxed);
    tasks_.store(tasks, std::memory_order_relaxed);
    remaining_.store(tasks, std::memory_order_relaxed);
    generation_ += 1;
    ticket_.store((std::uint64_t{generation_} << 32) | static_cast<std::uint32_t>(tasks), std::memory_order_release);
    wake_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();
    take_tasks(generation_, 0);
    for (int spin = 0; remaining_.load(std::memory_order_acquire) != 0 && spin < spins; ++spin) pause();
    for (int r = remaining_.load(std::memory_order_acquire); r != 0; r = remaining_.load(std::memory_order_acquire)) {
      caller_sleeps_.store(true, std::memory_order_seq_cst);
      remaining_.wait(r, std::memory_order_acquire);
      caller_sleeps_.store(false, std::memory_order_relaxed);
    }
    if (failed_.load(std::memory_order_acquire)) {
      failed_.store(false);
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

 private:
  static constexpr int spins = 2000;  // about 20 us

  void stop() noexcept;

  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // The ticket holds (generation, tasks that nobody has taken). A task is claimed by compare-and-swap. While a ticket
  // shows one, its generation cannot end, so the fields read before a claim that succeeds are that generation's own.
  // The count must be in the ticket: a thread that compared a task of the last generation with the next one's number of
  // tasks, already stored, could take it before the new ticket is out, and it would run twice.
  void take_tasks(std::uint32_t generation, int worker);

  void work(int worker);

  using Call = void (*)(void*, int, int);
  std::function<void()> on_start_;
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int32_t> remaining_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int> tasks_{0};
  std::uint32_t generation_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::thread start_thread(std::string_view where, std::function<void()> f) {
  try {
    return std::thread(std::move(f));
  } catch (const std::system_error& e) {
    fail<DeviceError>(where, "a system that starts one more thread", e.code().message(),
                      "ask for fewer threads, or raise the limits of processes and memory (ulimit -u, ulimit -v)");
  }
}

TUTTI_CORE_FUNCTION ThreadPool::ThreadPool(int threads, std::function<void()> on_start)
    : on_start_(std::move(on_start)) {
  if (threads < 1) fail<UsageError>("ThreadPool", "1 thread or more", std::to_string(threads));
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i)
      workers_.push_back(start_thread("ThreadPool, thread " + std::to_string(i + 1) + " of " + std::to_string(threads),
                                      [this, i] { work(i); }));
  } catch (...) {
    stop();
    throw;
  }
}

TUTTI_CORE_FUNCTION void ThreadPool::stop() noexcept {
  stop_.store(true);
  ticket_.fetch_add(std::uint64_t{1} << 32);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

TUTTI_CORE_FUNCTION void ThreadPool::take_tasks(std::uint32_t generation, int worker) {
  for (;;) {
    std::uint64_t t = ticket_.load(std::memory_order_acquire);
    const auto left = static_cast<std::uint32_t>(t);
    if ((t >> 32) != generation || left == 0) return;
    const auto call = call_.load(std::memory_order_relaxed);
    void* const ctx = context_.load(std::memory_order_relaxed);
    const std::uint32_t task = static_cast<std::uint32_t>(tasks_.load(std::memory_order_relaxed)) - left;
    if (!ticket_.compare_exchange_weak(t, t - 1, std::memory_order_acq_rel)) continue;
    try {
      call(ctx, static_cast<int>(task), worker);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!failed_.load(std::memory_order_relaxed)) error_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
    if (remaining_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst))
      remaining_.notify_all();
  }
}

TUTTI_CORE_FUNCTION void ThreadPool::work(int worker) {
  if (on_start_) on_start_();
  std::uint32_t seen = wake_.load(std::memory_order_acquire);
  // A job may have been posted before this thread came up.
  take_tasks(static_cast<std::uint32_t>(ticket_.load(std::memory_order_acquire) >> 32), worker);
  while (!stop_.load(std::memory_order_acquire)) {
    for (int spin = 0; wake_.load(std::memory_order_acquire) == seen && spin < spins; ++spin) pause();
    while (wake_.load(std::memory_order_acquire) == seen) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(seen, std::memory_order_acquire);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = wake_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    take_tasks(static_cast<std::uint32_t>(ticket_.load(std::memory_order_acquire) >> 32), worker);
  }
}
#endif

}  // namespace tutti
