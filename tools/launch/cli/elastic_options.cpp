// SPDX-License-Identifier: MIT
#include "tools/launch/cli/elastic_options.hpp"

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/host/process.hpp"

namespace tutti::launch {

bool truth(const std::string& option, const std::string& text) {
  for (const char* yes : {"True", "true", "1"})
    if (text == yes) return true;
  for (const char* no : {"False", "false", "0"})
    if (text == no) return false;
  fail<UsageError>(option, "True or False", "'" + printable(text) + "'");
}

std::string read_script(const std::string& file) {
  constexpr std::size_t most = 100000;
  std::string text = io::read_text_file(file, most);
  if (text.empty() || text.find('\0') != std::string::npos)
    fail<UsageError>("--prepare-script", "a script at " + printable(file),
                     text.empty() ? "an empty file" : "another kind of file");
  return text;
}

std::filesystem::path elastic_folder(const ElasticOptions& e) {
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

void check_elastic(const ElasticOptions& e) {
  if (!e.on && !e.launch_worker && !e.first_given.empty())
    fail<UsageError>(e.first_given, "--elastic with it", "none", "only elastic jobs have it");
  if (e.max_workers && *e.max_workers < e.min_workers)
    fail<UsageError>("--max-workers", "--min-workers " + std::to_string(e.min_workers) + " or more",
                     std::to_string(*e.max_workers));
}

}  // namespace tutti::launch
