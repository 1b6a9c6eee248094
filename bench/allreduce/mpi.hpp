// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/core/error.hpp>

#include "arguments.hpp"
#include "memory.hpp"
#include "sweep.hpp"

// Compares MPI_Allreduce with tutti's all-reduce over MPI.
namespace tutti::bench {

inline int processes(const Args& a) {
  const auto session = MpiSession::open();
  int ranks = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
  MpiEngine e(MpiOptions{.shared_memory = a.mode != "plain",
                         .deadline = std::chrono::seconds(120),
                         .ranks_per_host = a.mode == "tree" ? (ranks + 1) / 2 : 0},
              session);
  try {
    const Memory plain(a.max), own(a.max);
    std::vector<Way> ways;
    if (a.mode != "shm")
      ways.push_back({"mpi", plain.floats(), [](std::span<float> d) {
                        mpi_check(MPI_Allreduce(MPI_IN_PLACE, d.data(), static_cast<int>(d.size()), MPI_FLOAT, MPI_SUM,
                                                MPI_COMM_WORLD),
                                  "MPI_Allreduce");
                      }});
    if (a.mode != "mpi") {
      auto window = e.allocate(a.max, in_time());
      if (e.rank() == 0) std::printf("# %s%s\n", e.name().c_str(), window.empty() ? ", no shared window" : "");
      const std::span<float> data =
          window.empty() ? own.floats() : std::span<float>(reinterpret_cast<float*>(window.data()), a.max / 4);
      ways.push_back({a.mode == "all" ? "shm" : a.mode, data, [&](std::span<float> d) {
                        e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                      }});
    }
    const auto collect = [&](const std::vector<double>& mine) {
      std::vector<double> all(mine.size() * static_cast<std::size_t>(e.size()));
      e.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), in_time(), "times");
      return all;
    };
    sweep(a, {e.rank(), e.size(), ways, [&] { e.barrier(in_time(), "barrier"); }, collect});
  } catch (const Error& error) {
    e.abort(error.what(), static_cast<ExitCode>(error.exit_code()));
    throw;
  }
  return 0;
}

}  // namespace tutti::bench
