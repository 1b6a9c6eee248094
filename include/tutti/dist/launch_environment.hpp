// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/dist/hosts_file.hpp>

namespace tutti {

// What a process learns from whoever started it: tutti-launch (TUTTI_*), Open MPI's mpirun (OMPI_COMM_WORLD_*), or
// nobody, which is a job of one process.
struct LaunchEnvironment {
  int rank = 0, size = 1;  // among the workers, or the servers, of the job
  int local_rank = 0, local_size = 1;
  int workers = 1, servers = 0;
  std::string role = "worker";  // or "server"
  std::string host;             // this host's name in the hosts file
  std::string job;              // 16 hexadecimal digits
  std::string root;             // host:port where rank 0 may listen
  std::string report;           // file of this process's progress, see progress_report.hpp
  bool launched = false;        // false: nobody started it as one of several

  [[nodiscard]] bool is_server() const noexcept { return role == "server"; }
};

namespace detail {

template <class Get>
[[nodiscard]] std::string text_variable(const Get& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

// UsageError where it is set and no integer from low to high.
template <class Get>
[[nodiscard]] std::optional<int> number_variable(const Get& get, const char* name, int low, int high) {
  const char* value = get(name);
  if (value == nullptr) return {};
  const auto number = number_between(value, low, high);
  if (!number)
    fail<UsageError>(std::string("environment ") + name,
                     "an integer from " + std::to_string(low) + " to " + std::to_string(high),
                     "'" + printable(value) + "'", "it is set by whoever starts the processes of a job");
  return number;
}

// Rank and size of one kind of starter; nothing where it did not start this process.
template <class Get>
[[nodiscard]] std::optional<LaunchEnvironment> read_numbers(const Get& get, const std::string& prefix) {
  constexpr int most = 1 << 24;
  const auto named = [&](const char* name) { return prefix + name; };
  if (get(named("RANK").c_str()) == nullptr) return {};
  LaunchEnvironment e;
  e.launched = true;
  const auto size = number_variable(get, named("SIZE").c_str(), 1, most);
  if (!size) fail<UsageError>("environment " + named("SIZE"), "a number beside " + named("RANK"), "none");
  e.size = *size;
  e.rank = *number_variable(get, named("RANK").c_str(), 0, e.size - 1);
  e.local_size = number_variable(get, named("LOCAL_SIZE").c_str(), 1, e.size).value_or(1);
  e.local_rank = number_variable(get, named("LOCAL_RANK").c_str(), 0, e.local_size - 1).value_or(0);
  return e;
}

}  // namespace detail

// Reads the variables through `get`, which answers like std::getenv. UsageError names a variable that makes no sense.
template <class Get>
[[nodiscard]] LaunchEnvironment read_launch_environment(const Get& get) {
  const auto ours = detail::read_numbers(get, "TUTTI_");
  const auto mpi = detail::read_numbers(get, "OMPI_COMM_WORLD_");
  LaunchEnvironment e = ours ? *ours : mpi.value_or(LaunchEnvironment{});
  e.workers = e.size;
  // mpirun -x hands them on where its ranks are to meet without MPI.
  e.job = detail::text_variable(get, "TUTTI_JOB");
  e.root = detail::text_variable(get, "TUTTI_ROOT");
  if (!ours) return e;
  if (const std::string role = detail::text_variable(get, "TUTTI_ROLE"); !role.empty()) e.role = role;
  if (e.role != "worker" && e.role != "server")
    fail<UsageError>("environment TUTTI_ROLE", "worker or server", "'" + printable(e.role) + "'");
  e.workers = detail::number_variable(get, "DMLC_NUM_WORKER", 0, 1 << 24).value_or(e.workers);
  e.servers = detail::number_variable(get, "DMLC_NUM_SERVER", 0, 1 << 24).value_or(0);
  // One job inside a process of another: whose numbers hold is anybody's guess.
  if (mpi && !e.is_server() && e.servers == 0 && (mpi->rank != e.rank || mpi->size != e.size))
    fail<UsageError>("environment",
                     "TUTTI_RANK " + std::to_string(e.rank) + " of " + std::to_string(e.size) + " from mpirun too",
                     "OMPI_COMM_WORLD_RANK " + std::to_string(mpi->rank) + " of " + std::to_string(mpi->size),
                     "start the job with tutti-launch --launcher mpi, or with mpirun, not one within the other");
  e.host = detail::text_variable(get, "TUTTI_HOST");
  e.report = detail::text_variable(get, "TUTTI_REPORT");
  return e;
}
[[nodiscard]] inline LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace tutti
