// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

// A system that starts only so many threads more, for one source file of a test program.
namespace tutti::testing {

inline std::atomic<int> startable{std::numeric_limits<int>::max()};

struct Startable {
  explicit Startable(int threads) { startable = threads; }
  ~Startable() { startable = std::numeric_limits<int>::max(); }
  Startable(const Startable&) = delete;
  Startable& operator=(const Startable&) = delete;
};

}  // namespace tutti::testing

// Every std::thread begins here.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*f)(void*), void* argument) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (tutti::testing::startable.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attributes, f, argument);
}
