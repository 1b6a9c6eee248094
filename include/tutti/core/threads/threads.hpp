// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/core/threads/spin_pause.hpp>

#if TUTTI_CORE_DEFINITIONS
#include <tutti/core/threads/preemption_swap.hpp>
#endif

namespace tutti {

// Returns the cores that this process may use. Respects taskset and cpusets, unlike std::thread::hardware_concurrency.
[[nodiscard]] inline int usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  const auto n = static_cast<int>(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
}

class PreemptionSwap;

// Returns a thread that runs f. Throws DeviceError, with `where`, if the system cannot start more threads.
[[nodiscard]] TUTTI_CORE_FUNCTION std::thread start_thread(std::string_view where, std::function<void()> f);

// A pool for short parallel loops. The caller works too, so `threads` includes it. Threads take tasks one by one, and
// the thread that ends the last task of a loop opens the next loop. So a thread that another process preempts delays
// only its current task, and an idle thread swaps cores with it (preemption_swap.hpp). A thread started during such a
// swap could stay bound to one core, so tasks must not start threads. Waiting threads spin for some microseconds and
// then sleep in a futex, because a spinning thread may take the core from the thread for which it waits.
class ThreadPool {
 public:
  // on_start runs once in every worker thread before its first task, e.g. to set a library's per-thread options. Throws
  // DeviceError if some thread cannot be started; then the pool has no threads.
  explicit ThreadPool(int threads, std::function<void()> on_start = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(task, worker) for every task in [0, tasks), worker in [0, threads()). Returns when all tasks are done, and
  // rethrows the first exception. Not reentrant: a task must not call run() on its own pool.
  void run(int tasks, FunctionRef<void(int task, int worker)> f) {
    run_loops({&tasks, 1}, [&](int, int task, int worker) { f(task, worker); });
  }
  // Like run(), for several loops with these numbers of tasks, one after the other. After an exception no loop starts.
  void run_loops(std::span<const int> loops, FunctionRef<void(int loop, int task, int worker)> f);

 private:
  using Task = FunctionRef<void(int, int, int)>;

  static constexpr int spins = 1000;  // about 10 us, the same with PreemptionSwap and without it

  void stop() noexcept;

  // The ticket holds (generation, number of unclaimed tasks). A thread claims a task by compare-and-swap. While a
  // ticket shows an unclaimed task, its generation cannot end, so the fields read before a successful claim belong to
  // that generation.
  // The count must be in the ticket. Otherwise a thread could compare a task of the last generation with the next
  // generation's number of tasks, which is stored before the new ticket is published. The thread would claim that task,
  // and the task would run twice.
  void take_tasks(int worker);
  void run_task(const Task& f, int loop, int task, int worker) noexcept;
  // Opens the next loop that has tasks, from number `loop` on, or ends the run.
  void open(int loop, int worker) noexcept;
  void wake_all() noexcept;
  [[nodiscard]] bool has_task() const noexcept {
    return static_cast<std::uint32_t>(ticket_.load(std::memory_order_acquire)) != 0;
  }
  // Waits for a task or for `done`; sleeps if the wait is long.
  void wait(const std::atomic<bool>& done, int worker);
  // Takes tasks until `done`.
  void work_until(const std::atomic<bool>& done, int worker);
  void work(int worker);

  std::function<void()> on_start_;
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int32_t> remaining_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<const Task*> task_{nullptr};
  std::atomic<int> loop_{0}, tasks_{0};
  std::span<const int> loops_;
  std::uint32_t generation_ = 0;
  std::atomic<bool> stop_{false}, ended_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::unique_ptr<PreemptionSwap> preemption_swap_;
  std::vector<std::thread> workers_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::thread start_thread(std::string_view where, std::function<void()> f) {
  try {
    return std::thread(std::move(f));
  } catch (const std::system_error& e) {
    fail<DeviceError>(where, "to start one more thread", e.code().message(),
                      "ask for fewer threads, or raise the limits of processes and memory (ulimit -u, ulimit -v)");
  }
}

TUTTI_CORE_FUNCTION ThreadPool::ThreadPool(int threads, std::function<void()> on_start)
    : on_start_(std::move(on_start)) {
  if (threads < 1) fail<UsageError>("ThreadPool", "1 thread or more", threads);
  preemption_swap_ = make_preemption_swap(threads, usable_cores());
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i)
      workers_.push_back(start_thread(concat({"ThreadPool, thread ", i + 1, " of ", threads}), [this, i] { work(i); }));
  } catch (...) {
    stop();
    throw;
  }
}

TUTTI_CORE_FUNCTION ThreadPool::~ThreadPool() { stop(); }

TUTTI_CORE_FUNCTION void ThreadPool::stop() noexcept {
  stop_.store(true);
  wake_all();
  for (auto& w : workers_) w.join();
}

TUTTI_CORE_FUNCTION void ThreadPool::wake_all() noexcept {
  wake_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();
}

TUTTI_CORE_FUNCTION void ThreadPool::run_loops(std::span<const int> loops, Task f) {
  if (workers_.empty()) {
    for (std::size_t l = 0; l < loops.size(); ++l)
      for (int t = 0; t < loops[l]; ++t) f(static_cast<int>(l), t, 0);
    return;
  }
  if (preemption_swap_) preemption_swap_->on_start(0);
  task_.store(&f, std::memory_order_relaxed);
  loops_ = loops;
  ended_.store(false, std::memory_order_relaxed);
  open(0, 0);
  work_until(ended_, 0);
  if (preemption_swap_) preemption_swap_->on_leave();
  if (failed_.load(std::memory_order_acquire)) {
    failed_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

TUTTI_CORE_FUNCTION void ThreadPool::run_task(const Task& f, int loop, int task, int worker) noexcept {
  try {
    f(loop, task, worker);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (!failed_.load(std::memory_order_relaxed)) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

TUTTI_CORE_FUNCTION void ThreadPool::open(int loop, int worker) noexcept {
  for (; static_cast<std::size_t>(loop) < loops_.size() && !failed_.load(std::memory_order_acquire); ++loop) {
    const int tasks = loops_[static_cast<std::size_t>(loop)];
    if (tasks == 1) run_task(*task_.load(std::memory_order_relaxed), loop, 0, worker);
    if (tasks <= 1) continue;
    loop_.store(loop, std::memory_order_relaxed);
    tasks_.store(tasks, std::memory_order_relaxed);
    remaining_.store(tasks, std::memory_order_relaxed);
    generation_ += 1;
    ticket_.store((std::uint64_t{generation_} << 32) | static_cast<std::uint32_t>(tasks), std::memory_order_release);
    return wake_all();
  }
  if (preemption_swap_) preemption_swap_->on_loops_done();
  ended_.store(true, std::memory_order_release);
  wake_all();
}

TUTTI_CORE_FUNCTION void ThreadPool::take_tasks(int worker) {
  for (;;) {
    std::uint64_t t = ticket_.load(std::memory_order_acquire);
    const auto left = static_cast<std::uint32_t>(t);
    if (left == 0) return;
    const Task* const f = task_.load(std::memory_order_relaxed);
    const int loop = loop_.load(std::memory_order_relaxed);
    const std::uint32_t task = static_cast<std::uint32_t>(tasks_.load(std::memory_order_relaxed)) - left;
    if (!ticket_.compare_exchange_weak(t, t - 1, std::memory_order_acq_rel)) continue;
    run_task(*f, loop, static_cast<int>(task), worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) open(loop + 1, worker);
  }
}

TUTTI_CORE_FUNCTION void ThreadPool::wait(const std::atomic<bool>& done, int worker) {
  const auto waits = [&] { return !has_task() && !done.load(std::memory_order_acquire); };
  if (preemption_swap_) preemption_swap_->mark_waiting(worker);
  do {
    for (int spin = 0; waits() && spin < (preemption_swap_ ? spins : 2 * spins); ++spin) spin_pause();
  } while (preemption_swap_ && waits() && preemption_swap_->should_spin(worker, waits));
  const std::uint32_t seen = wake_.load(std::memory_order_seq_cst);
  if (waits()) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(seen, std::memory_order_acquire);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (preemption_swap_) preemption_swap_->mark_working(worker);
}

TUTTI_CORE_FUNCTION void ThreadPool::work_until(const std::atomic<bool>& done, int worker) {
  do {
    take_tasks(worker);
    wait(done, worker);
  } while (!done.load(std::memory_order_acquire));
}

TUTTI_CORE_FUNCTION void ThreadPool::work(int worker) {
  if (preemption_swap_) preemption_swap_->on_start(worker);
  if (on_start_) on_start_();
  work_until(stop_, worker);
}
#endif

}  // namespace tutti
