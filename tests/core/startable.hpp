// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

#include "core/sanitizers.hpp"

// Simulates a system that can start only a limited number of further threads, for one source file of a test program.
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
// Clang's ThreadSanitizer is part of the program, so RTLD_NEXT would find the system's function; the sanitizer must
// know every thread.
extern "C" int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
#endif

// Every std::thread begins here.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*f)(void*), void* argument) {
#if defined(TUTTI_TEST_TSAN) && defined(__clang__)
  static const auto create = &__interceptor_pthread_create;
#else
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
#endif
  if (tutti::testing::startable.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attributes, f, argument);
}
