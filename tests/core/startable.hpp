// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

#include "core/sanitizers.hpp"

// Simulates a system that can start only a limited number of further threads. Include it in one file of a test program.
namespace tutti::testing {

inline std::atomic<int> startable{std::numeric_limits<int>::max()};

struct Startable {
  explicit Startable(int threads) { startable = threads; }
  ~Startable() { startable = std::numeric_limits<int>::max(); }
  Startable(const Startable&) = delete;
  Startable& operator=(const Startable&) = delete;
};

}  // namespace tutti::testing

#if defined(TUTTI_TEST_TSAN) && defined(__clang__)
// Clang's ThreadSanitizer must know every thread. It is part of the program, so RTLD_NEXT would find the function of
// the system instead.
extern "C" int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
#endif

// Replaces the system's function, which starts every std::thread.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*f)(void*), void* argument) {
#if defined(TUTTI_TEST_TSAN) && defined(__clang__)
  static const auto create = &__interceptor_pthread_create;
#else
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
#endif
  if (tutti::testing::startable.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attributes, f, argument);
}
