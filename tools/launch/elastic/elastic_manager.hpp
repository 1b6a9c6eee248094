// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/host/process.hpp"
#include "tools/launch/job/link.hpp"

namespace tutti::launch {

// Runs the program that edits the hosts file when instances of the cloud's launch template start or end. Runs it only
// if the environment names the template and the tag of its instances, as on the master of such a cluster.
class ElasticManager {
 public:
  using Say = std::function<void(const std::string&)>;

  // base: the hosts with which the job begins. Throws UsageError if the environment requests a manager and its program
  // is missing.
  ElasticManager(std::filesystem::path folder, const std::vector<Host>& base, Say say);
  ElasticManager(const ElasticManager&) = delete;
  ElasticManager& operator=(const ElasticManager&) = delete;
  ~ElasticManager() { end(); }

  // Call in each round. Prints the manager's output, and starts the manager again after it has ended.
  void watch();
  // Ends the manager with SIGTERM. The manager has 15 seconds to update its tags.
  void end();

 private:
  [[nodiscard]] static const char* variable(const char* name);
  // Returns the path of the manager's program: it is relative to this program, in an installation and in a build tree.
  [[nodiscard]] static std::filesystem::path program();

  void begin();

  Say say_;
  Start start_{};  // argv is empty if there is no manager
  std::unique_ptr<Child> child_;
  Clock::time_point began_{}, next_{};
  int pause_ = 1;  // seconds
};

}  // namespace tutti::launch
