// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// The launcher's own files of a job. They tell rsync and mpirun, which start ssh themselves, how to reach the hosts.
class JobFolder {
 public:
  void make(const Plan& plan, const Options& o);
  // Adds a host that joins the running job.
  void add(const Host& host, bool known_only) const;
  // Returns the folder; an empty path before make().
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void remove();

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::launch
