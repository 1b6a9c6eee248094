// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <tutti/core/separate.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/core/threads/spin_pause.hpp>

#if TUTTI_CORE_DEFINITIONS
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <tutti/core/error.hpp>
#endif

namespace tutti {

// The interface from a thread pool to the operating system's scheduler. Threads and cores are numbered as in the
// system.
class ThreadScheduler {
 public:
  ThreadScheduler() = default;
  virtual ~ThreadScheduler() = default;
  ThreadScheduler(const ThreadScheduler&) = delete;
  ThreadScheduler& operator=(const ThreadScheduler&) = delete;

  [[nodiscard]] virtual int this_thread() noexcept = 0;
  [[nodiscard]] virtual int this_core() noexcept = 0;
  [[nodiscard]] virtual int cores() noexcept = 0;
  [[nodiscard]] virtual std::int64_t now() noexcept = 0;  // ns
  // Returns the CPU time in ns that a thread of this process has used, or a negative number if it is unknown.
  [[nodiscard]] virtual std::int64_t used(int thread) noexcept = 0;
  // Returns the core on which a thread runs or is queued. Returns a negative number if the thread sleeps or its core is
  // unknown.
  [[nodiscard]] virtual int core_of(int thread) noexcept = 0;
  [[nodiscard]] virtual bool may_use(int thread, int core) noexcept = 0;
  // Moves a thread to a core, and then allows it all of its previous cores again. Returns false if the system refuses.
  virtual bool move(int thread, int core) noexcept = 0;
};

// Returns the scheduler of Linux. Its core_of() needs /proc.
[[nodiscard]] TUTTI_CORE_FUNCTION ThreadScheduler& system_scheduler() noexcept;

// For a pool with one core for each thread on a machine with other processes. If another process preempts a worker in
// the middle of a task, the worker continues only some ms later, at a tick of the scheduler, and the whole loop waits
// for it. An idle worker that detects this swaps cores with it: the task continues immediately, and the idle worker
// waits for the core instead.
// Between swaps no thread is bound to a core. If both cores are preempted, a swap would not help and is not done.
class PreemptionSwap {
 public:
  // threads: those of the pool, including the caller of its loops as number 0. The scheduler must outlive this object.
  PreemptionSwap(int threads, ThreadScheduler& scheduler);

  // on_start(): a worker calls it first of all; the caller calls it at the start of its loops. on_leave(): the caller
  // calls it at the end of its loops. Outside its loops the caller is never moved, because a thread that it starts
  // during a move would stay bound to that core.
  void on_start(int worker) noexcept;
  void on_leave() noexcept;
  // mark_waiting(): called before a thread waits for a task. mark_working(): called when it stops waiting.
  void mark_waiting(int worker) noexcept;
  void mark_working(int worker) noexcept { slots_[at(worker)].state.store(working, std::memory_order_relaxed); }
  // Called when the loops have ended, while other threads of the pool wait for the caller.
  void on_loops_done() noexcept;

  // A waiting thread calls it. Spins some us or until `still` is false. Returns false if the thread should sleep.
  [[nodiscard]] bool should_spin(int worker, FunctionRef<bool()> still) noexcept;

  // In ns. For the time `crowded` after a swap, a waiting thread does not sleep before it has spun for `longest_awake`:
  // on a shared core, a thread that sleeps loses its turn.
  static constexpr std::int64_t crowded = 100'000'000, longest_awake = 1'000'000;
  // In ns. A core that was lost twice within `lately` counts as shared too; a single loss may be any short activity of
  // the system. Losses that are seen within `apart` count as one loss.
  static constexpr std::int64_t lately = 30'000'000, apart = 2'000'000;
  static constexpr int spins = 1000;      // about 10 us
  static constexpr int most_watched = 4;  // threads that one check covers

 private:
  enum State : int { outside, waiting, working };
  struct alignas(64) Slot {
    std::atomic<int> state{outside}, thread{0}, core{-1};
    std::atomic<int> movers{0};
    std::int64_t awake_since = -1;  // used by its own thread only
  };
  struct Core {
    std::atomic<std::int64_t> lost{0}, lost_before{0};  // times at which a thread was last seen to have lost the core
  };
  struct Seen {
    int worker;
    std::int64_t used;
  };

  static constexpr std::size_t at(int worker) noexcept { return static_cast<std::size_t>(worker); }
  Core& core_at(int core) noexcept { return cores_[at(core) % cores_.size()]; }
  int thread_of(int worker) const noexcept { return slots_[at(worker)].thread.load(std::memory_order_relaxed); }
  // Returns a worker that works but has no core, or -1.
  int find_preempted(int worker, FunctionRef<bool()> still) noexcept;
  bool swap_cores(int worker, int other) noexcept;
  bool leave_core(int worker, int here) noexcept;

