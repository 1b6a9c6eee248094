// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

#include "process.hpp"

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
[[nodiscard]] inline bool truth(const std::string& option, const std::string& text) {
  for (const char* yes : {"True", "true", "1"})
    if (text == yes) return true;
  for (const char* no : {"False", "false", "0"})
    if (text == no) return false;
  fail<UsageError>(option, "True or False", "'" + printable(text) + "'");
}

// The text of --prepare-script. It goes to the hosts as one word of a command line.
[[nodiscard]] inline std::string read_script(const std::string& file) {
  constexpr std::size_t most = 100000;
  std::string text = io::read_text_file(file, most);
  if (text.empty() || text.find('\0') != std::string::npos)
    fail<UsageError>("--prepare-script", "a script at " + printable(file),
                     text.empty() ? "an empty file" : "another kind of file");
  return text;
}

// Where the hosts file of the job lies: beside this program, as older scripts look for it there, unless that is where
// programs are installed.
[[nodiscard]] inline std::filesystem::path elastic_folder(const ElasticOptions& e) {
  namespace fs = std::filesystem;
  if (!e.folder.empty()) {
    if (std::error_code unreadable; !fs::is_directory(e.folder, unreadable))
      fail<UsageError>("--elastic-dir", "a folder", printable(e.folder), "it holds the job's hosts file, host_worker");
    return fs::absolute(e.folder).lexically_normal();
  }
  const fs::path own = fs::path(own_program()).parent_path();
  const bool installed = own.filename() == "bin" || own.filename() == "sbin";
  return !installed && ::access(own.c_str(), W_OK) == 0 ? own : fs::current_path();
}

inline void check_elastic(const ElasticOptions& e) {
  if (!e.on && !e.launch_worker && !e.first_given.empty())
    fail<UsageError>(e.first_given, "--elastic with it", "none", "workers come and go only there");
  if (e.max_workers && *e.max_workers < e.min_workers)
    fail<UsageError>("--max-workers", "--min-workers " + std::to_string(e.min_workers) + " or more",
                     std::to_string(*e.max_workers));
}

}  // namespace tutti::launch
