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

// The program that edits the hosts file of a job as instances of the cloud's launch template come and go. It runs where
// the environment names the template and the tag of its instances, as on the master of such a cluster; never otherwise.
class ElasticManager {
 public:
  using Say = std::function<void(const std::string&)>;

  // base: the hosts with which the job begins. UsageError where the environment asks for a manager and there is none.
  ElasticManager(std::filesystem::path folder, const std::vector<Host>& base, Say say);
  ElasticManager(const ElasticManager&) = delete;
  ElasticManager& operator=(const ElasticManager&) = delete;
  ~ElasticManager() { end(); }

  // To be called in each round: repeats what it says, and starts it again after it has ended.
  void watch();
  // It gets some seconds to put its tags right.
  void end();

 private:
  [[nodiscard]] static const char* variable(const char* name);
  // Beside this program, as in an installation and in a build tree.
  [[nodiscard]] static std::filesystem::path program();

  void begin();

  Say say_;
  Start start_{};  // no arguments: there is no manager
  std::unique_ptr<Child> child_;
  Clock::time_point began_{}, next_{};
  int pause_ = 1;  // seconds
};

}  // namespace tutti::launch
