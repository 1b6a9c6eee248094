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
  std::optional<int> servers;  // absent: as many as workers where the program needs some
  bool servers_hold = false;   // as the program answers, see LaunchInfo
  int server_restarts = 0, root_port = 0;
  std::string hosts_file, launcher;  // launcher: empty where it is not said, see launcher_for
  std::string sync_dir, log_dir, job_name, ssh_config, remote_program;
  Variables everywhere, on_workers, on_servers;
  std::vector<std::string> mpi_arguments, command;
  double connect_timeout = 10, host_timeout = 30, rank_timeout = 10, stall_warning = 30, stall_deadline = 600,
         stop_timeout = 60;
  ElasticOptions elastic{};
  bool kill = false;
  std::string text{};  // what --help, --help-all or --version prints; empty: none was given
  std::string kill_job;
  std::vector<Host> allocation{};  // nodes of the Slurm job in which this runs, where they are the job's hosts
  std::string slurm_job{};         // its number, where srun reaches them
  std::optional<int> gpus;         // how many --gpus in the command names; absent: none, or no list of numbers
};

// How many servers there are beside so many workers, for a program that gave this answer, if any. UsageError names what
// works.
[[nodiscard]] int servers_for(const Options& o, const std::optional<LaunchInfo>& answer, int workers);

// The launcher for a program that gave this answer, if any, about so many workers. UsageError names what works.
[[nodiscard]] std::string launcher_for(const Options& o, const std::optional<LaunchInfo>& answer, std::size_t workers);

// Reads the command line. UsageError names the option that is wrong.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments);

}  // namespace tutti::launch
