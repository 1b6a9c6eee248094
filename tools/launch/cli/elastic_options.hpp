// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tutti::launch {

// What the command line says of a job whose workers come and go.
struct ElasticOptions {
  bool on = false, at_epoch = true, at_given = false, accept_new_hosts = false;
  std::string folder{};   // --elastic-dir
  std::string prepare{};  // the script's text
  int min_workers = 1, restart_budget = 10;
  std::optional<int> max_workers{};
  double min_timeout = 600;
  bool only_here = false;      // --launcher local
  bool launch_worker = false;  // this is no job, but adds `host` to one
  std::string host{};
  std::string first_given{};  // the first of these options that was given, besides the ones that switch it on
};

// What an older launcher's option takes: True or False, and nothing for true.
[[nodiscard]] bool truth(const std::string& option, const std::string& text);

// The text of --prepare-script. It goes to the hosts as one word of a command line.
[[nodiscard]] std::string read_script(const std::string& file);

// Where the hosts file of the job lies: beside this program, as older scripts look for it there, unless that is where
// programs are installed.
[[nodiscard]] std::filesystem::path elastic_folder(const ElasticOptions& e);

void check_elastic(const ElasticOptions& e);

}  // namespace tutti::launch
