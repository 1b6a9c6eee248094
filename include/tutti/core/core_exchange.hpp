// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <tutti/core/function_ref.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/spin_pause.hpp>

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

// What a pool asks the scheduler of the system, and has it do. Threads and cores go by the system's numbers.
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
  // ns of processor that a thread of this process has had; negative: not known.
  [[nodiscard]] virtual std::int64_t used(int thread) noexcept = 0;
  // The core on which a thread runs or waits for its turn. Negative: it sleeps, or that is not known.
  [[nodiscard]] virtual int core_of(int thread) noexcept = 0;
  [[nodiscard]] virtual bool may_use(int thread, int core) noexcept = 0;
  // Puts a thread on a core and allows it all those again that it might use before. False: refused.
  virtual bool move(int thread, int core) noexcept = 0;
};

// Linux's. Knows no core_of() where there is no /proc.
[[nodiscard]] TUTTI_CORE_FUNCTION ThreadScheduler& system_scheduler() noexcept;

// For a pool with a core for each thread, beside other processes. A thread that lost its core in the middle of a task
// gets it back at a tick of the scheduler, some ms later, and a loop waits for it. Whoever waits looks whether a thread
// with work stands still, and changes cores with it: the task goes on, and who waits stands in the queue instead.
// Between moves no thread is bound to a core. Where threads lose the cores of both, nobody gains and they stay.
class CoreExchange {
 public:
  // threads: of the pool, the caller of its loops as number 0. The scheduler outlives this.
  CoreExchange(int threads, ThreadScheduler& scheduler);

  // By a worker before all else; by the caller at the beginning and at the end of its loops. Out of them the caller is
  // never moved: a thread that it starts while it is being moved would be bound to that core for good.
  void starts(int worker) noexcept;
  void leaves() noexcept;
  // Before a thread waits for a task, and when it has ceased to.
  void waits(int worker) noexcept;
  void works(int worker) noexcept { slots_[at(worker)].state.store(working, std::memory_order_relaxed); }
  // The loops have ended: it is the caller that others wait for.
  void calls_back() noexcept;

  // By a thread that waits, for some us or until `still` is false. False: it had better sleep.
  [[nodiscard]] bool stays_awake(int worker, FunctionRef<bool()> still) noexcept;

  // ns. For `crowded` after an exchange, whoever waits does not sleep before `longest_awake`, because who sleeps loses
  // its turn on a shared core.
  static constexpr std::int64_t crowded = 100'000'000, longest_awake = 1'000'000;
  // ns. A core that was lost twice within `lately` is shared, too; once may be anything that the system had to do. What
  // is seen again within `apart` is the same loss.
  static constexpr std::int64_t lately = 30'000'000, apart = 2'000'000;
  static constexpr int spins = 1000;      // about 10 us
  static constexpr int most_watched = 4;  // threads that one look is for

 private:
  enum State : int { outside, waiting, working };
  struct alignas(64) Slot {
    std::atomic<int> state{outside}, thread{0}, core{-1};
    std::atomic<int> movers{0};
    std::int64_t awake_since = -1;  // of its own thread
  };
  struct Core {
    std::atomic<std::int64_t> lost{0}, lost_before{0};  // when a thread was last seen to have lost it
  };
  struct Seen {
    int worker;
    std::int64_t used;
  };

  static constexpr std::size_t at(int worker) noexcept { return static_cast<std::size_t>(worker); }
  Core& core_at(int core) noexcept { return cores_[at(core) % cores_.size()]; }
  int thread_of(int worker) const noexcept { return slots_[at(worker)].thread.load(std::memory_order_relaxed); }
  // A thread that works but has no core, or -1.
  int find_lost(int worker, FunctionRef<bool()> still) noexcept;
  bool exchange(int worker, int other) noexcept;
  bool step_aside(int worker, int here) noexcept;

  ThreadScheduler& scheduler_;
  int threads_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<bool> watched_{false};
  std::atomic<std::int64_t> crowded_until_;
  std::array<Core, 256> cores_;
};

