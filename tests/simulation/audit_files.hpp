// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/data/check_audit.hpp>

#include "scheduler.hpp"

namespace tutti::simulation {

// Fails unless the audit of a job shows each sample exactly once in each epoch.
inline void check_audit_files(Scheduler& s, std::int64_t epochs, std::int64_t samples) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator("audit")) files.push_back(e.path().string());
  std::sort(files.begin(), files.end());
  for (std::int64_t e = 0; e < epochs; ++e) {
    const AuditResult r = check_audit(files, e, samples);
    if (!r.exactly_once())
      s.fail("epoch " + std::to_string(e) + ": " + std::to_string(r.missing) + " samples missing, " +
             std::to_string(r.repeated) + " repeated; " + r.where);
  }
}

}  // namespace tutti::simulation
