// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>

#include "tools/launch/cli/elastic_options.hpp"
#include "tools/launch/host/slurm.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

struct Options {
  std::optional<int> workers;
  std::optional<int> servers;  // absent: as many as workers if the program needs servers
  bool servers_hold = false;   // from the program's answer, see LaunchInfo
  int server_restarts = 0, root_port = 0;
  std::string hosts_file, launcher;  // launcher: empty if the option is not given, see launcher_for()
  std::string sync_dir, log_dir, job_name, ssh_config, remote_program;
  Variables everywhere, on_workers, on_servers;
  std::vector<std::string> mpi_arguments, command;
  double connect_timeout = 10, host_timeout = 30, rank_timeout = 10, stall_warning = 30, stall_deadline = 600,
         stop_timeout = 60;
  ElasticOptions elastic{};
  bool kill = false;
  std::string text{};  // text that --help, --help-all or --version prints; otherwise empty
  std::string kill_job;
  std::vector<Host> allocation{};  // nodes of the Slurm job in which this process runs, if they are this job's hosts
  std::string slurm_job{};         // number of the Slurm job, if srun reaches the nodes
  std::optional<int> gpus;  // number of GPUs in the command's --gpus; absent: not given, or not a list of numbers
};

// Returns the number of servers for this number of workers. answer: the program's answer, if it gave one. Throws
// UsageError that names a valid number.
[[nodiscard]] int servers_for(const Options& o, const std::optional<LaunchInfo>& answer, int workers);

// Returns the launcher for a program with this answer, if it gave one, and this number of workers. Throws UsageError
// that names a valid launcher.
[[nodiscard]] std::string launcher_for(const Options& o, const std::optional<LaunchInfo>& answer, std::size_t workers);

// Reads the command line. Throws UsageError that names the invalid option.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments);

}  // namespace tutti::launch
