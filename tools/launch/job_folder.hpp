// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <vector>

#include "commands.hpp"
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
    path_ = make_job_folder(plan.job);
    std::vector<Host> hosts;
    for (const auto& s : plan.sites) hosts.push_back(s.host);
    write_rsh_agent(path_, own_program(), ssh_settings(o), hosts);
  }
  // Empty before make().
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void remove() {
    if (path_.empty()) return;
    remove_mpirun_files(path_);
    remove_rsh_agent(path_);
    remove_job_folder(path_);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::launch
