// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/generate_trainer/options.hpp"

namespace tutti::generate_trainer {

// The processes of the job: one server on each host, and workers_of_host workers on each host.
struct Job {
  std::vector<Host> hosts;
  std::string servers, workers;  // --ps_hosts and --worker_hosts
  int workers_of_host = 1;
};

namespace detail {

[[nodiscard]] inline std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// Returns the words quoted for the shell, separated by spaces.
[[nodiscard]] std::string quoted(const std::vector<std::string>& words);

// Writes a new file and renames it to `path`, which it replaces.
void replace_file(const io::Path& path, std::string_view text, mode_t mode);

}  // namespace detail

void write_scripts(const Options& o);

}  // namespace tutti::generate_trainer
