// SPDX-License-Identifier: MIT
// optimised
// header-only
// A real MPI program for the launcher's tests: each rank prints its host, all ranks sum their numbers, and
// one may fail.
//   mpi_rank [abort RANK]
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tutti/backends/mpi/types.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/cluster/launch/progress_report.hpp>

int main(int argc, char** argv) {
  // [answer]
  if (tutti::is_launcher_query()) return tutti::answer_launcher_query({.strategy = "mpi", .over_mpi = true});
  // [/answer]
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  const auto env = tutti::read_launch_environment();
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  if (env.rank != rank || env.size != size || sum != size * (size - 1) / 2) return 4;
  std::printf("rank %d of %d on %s, sum %d\n", rank, size, host.data(), sum);
  std::fflush(stdout);
  tutti::ProgressReporter reporter;
  reporter.begin(7, 1);
  if (argc > 2 && std::string(argv[1]) == "abort") {
    if (std::atoi(argv[2]) == rank) MPI_Abort(MPI_COMM_WORLD, 9);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
