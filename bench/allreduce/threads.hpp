// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/error.hpp>

#include "arguments.hpp"
#include "memory.hpp"
#include "sweep.hpp"

// Runs the sweep with threads as ranks.
namespace tutti::bench {

inline int threads(const Args& a) {
  ThreadGroup group(a.ranks);
  std::vector<double> shared;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(a.ranks));
  const auto body = [&](int rank) {
    ThreadEngine e(group, rank);
    const Memory memory(a.max);
    const auto barrier = [&] { e.barrier(in_time(), "barrier"); };
    const auto collect = [&](const std::vector<double>& mine) {
      if (rank == 0) shared.resize(mine.size() * static_cast<std::size_t>(a.ranks));
      barrier();
      std::copy(mine.begin(), mine.end(), shared.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank);
      barrier();
      return shared;
    };
    try {
      sweep(a, {rank,
                a.ranks,
                {{"threads", memory.floats(),
                  [&](std::span<float> d) {
                    e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                  }}},
                barrier,
                collect});
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      e.abort("", ExitCode::internal);
    }
  };
  std::vector<std::thread> ranks;
  for (int r = 1; r < a.ranks; ++r) ranks.emplace_back(body, r);
  body(0);
  for (auto& t : ranks) t.join();
  for (const auto& e : errors)
    if (e) std::rethrow_exception(e);
  return 0;
}

}  // namespace tutti::bench
