// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// The launcher's own files of a job: how rsync and mpirun, which start ssh themselves, are to start it.
class JobFolder {
 public:
  void make(const Plan& plan, const Options& o);
  // A host that comes when the job has begun.
  void add(const Host& host, bool known_only) const;
  // Empty before make().
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void remove();

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::launch
