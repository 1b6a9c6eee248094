// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tutti::launch {

// The options of an elastic job.
struct ElasticOptions {
  bool on = false, at_epoch = true, at_given = false, accept_new_hosts = false;
  std::string folder{};   // --elastic-dir
  std::string prepare{};  // text of the script of --prepare-script
  int min_workers = 1, restart_budget = 10;
  std::optional<int> max_workers{};
  double min_timeout = 600;
  bool only_here = false;      // --launcher local: the job uses only this host
  bool launch_worker = false;  // this call starts no job: it adds `host` to a running job
  std::string host{};
  std::string first_given{};  // the first option given that is only valid for an elastic job
};

// Returns the value of an older launcher's option: True or False; an empty value means true.
[[nodiscard]] bool truth(const std::string& option, const std::string& text);

// Returns the text of --prepare-script. It is sent to the hosts as one word of a command line.
[[nodiscard]] std::string read_script(const std::string& file);

// Returns the folder of the job's hosts file. It is this program's folder, in which older scripts look for the file,
// unless programs are installed there.
[[nodiscard]] std::filesystem::path elastic_folder(const ElasticOptions& e);

void check_elastic(const ElasticOptions& e);

}  // namespace tutti::launch
