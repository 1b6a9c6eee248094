// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/host/slurm.hpp"

namespace tutti::launch {

// How to call ssh, or srun instead, for all hosts of the job.
struct SshSettings {
  std::string config;  // for -F; empty: ssh's default
  double connect_timeout = 10;
  double host_timeout = 30;
  bool known_only = false;  // accept only hosts that are in known_hosts
  std::string slurm_job{};  // number of the Slurm job, to reach its nodes by srun; empty: use ssh
};

// Returns the arguments up to and including the host name, which follows "--". Throws UsageError if the word is not a
// host name, before ssh gets it.
[[nodiscard]] std::vector<std::string> ssh_arguments(const SshSettings& s, const Host& host);

// Returns the environment for ssh and rsync. It has only the variables that they need, so that it does not contain the
// secret of the job.
[[nodiscard]] std::vector<std::string> ssh_environment();

// mpirun and rsync start ssh themselves. They get a link to this program, <job folder>/rsh-agent. The file
// rsh-agent.hosts in the same folder says how to reach each host: line 1 has the settings, each further line has "NAME
// PORT USER KNOWN". USER may be "-". KNOWN is 1 if the host must be in known_hosts.
[[nodiscard]] inline std::string rsh_agent_line(const Host& h, bool known_only) {
  return h.name + " " + std::to_string(h.port) + " " + (h.user.empty() ? "-" : h.user) + (known_only ? " 1\n" : " 0\n");
}

void write_rsh_agent(const std::filesystem::path& folder, const std::string& program, const SshSettings& s,
                     const std::vector<Host>& hosts);

// `rsh-agent HOST COMMAND...`: replaces this process by ssh or srun. Does not return.
[[noreturn]] void become_ssh(const std::filesystem::path& link, const std::vector<std::string>& arguments);

}  // namespace tutti::launch
