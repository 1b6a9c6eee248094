// SPDX-License-Identifier: MIT
// Measures all-reduce for many sizes and verifies each sum. As several processes (tutti-launch -n N, mpirun), it runs
// MPI_Allreduce in place and tutti's shared window in turns. With --comm gloo it runs shared memory and Gloo. As a
// single process it uses threads as ranks. With --comm nccl each rank has a GPU. Each call blocks its thread.
#include <cstdio>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>

#include "allreduce/arguments.hpp"
#include "allreduce/threads.hpp"
#ifdef TUTTI_HAS_MPI
#include "allreduce/mpi.hpp"
#endif
#ifdef TUTTI_HAS_GLOO
#include "allreduce/gloo.hpp"
#endif
#if defined(TUTTI_HAS_NCCL) && defined(TUTTI_HAS_CUDA)
#include "allreduce/nccl.hpp"
#endif

using namespace tutti;
using namespace tutti::bench;

int main(int argc, char** argv) {
  try {
    const Args a = parse(argc, argv);
    const LaunchEnvironment start = read_launch_environment();
    bool over_mpi = false;
#ifdef TUTTI_HAS_MPI
    over_mpi = a.comm == "auto" && a.mode != "threads";
#endif
    if (is_launcher_query())
      return answer_launcher_query({a.comm != "auto" ? a.comm : over_mpi ? "mpi" : "threads", over_mpi});
    require_worker(start);
    if (a.comm == "gloo") {
#ifdef TUTTI_HAS_GLOO
      return over_gloo(a, start);
#else
      fail<UsageError>("--comm", "a build with Gloo", "a build without it", "install libgloo-dev and build again");
#endif
    }
    if (a.comm == "nccl") {
#if defined(TUTTI_HAS_NCCL) && defined(TUTTI_HAS_CUDA)
      return gpus(a, start);
#else
      fail<UsageError>("--comm", "a build with NCCL", "a build without it",
                       "install the CUDA toolkit, cuDNN and libnccl-dev and build again");
#endif
    }
#ifdef TUTTI_HAS_MPI
    if (start.mpi && over_mpi) return processes(a);
#endif
    require_launched_size(start, over_mpi ? "mpi" : "threads", 1);
    if (a.mode != "all" && a.mode != "threads")
      fail<UsageError>("--mode", "threads, or a program with MPI that mpirun started", a.mode);
    return threads(a);
  } catch (const Error& e) {
    std::fprintf(stderr, "allreduce: %s\n", e.what());
    return e.exit_code();
  }
}
