// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/threads/preemption_swap.hpp>
#include <tutti/core/threads/threads.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t us = 1000, ms = 1000 * us;

// Simulates the threads 100, 101, ... of a pool, of which one waits and checks the other threads. `me` is the calling
// thread. Each read of the clock advances it, and the clocks of the running threads, by 10 us.
class Machine final : public ThreadScheduler {
 public:
  struct Thread {
    int core = 0;
    bool runs = true, sleeps = false;
    std::int64_t used = 0;
  };

  explicit Machine(int cores) : cores_(cores) {}

  int this_thread() noexcept override { return me; }
  int this_core() noexcept override { return threads[me].core; }
  int cores() noexcept override { return cores_; }
  std::int64_t now() noexcept override { return time; }
  std::int64_t used(int thread) noexcept override {
    if (unknown) return -1;
    if (thread == me) {
      time += 10 * us;
      if (!coarse)
        for (auto& [n, t] : threads)
          if (t.runs) t.used += 10 * us;
    }
    return threads[thread].used;
  }
  int core_of(int thread) noexcept override {
    if (asked) asked();
    return threads[thread].sleeps ? -1 : threads[thread].core;
  }
  bool may_use(int, int core) noexcept override { return core != forbidden; }
  bool move(int thread, int core) noexcept override {
    if (core == forbidden) return false;
    moves.emplace_back(thread, core);
    threads[thread].core = core;
    return true;
  }

  std::map<int, Thread> threads;
  std::vector<std::pair<int, int>> moves;
  std::function<void()> asked;
  std::int64_t time = 5000 * ms;
  int me = 0, forbidden = -1;
  bool unknown = false, coarse = false;

 private:
  int cores_;
};

// One thread on each core. Thread 0 works, and the last one waits and checks.
struct Fixture {
  explicit Fixture(int threads, int cores = 0) : machine(cores > 0 ? cores : threads), swap(threads, machine) {
    for (int w = 0; w < threads; ++w) {
      machine.me = 100 + w;
      machine.threads[100 + w].core = w;
      swap.on_start(w);
    }
    last = threads - 1;
    swap.mark_waiting(last);
  }

  // Lets the waiting thread `worker` check the working threads. Returns whether it continues to spin.
  bool looks(int worker) {
    machine.me = 100 + worker;
    return swap.should_spin(worker, [] { return true; });
  }
  bool looks() { return looks(last); }
  void loses(int worker) { machine.threads[100 + worker].runs = false; }
  void runs(int worker) { machine.threads[100 + worker].runs = true; }
  void nothing_moves() {
    CHECK(!looks());
    CHECK(machine.moves.empty());
  }

  Machine machine;
  PreemptionSwap swap;
  int last;
};

using Moves = std::vector<std::pair<int, int>>;

}  // namespace

TEST_CASE("a working thread that has lost its core swaps cores with a waiting thread") {
  Fixture fixture(2);
  fixture.nothing_moves();
  fixture.loses(0);
  CHECK(fixture.looks());
  CHECK(fixture.machine.moves == Moves{{100, 1}, {101, 0}});
}

TEST_CASE("no cores are swapped with a thread that sleeps, waits, runs, has ended or has an unknown clock") {
  Fixture fixture(3);
  fixture.nothing_moves();
  fixture.loses(0);
  SUBCASE("the thread sleeps") { fixture.machine.threads[100].sleeps = true; }
  SUBCASE("the thread waits too") { fixture.swap.mark_waiting(0); }
  SUBCASE("the thread is between its loops") { fixture.swap.on_leave(); }
  SUBCASE("the clock of the thread is unknown") { fixture.machine.unknown = true; }
  SUBCASE("the clocks of threads are coarse") { fixture.machine.coarse = true; }
  SUBCASE("the thread is not allowed on the core of the waiting thread") { fixture.machine.forbidden = 0; }
  SUBCASE("the waiting thread is not allowed on the core of the thread") { fixture.machine.forbidden = 2; }
  SUBCASE("the thread leaves its loops while the other thread checks") {
    fixture.machine.asked = [&] { fixture.swap.on_leave(); };
  }
  fixture.nothing_moves();
}

TEST_CASE("while the caller waits for its loops, no cores are swapped until the loops have ended") {
  Fixture fixture(2);
  fixture.swap.mark_waiting(0);
  fixture.loses(0);
  fixture.nothing_moves();
  fixture.swap.on_loops_done();
  CHECK(fixture.looks());
  CHECK(fixture.machine.moves.size() == 2);
}

TEST_CASE("a caller that has left its loops does not count as working") {
  Fixture fixture(2);
  fixture.swap.on_leave();
  fixture.swap.on_loops_done();
  fixture.loses(0);
  fixture.nothing_moves();
}

TEST_CASE("threads spin for a while after a swap, but not for long") {
  Fixture fixture(2);
  fixture.loses(0);
  CHECK(fixture.looks());
  fixture.runs(0);
  for (int wait = 0; wait < 3; ++wait) {
    fixture.swap.mark_working(1);
    fixture.swap.mark_waiting(1);
    const std::int64_t began = fixture.machine.time;
    while (fixture.looks()) REQUIRE(fixture.machine.time - began < 2 * PreemptionSwap::longest_awake);
    CHECK(fixture.machine.time - began >= PreemptionSwap::longest_awake);
  }
  fixture.swap.mark_waiting(1);
  fixture.machine.time += PreemptionSwap::crowded;
  CHECK(!fixture.looks());
  CHECK(fixture.machine.moves.size() == 2);
}

