// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Runs f(communicator) in a thread for each rank, and throws the first exception of a thread.
inline void run_ranks(int size, const std::function<void(ThreadCommunicator&)>& f,
                      std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  ThreadGroup group(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, r, deadline);
      try {
        f(c);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
        c.abort("test failed", ExitCode::internal);
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace tutti
