// SPDX-License-Identifier: MIT
#include "tools/generate_trainer/options.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::generate_trainer {

Options parse_options(const std::vector<std::string>& words) {
  Options o;
  std::vector<std::string> further;  // options of the program
  std::optional<int> count, gpus;
  bool in_script = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    std::replace(name.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(name.size())), name.end(), '-',
                 '_');
    const auto value = [&]() -> std::string {
      if (equals != std::string::npos) return word.substr(equals + 1);
      if (i + 1 == words.size()) fail<UsageError>(name, "a value", "none", "generate-trainer --help");
      return words[++i];
    };
    const auto number = [&](int high) {
      const std::string text = value();
      const auto n = tutti::detail::number_between(text, 0, high);
      if (!n) fail<UsageError>(name, "a number from 0 to " + std::to_string(high), "'" + printable(text) + "'");
      return *n;
    };
    const bool option = word.starts_with("-") && word.size() > 1;
    if (option) in_script = false;
    if (name == "--help" || name == "-h") {
      o.help = true;
    } else if (name == "--version") {
      o.version = true;
    } else if (name == "--workers_file_path") {
      o.workers_file = value();
    } else if (name == "--worker_count") {
      count = number(65536);
    } else if (name == "--worker_gpu_count") {
      gpus = number(1024);
    } else if (name == "--trainer_script_dir") {
      o.script_dir = value();
    } else if (name == "--log_dir") {
      o.log_dir = value();
    } else if (name == "--training_script") {
      o.command.push_back(value());
      in_script = true;
    } else if (in_script) {
      o.command.push_back(word);
    } else {
      further.push_back(word);
    }
  }
  if (o.help || o.version) return o;
  for (const auto& [name, missing] : {std::pair{"--workers_file_path", o.workers_file.empty()},
                                      {"--worker_count", !count},
                                      {"--worker_gpu_count", !gpus},
                                      {"--trainer_script_dir", o.script_dir.empty()},
                                      {"--log_dir", o.log_dir.empty()},
                                      {"--training_script", o.command.empty() || o.command[0].empty()}})
    if (missing) fail<UsageError>(name, "a value", "none", "generate-trainer --help");
  o.worker_count = *count;
  o.gpus = *gpus;
  o.command.insert(o.command.end(), further.begin(), further.end());
  return o;
}

}  // namespace tutti::generate_trainer
