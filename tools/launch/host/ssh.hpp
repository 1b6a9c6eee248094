// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/host/slurm.hpp"

namespace tutti::launch {

// How ssh, or srun in its place, is called for any host of the job.
struct SshSettings {
  std::string config;  // for -F; empty: ssh's own
  double connect_timeout = 10;
  double host_timeout = 30;
  bool known_only = false;  // hosts that stand in known_hosts
  std::string slurm_job{};  // whose nodes srun reaches; empty: ssh does
};

// The arguments up to and with the host name. A name that is none throws UsageError before ssh could see it, and "--"
// stands before it all the same.
[[nodiscard]] std::vector<std::string> ssh_arguments(const SshSettings& s, const Host& host);

// What ssh and rsync get of this process's environment: what they need and no more, so that a secret for the job does
// not stand in theirs.
[[nodiscard]] std::vector<std::string> ssh_environment();

// mpirun and rsync start ssh themselves. They are given a link to this program, <job folder>/rsh-agent, beside which a
// file says how to reach each host: line 1 the settings, then "NAME PORT USER KNOWN", "-" for nobody, KNOWN 1 where the
// host must stand in known_hosts.
[[nodiscard]] inline std::string rsh_agent_line(const Host& h, bool known_only) {
  return h.name + " " + std::to_string(h.port) + " " + (h.user.empty() ? "-" : h.user) + (known_only ? " 1\n" : " 0\n");
}

void write_rsh_agent(const std::filesystem::path& folder, const std::string& program, const SshSettings& s,
                     const std::vector<Host>& hosts);

// `rsh-agent HOST COMMAND...`: becomes ssh, or srun. Does not return.
[[noreturn]] void become_ssh(const std::filesystem::path& link, const std::vector<std::string>& arguments);

}  // namespace tutti::launch