TEST_CASE("threads that lose both cores do not swap; when one core is free of other processes again, they swap") {
  Fixture fixture(2);
  int on_shared = 0;
  // `worker` loses its core while the other thread waits for it. Returns true if they have swapped their cores.
  const auto change = [&](int worker) {
    const std::size_t before = fixture.machine.moves.size();
    const int other = 1 - worker;
    fixture.machine.time += PreemptionSwap::apart;
    fixture.runs(other);
    fixture.loses(worker);
    fixture.swap.mark_working(worker);
    fixture.swap.mark_waiting(other);
    const bool awake = fixture.looks(other);
    CHECK(fixture.machine.moves.size() == before + (awake ? 2 : 0));
    return awake;
  };
  // Another program uses core 0: the thread on it is preempted again and again.
  for (int n = 0; n < 20; ++n, on_shared = 1 - on_shared) CHECK(change(on_shared));
  // Another program also uses core 1. The waiting thread has no better core to offer, and a single loss of core 1 does
  // not count.
  CHECK(!change(1));
  CHECK(change(0));
  // After two losses core 1 is as bad as core 0.
  CHECK(!change(0));
  CHECK(!change(1));
  fixture.machine.time += PreemptionSwap::lately;
  CHECK(change(1));
}

TEST_CASE("a core that is observed as lost several times in a row counts as lost once") {
  Fixture fixture(2);
  fixture.machine.forbidden = 0;
  fixture.loses(0);
  for (int n = 0; n < 5; ++n) fixture.nothing_moves();
  fixture.machine.forbidden = -1;
  // Thread 1 loses core 1 while thread 0 waits on core 0, which was lost once.
  fixture.runs(0);
  fixture.loses(1);
  fixture.swap.mark_working(1);
  fixture.swap.mark_waiting(0);
  CHECK(fixture.looks(0));
}

TEST_CASE("a thread that gives its core to the thread that it waits for goes to an unused core, or sleeps") {
  SUBCASE("a core is free") {
    Fixture fixture(3, 4);
    fixture.swap.mark_waiting(1);
    CHECK(!fixture.looks(1));
    fixture.machine.threads[102].core = 0;
    fixture.loses(0);
    CHECK(fixture.looks());
    CHECK(fixture.machine.moves == Moves{{102, 2}});
  }
  SUBCASE("no core is free") {
    Fixture fixture(2);
    fixture.machine.threads[101].core = 0;
    fixture.machine.forbidden = 1;
    fixture.loses(0);
    fixture.nothing_moves();
  }
}

TEST_CASE("with many threads, one waiting thread checks all working threads") {
  Fixture fixture(64);
  for (int w = 1; w < 63; ++w) fixture.swap.mark_waiting(w);
  fixture.loses(0);
  CHECK(fixture.looks(17));
  CHECK(fixture.machine.moves == Moves{{100, 17}, {117, 0}});
}

TEST_CASE("swapping is off if it cannot help, or if TUTTI_CHANGE_CORES is 0") {
  const auto made = [](const char* value, int threads, int cores) {
    setenv("TUTTI_CHANGE_CORES", value, 1);
    return make_preemption_swap(threads, cores) != nullptr;
  };
  const char* const before = std::getenv("TUTTI_CHANGE_CORES");
  const std::string was = before != nullptr ? before : "";
  CHECK(made("", 2, 2));
  CHECK(made("1", 2, 2));
  CHECK(!made("0", 2, 2));
  CHECK(!made("", 1, 2));
  CHECK(!made("", 3, 2));
  CHECK_THROWS_WITH_AS(made("yes", 2, 2), "[environment TUTTI_CHANGE_CORES] expected 0 or 1, got 'yes'.", UsageError);
  if (before != nullptr)
    setenv("TUTTI_CHANGE_CORES", was.c_str(), 1);
  else
    unsetenv("TUTTI_CHANGE_CORES");
}

TEST_CASE("Linux: a thread is moved and keeps its allowed cores; threads have clocks and states") {
  ThreadScheduler& system = system_scheduler();
  const int me = system.this_thread();
  cpu_set_t before, after;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    CHECK(system.may_use(me, core) == (CPU_ISSET(core, &before) != 0));
    CHECK(system.move(me, core) == (CPU_ISSET(core, &before) != 0));
  }
  CHECK(!system.may_use(me, -1));
  REQUIRE(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
  CHECK(system.cores() >= usable_cores());
  const std::int64_t used = system.used(me), now = system.now();
  CHECK(used > 0);
  while (system.used(me) == used) {
  }
  CHECK(system.now() > now);
  CHECK(system.core_of(me) >= 0);

  std::mutex held;
  std::atomic<int> id{0};
  std::unique_lock lock(held);
  std::thread sleeper([&] {
    id = system.this_thread();
    const std::lock_guard wait(held);
  });
  while (id == 0) std::this_thread::yield();
  while (system.core_of(id) >= 0) std::this_thread::yield();
  const std::int64_t slept = system.used(id);
  CHECK(slept >= 0);
  CHECK(system.used(id) == slept);
  lock.unlock();
  sleeper.join();
  CHECK(system.core_of(id) == -1);
  CHECK(system.core_of(-5) == -1);
  CHECK(!system.move(id, 0));
}

TEST_CASE("a thread leaves a single allowed core and returns to it") {
  ThreadScheduler& system = system_scheduler();
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  const int core = system.this_core();
  CPU_SET(core, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(system.this_core() == core);
  CHECK(system.core_of(system.this_thread()) == core);
  for (int other = 0; other < CPU_SETSIZE; ++other) CHECK(system.move(system.this_thread(), other) == (other == core));
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}