  ThreadScheduler& scheduler_;
  int threads_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<bool> watched_{false};
  std::atomic<std::int64_t> crowded_until_;
  std::array<Core, 256> cores_;
};

// Returns null if swaps are useless (one thread, or more threads than usable cores) or if TUTTI_CHANGE_CORES=0. Throws
// UsageError if this variable is neither 0 nor 1.
[[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<PreemptionSwap> make_preemption_swap(int threads, int usable_cores);

#if TUTTI_CORE_DEFINITIONS
namespace detail {

class LinuxScheduler final : public ThreadScheduler {
 public:
  int this_thread() noexcept override { return static_cast<int>(::gettid()); }
  int this_core() noexcept override { return ::sched_getcpu(); }
  int cores() noexcept override { return static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF)); }
  std::int64_t now() noexcept override { return read(CLOCK_MONOTONIC); }
  // Computes the clock id of pthread_getcpuclockid() itself, so that a thread that has ended is not an error.
  std::int64_t used(int thread) noexcept override {
    return read(static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3U | 6U));
  }

  int core_of(int thread) noexcept override {
    std::array<char, 512> text;
    std::snprintf(text.data(), text.size(), "/proc/self/task/%d/stat", thread);
    const int fd = ::open(text.data(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    const auto n = ::read(fd, text.data(), text.size() - 1);
    ::close(fd);
    if (n <= 0) return -1;
    text[static_cast<std::size_t>(n)] = '\0';
    // The name in parentheses may contain any character. A letter for the thread's state follows; the core is field 39.
    const char* p = std::strrchr(text.data(), ')');
    if (p == nullptr || std::strncmp(p, ") R", 3) != 0) return -1;
    for (int field = 2; p != nullptr && field < 39; ++field) p = std::strchr(p + 1, ' ');
    return p != nullptr ? std::atoi(p) : -1;
  }

  bool may_use(int thread, int core) noexcept override {
    cpu_set_t allowed;
    return core >= 0 && core < CPU_SETSIZE && ::sched_getaffinity(thread, sizeof allowed, &allowed) == 0 &&
           CPU_ISSET(core, &allowed);
  }

  bool move(int thread, int core) noexcept override {
    cpu_set_t allowed, one;
    if (::sched_getaffinity(thread, sizeof allowed, &allowed) != 0 || !CPU_ISSET(core, &allowed)) return false;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (::sched_setaffinity(thread, sizeof one, &one) != 0) return false;
    return ::sched_setaffinity(thread, sizeof allowed, &allowed) == 0;
  }

 private:
  static std::int64_t read(clockid_t clock) noexcept {
    timespec t{};
    return ::clock_gettime(clock, &t) == 0 ? std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec : -1;
  }
};

}  // namespace detail

TUTTI_CORE_FUNCTION ThreadScheduler& system_scheduler() noexcept {
  static detail::LinuxScheduler scheduler;
  return scheduler;
}

TUTTI_CORE_FUNCTION std::unique_ptr<PreemptionSwap> make_preemption_swap(int threads, int usable_cores) {
  const char* const wanted = std::getenv("TUTTI_CHANGE_CORES");
  const std::string said = wanted != nullptr ? wanted : "";
  if (!said.empty() && said != "0" && said != "1")
    fail<UsageError>("environment TUTTI_CHANGE_CORES", "0 or 1", {"'", said, "'"});
  if (said == "0" || threads < 2 || threads > usable_cores) return nullptr;
  return std::make_unique<PreemptionSwap>(threads, system_scheduler());
}

TUTTI_CORE_FUNCTION PreemptionSwap::PreemptionSwap(int threads, ThreadScheduler& scheduler)
    : scheduler_(scheduler), threads_(threads), slots_(new Slot[at(threads)]), crowded_until_(scheduler.now()) {
  for (auto& c : cores_) {
    c.lost.store(scheduler.now() - lately, std::memory_order_relaxed);
    c.lost_before.store(scheduler.now() - lately, std::memory_order_relaxed);
  }
}

TUTTI_CORE_FUNCTION void PreemptionSwap::on_start(int worker) noexcept {
  slots_[at(worker)].thread.store(scheduler_.this_thread(), std::memory_order_relaxed);
  slots_[at(worker)].core.store(scheduler_.this_core(), std::memory_order_relaxed);
  mark_working(worker);
}

TUTTI_CORE_FUNCTION void PreemptionSwap::on_leave() noexcept {
  slots_[0].state.store(outside, std::memory_order_seq_cst);
  while (slots_[0].movers.load(std::memory_order_seq_cst) > 0) ::sched_yield();
}

TUTTI_CORE_FUNCTION void PreemptionSwap::mark_waiting(int worker) noexcept {
  slots_[at(worker)].awake_since = -1;
  slots_[at(worker)].state.store(waiting, std::memory_order_relaxed);
}

TUTTI_CORE_FUNCTION void PreemptionSwap::on_loops_done() noexcept {
  int was = waiting;
  slots_[0].state.compare_exchange_strong(was, working, std::memory_order_relaxed);
}

TUTTI_CORE_FUNCTION int PreemptionSwap::find_preempted(int worker, FunctionRef<bool()> still) noexcept {
  const bool watches = !watched_.exchange(true, std::memory_order_acquire);  // one thread that observes is enough
  std::array<Seen, most_watched> seen;
  int n = 0;
  for (int w = 0; watches && w < threads_ && n < most_watched; ++w) {
    if (w == worker || slots_[at(w)].state.load(std::memory_order_relaxed) != working) continue;
    if (const std::int64_t used = scheduler_.used(thread_of(w)); used >= 0) seen[at(n++)] = {w, used};
  }
  const std::int64_t before = n > 0 ? scheduler_.used(thread_of(worker)) : 0;
  for (int spin = 0; spin < spins && still(); ++spin) spin_pause();
  int lost = -1;
  if (n > 0 && still()) {
    const std::int64_t own = scheduler_.used(thread_of(worker)) - before;
    for (int i = 0; i < n && lost < 0; ++i) {
      const auto [w, used] = seen[at(i)];
      if (slots_[at(w)].state.load(std::memory_order_relaxed) == working &&
          4 * (scheduler_.used(thread_of(w)) - used) < own)
        lost = w;
    }
  }
  if (watches) watched_.store(false, std::memory_order_release);
  return lost;
}

TUTTI_CORE_FUNCTION bool PreemptionSwap::should_spin(int worker, FunctionRef<bool()> still) noexcept {
  Slot& own = slots_[at(worker)];
  own.core.store(scheduler_.this_core(), std::memory_order_relaxed);
  if (const int lost = find_preempted(worker, still); lost >= 0) return swap_cores(worker, lost);
  const std::int64_t now = scheduler_.now();
  if (own.awake_since < 0) own.awake_since = now;
  return now < crowded_until_.load(std::memory_order_relaxed) && now - own.awake_since < longest_awake;
}

TUTTI_CORE_FUNCTION bool PreemptionSwap::swap_cores(int worker, int other) noexcept {
  Slot &own = slots_[at(worker)], &its = slots_[at(other)];
  const int core = scheduler_.core_of(thread_of(other)), here = scheduler_.this_core();
  if (core < 0 || here < 0) return false;
  if (core == here) return leave_core(worker, here);
  const std::int64_t now = scheduler_.now();
  if (auto& [lost, lost_before] = core_at(core); now - lost.load(std::memory_order_relaxed) >= apart)
    lost_before.store(lost.exchange(now, std::memory_order_relaxed), std::memory_order_relaxed);
  if (now - core_at(here).lost_before.load(std::memory_order_relaxed) < lately) return false;
  if (!scheduler_.may_use(thread_of(worker), core)) return false;
  // The order of these two operations, and of the two in on_leave(), ensures that one thread sees the other's write.
  its.movers.fetch_add(1, std::memory_order_seq_cst);
  const bool moved = its.state.load(std::memory_order_seq_cst) == working && scheduler_.move(thread_of(other), here);
  its.movers.fetch_sub(1, std::memory_order_release);
  if (!moved) return false;
  its.core.store(here, std::memory_order_relaxed);
  own.core.store(core, std::memory_order_relaxed);
  crowded_until_.store(now + crowded, std::memory_order_relaxed);
  own.awake_since = -1;
  return scheduler_.move(thread_of(worker), core);
}

// Moves this worker to a free core, so that a thread that waits for its present core can run.
TUTTI_CORE_FUNCTION bool PreemptionSwap::leave_core(int worker, int here) noexcept {
  const int cores = scheduler_.cores();
  for (int core = 0; core < cores; ++core) {
    bool free = core != here && scheduler_.may_use(thread_of(worker), core);
    for (int w = 0; free && w < threads_; ++w)
      free = w == worker || slots_[at(w)].core.load(std::memory_order_relaxed) != core;
    if (!free) continue;
    slots_[at(worker)].core.store(core, std::memory_order_relaxed);
    return scheduler_.move(thread_of(worker), core);
  }
  return false;
}
#endif

}  // namespace tutti
