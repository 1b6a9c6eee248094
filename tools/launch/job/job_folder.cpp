// SPDX-License-Identifier: MIT
#include "tools/launch/job/job_folder.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/ssh.hpp"
#include "tools/launch/job/commands.hpp"

namespace tutti::launch {

void JobFolder::make(const Plan& plan, const Options& o) {
  if (!path_.empty()) return;
  for (const auto& folder : job_folders("")) remove_files_of_lost_launcher(folder);
  path_ = with_job_folder(plan.job, [](const fs::path& folder) {
    record_launcher(folder);
    return folder;
  });
  std::vector<Host> hosts;
  for (const auto& s : plan.sites) hosts.push_back(s.host);
  write_rsh_agent(path_, own_program(), ssh_settings(o), hosts);
}

void JobFolder::add(const Host& host, bool known_only) const {
  std::ofstream out(path_ / "rsh-agent.hosts", std::ios::app);
  if (!(out << rsh_agent_line(host, known_only)).flush())
    fail<Error>("rsh-agent", "to write " + path_.string(), error_text(errno));
}

void JobFolder::remove() {
  if (path_.empty()) return;
  remove_launcher_files(path_);
  remove_job_folder(path_);
}

}  // namespace tutti::launch
