// SPDX-License-Identifier: MIT
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "scheduler.hpp"
#include "system.hpp"

// The functions through which a program reaches threads and clocks. A program's own functions come before those of
// shared libraries, so the standard library's waits, threads and clocks end here, too. Outside a simulation the program
// has one thread: locks have no effect, and clocks are those of the system. Include it once in a program.
namespace tutti::simulation {

[[nodiscard]] inline Nanos nanos(const timespec& t) { return static_cast<Nanos>(t.tv_sec) * second + t.tv_nsec; }
[[nodiscard]] inline timespec timespec_of(Nanos n) {
  timespec t{};
  t.tv_sec = static_cast<time_t>(n / second);
  t.tv_nsec = static_cast<long>(n % second);
  return t;
}
// Returns the moment after `time` by the monotonic clock of the running process.
[[nodiscard]] inline Moment in(Nanos time) {
  const Scheduler& s = *Scheduler::current();
  return {CLOCK_MONOTONIC, Scheduler::current()->process().clocks.read(CLOCK_MONOTONIC, s.now()) + time};
}

inline bool is_recursive(const pthread_mutex_t& m) { return (m.__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE_NP; }
// Returns whether the running thread has locked the mutex before the deadline.
inline bool acquire(pthread_mutex_t& m, Moment until = {}) {
  Scheduler& s = *Scheduler::current();
  const int me = s.running().number + 1;
  if (is_recursive(m) && m.__data.__owner == me) {
    ++m.__data.__count;
    return true;
  }
  while (m.__data.__lock != 0)
    if (!s.block(&m, "mutex", until)) return false;
  m.__data.__lock = 1;
  m.__data.__owner = me;
  return true;
}
inline void release(pthread_mutex_t& m) {
  if (is_recursive(m) && m.__data.__count > 0) {
    --m.__data.__count;
    return;
  }
  m.__data.__lock = m.__data.__owner = 0;
  Scheduler::current()->wake_one(&m);
}
inline int wait(pthread_cond_t* c, pthread_mutex_t* m, Moment until) {
  Scheduler* const s = Scheduler::current();
  if (s == nullptr) std::abort();  // no other thread could end the wait
  release(*m);
  bool woken = true;
  if (s->wakes_spuriously())
    s->point();
  else
    woken = s->block(c, "condition", until);
  (void)acquire(*m);
  return woken ? 0 : ETIMEDOUT;
}
inline int futex(std::uint32_t* word, int operation, std::uint32_t value, const timespec* time) {
  Scheduler& s = *Scheduler::current();
  s.point();
  const int kind = operation & FUTEX_CMD_MASK;
  if (kind == FUTEX_WAKE || kind == FUTEX_WAKE_BITSET) {
    for (std::uint32_t i = 0; i < value && i < 1000; ++i) s.wake_one(word);
    return 0;
  }
  if (kind != FUTEX_WAIT && kind != FUTEX_WAIT_BITSET) s.fail("unknown futex operation " + std::to_string(kind));
  if (*word != value) {
    errno = EAGAIN;
    return -1;
  }
  Moment until;
  if (time != nullptr && kind == FUTEX_WAIT) until = in(nanos(*time));
  if (time != nullptr && kind == FUTEX_WAIT_BITSET)
    until = {(operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, nanos(*time)};
  if (s.block(word, "futex", until)) return 0;
  errno = ETIMEDOUT;
  return -1;
}
[[nodiscard]] inline Nanos clock_of_process(clockid_t clock) {
  if (clock == CLOCK_THREAD_CPUTIME_ID) return 0;  // work takes no time in the simulation
  Scheduler& s = *Scheduler::current();
  s.spend(50);
  if (clock == CLOCK_REALTIME_COARSE) clock = CLOCK_REALTIME;
  return s.process().clocks.read(clock, s.now());
}

// In a namespace, too, a function with this linkage is that of the C library.
extern "C" {

// ---- threads ----
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*f)(void*), void* of) noexcept {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(pthread_create)(thread, attributes, f, of);
  const auto& t = s->start_thread(s->process(), [s, f, of] { s->end_thread(f(of)); });
  *thread = static_cast<pthread_t>(t.number);
  s->point();
  return 0;
}
int pthread_join(pthread_t thread, void** result) {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(pthread_join)(thread, result);
  const auto& t = s->thread(static_cast<int>(thread));
  while (!t.ended) (void)s->block(&t, "join");
  if (result != nullptr) *result = t.result;
  return 0;
}
int pthread_detach(pthread_t thread) noexcept {
  return Scheduler::current() == nullptr ? TUTTI_SYSTEM(pthread_detach)(thread) : 0;
}
int sched_yield() noexcept {
  if (auto* s = Scheduler::current()) s->point();
  return 0;
}

// ---- locks ----
int pthread_mutex_lock(pthread_mutex_t* m) noexcept {
  if (auto* s = Scheduler::current()) {
    s->point();
    (void)acquire(*m);
  }
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* m) noexcept {
  auto* s = Scheduler::current();
  if (s == nullptr) return 0;
  s->point();
  const bool own = is_recursive(*m) && m->__data.__owner == s->running().number + 1;
  if (m->__data.__lock != 0 && !own) return EBUSY;
  (void)acquire(*m);
  return 0;
}
int pthread_mutex_clocklock(pthread_mutex_t* m, clockid_t clock, const timespec* until) noexcept {
  auto* s = Scheduler::current();
  if (s == nullptr) return 0;
  s->point();
  return acquire(*m, {clock, nanos(*until)}) ? 0 : ETIMEDOUT;
}
int pthread_mutex_timedlock(pthread_mutex_t* m, const timespec* until) noexcept {
  return pthread_mutex_clocklock(m, CLOCK_REALTIME, until);
}
int pthread_mutex_unlock(pthread_mutex_t* m) noexcept {
  if (auto* s = Scheduler::current()) {
    release(*m);
    s->point();
  }
  return 0;
}
int pthread_once(pthread_once_t* once, void (*f)()) {
  // Outside a simulation no other thread runs f. The values are those of the C library.
  auto* s = Scheduler::current();
  while (*once == 1) (void)s->block(once, "once");
  if (*once == 2) return 0;
  *once = 1;
  try {
    f();
  } catch (...) {
    *once = 0;
    if (s != nullptr) s->wake_all(once);
    throw;
  }
  *once = 2;
  if (s != nullptr) s->wake_all(once);
  return 0;
}

// ---- conditions ----
int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m) { return wait(c, m, {}); }
int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock, const timespec* until) {
  return wait(c, m, {clock, nanos(*until)});
}
int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* until) {
  return wait(c, m, {CLOCK_REALTIME, nanos(*until)});
}
int pthread_cond_signal(pthread_cond_t* c) noexcept {
  if (auto* s = Scheduler::current()) {
    s->wake_one(c);
    s->point();
  }
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* c) noexcept {
  if (auto* s = Scheduler::current()) {
    s->wake_all(c);
    s->point();
  }
  return 0;
}