// Null where it is of no use: one thread, more than usable cores, or TUTTI_CHANGE_CORES=0. UsageError where that says
// anything but 0 or 1.
[[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<CoreExchange> make_core_exchange(int threads, int usable_cores);

#if TUTTI_CORE_DEFINITIONS
namespace detail {

class LinuxScheduler final : public ThreadScheduler {
 public:
  int this_thread() noexcept override { return static_cast<int>(::gettid()); }
  int this_core() noexcept override { return ::sched_getcpu(); }
  int cores() noexcept override { return static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF)); }
  std::int64_t now() noexcept override { return read(CLOCK_MONOTONIC); }
  // The clock of a thread as pthread_getcpuclockid() makes it, for which a thread that ended is no error.
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
    // The name in parentheses may hold anything; then a letter for what the thread does, and the core as 39th field.
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

TUTTI_CORE_FUNCTION std::unique_ptr<CoreExchange> make_core_exchange(int threads, int usable_cores) {
  const char* const wanted = std::getenv("TUTTI_CHANGE_CORES");
  const std::string said = wanted != nullptr ? wanted : "";
  if (!said.empty() && said != "0" && said != "1")
    fail<UsageError>("environment TUTTI_CHANGE_CORES", "0 or 1", std::string("'").append(said).append("'"));
  if (said == "0" || threads < 2 || threads > usable_cores) return nullptr;
  return std::make_unique<CoreExchange>(threads, system_scheduler());
}

TUTTI_CORE_FUNCTION CoreExchange::CoreExchange(int threads, ThreadScheduler& scheduler)
    : scheduler_(scheduler), threads_(threads), slots_(new Slot[at(threads)]), crowded_until_(scheduler.now()) {
  for (auto& c : cores_) {
    c.lost.store(scheduler.now() - lately, std::memory_order_relaxed);
    c.lost_before.store(scheduler.now() - lately, std::memory_order_relaxed);
  }
}

TUTTI_CORE_FUNCTION void CoreExchange::starts(int worker) noexcept {
  slots_[at(worker)].thread.store(scheduler_.this_thread(), std::memory_order_relaxed);
  slots_[at(worker)].core.store(scheduler_.this_core(), std::memory_order_relaxed);
  works(worker);
}

TUTTI_CORE_FUNCTION void CoreExchange::leaves() noexcept {
  slots_[0].state.store(outside, std::memory_order_seq_cst);
  while (slots_[0].movers.load(std::memory_order_seq_cst) > 0) ::sched_yield();
}

TUTTI_CORE_FUNCTION void CoreExchange::waits(int worker) noexcept {
  slots_[at(worker)].awake_since = -1;
  slots_[at(worker)].state.store(waiting, std::memory_order_relaxed);
}

TUTTI_CORE_FUNCTION void CoreExchange::calls_back() noexcept {
  int was = waiting;
  slots_[0].state.compare_exchange_strong(was, working, std::memory_order_relaxed);
}

TUTTI_CORE_FUNCTION int CoreExchange::find_lost(int worker, FunctionRef<bool()> still) noexcept {
  const bool watches = !watched_.exchange(true, std::memory_order_acquire);  // one thread is enough
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

TUTTI_CORE_FUNCTION bool CoreExchange::stays_awake(int worker, FunctionRef<bool()> still) noexcept {
  Slot& own = slots_[at(worker)];
  own.core.store(scheduler_.this_core(), std::memory_order_relaxed);
  if (const int lost = find_lost(worker, still); lost >= 0) return exchange(worker, lost);
  const std::int64_t now = scheduler_.now();
  if (own.awake_since < 0) own.awake_since = now;
  return now < crowded_until_.load(std::memory_order_relaxed) && now - own.awake_since < longest_awake;
}

TUTTI_CORE_FUNCTION bool CoreExchange::exchange(int worker, int other) noexcept {
  Slot &own = slots_[at(worker)], &its = slots_[at(other)];
  const int core = scheduler_.core_of(thread_of(other)), here = scheduler_.this_core();
  if (core < 0 || here < 0) return false;
  if (core == here) return step_aside(worker, here);
  const std::int64_t now = scheduler_.now();
  if (auto& [lost, lost_before] = core_at(core); now - lost.load(std::memory_order_relaxed) >= apart)
    lost_before.store(lost.exchange(now, std::memory_order_relaxed), std::memory_order_relaxed);
  if (now - core_at(here).lost_before.load(std::memory_order_relaxed) < lately) return false;
  if (!scheduler_.may_use(thread_of(worker), core)) return false;
  // The order of these two and of the two in leaves() makes sure that either sees the other.
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

// Leaves its own core to a thread that waits for it there.
TUTTI_CORE_FUNCTION bool CoreExchange::step_aside(int worker, int here) noexcept {
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
