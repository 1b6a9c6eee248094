// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <vector>

#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "job_state.hpp"
#include "mpi.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "ssh.hpp"

namespace tutti::launch {

// The launcher's own files of a job: how rsync and mpirun, which start ssh themselves, are to start it.
class JobFolder {
 public:
  void make(const Plan& plan, const Options& o) {
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
  // A host that comes when the job has begun.
  void add(const Host& host, bool known_only) const {
    std::ofstream out(path_ / "rsh-agent.hosts", std::ios::app);
    if (!(out << rsh_agent_line(host, known_only)).flush())
      fail<Error>("rsh-agent", "to write " + path_.string(), error_text(errno));
  }
  // Empty before make().
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void remove() {
    if (path_.empty()) return;
    remove_launcher_files(path_);
    remove_job_folder(path_);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::launch