// ---- words in memory, on which std::atomic and HostBarrier wait ----
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  if (number != SYS_futex || Scheduler::current() == nullptr)
    return TUTTI_SYSTEM(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return futex(reinterpret_cast<std::uint32_t*>(a[0]), static_cast<int>(a[1]), static_cast<std::uint32_t>(a[2]),
               reinterpret_cast<const timespec*>(a[3]));
}

// ---- clocks ----
int clock_gettime(clockid_t clock, timespec* t) noexcept {
  if (Scheduler::current() == nullptr) return TUTTI_SYSTEM(clock_gettime)(clock, t);
  *t = timespec_of(clock_of_process(clock));
  return 0;
}
int gettimeofday(timeval* t, void* zone) noexcept {
  if (Scheduler::current() == nullptr) return TUTTI_SYSTEM(gettimeofday)(t, zone);
  const auto now = clock_of_process(CLOCK_REALTIME);
  t->tv_sec = static_cast<time_t>(now / second);
  t->tv_usec = static_cast<suseconds_t>(now % second / 1000);
  return 0;
}
time_t time(time_t* t) noexcept {
  if (Scheduler::current() == nullptr) return TUTTI_SYSTEM(time)(t);
  const auto now = static_cast<time_t>(clock_of_process(CLOCK_REALTIME) / second);
  if (t != nullptr) *t = now;
  return now;
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(clock_nanosleep)(clock, flags, time, left);
  const auto t = nanos(*time);
  const bool absolute = (flags & TIMER_ABSTIME) != 0;
  (void)s->block(&s->running(), "sleep", absolute ? Moment{clock, t} : in(t));
  return 0;
}
int nanosleep(const timespec* time, timespec* left) { return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left); }
int usleep(useconds_t us) {
  const timespec t = timespec_of(static_cast<Nanos>(us) * 1000);
  return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
}

}  // extern "C"
}  // namespace tutti::simulation
