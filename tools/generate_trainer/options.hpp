// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::generate_trainer {

inline constexpr const char* help_text =
    R"(usage: generate-trainer --workers_file_path FILE --worker_count N --worker_gpu_count N --trainer_script_dir DIR
                        [--log_dir DIR] --training_script PROGRAM [ARGUMENT...]

Writes DIR/<host>.sh for each host of FILE. Run on that host, it starts one parameter server and one worker for each
GPU, or one on the processor, in the background:

  while read -u 10 host; do ssh -o StrictHostKeyChecking=no "$host" "bash DIR/$host.sh"; done 10<FILE

  --workers_file_path FILE   hosts, one a line, as tutti-launch's hosts files
  --worker_count N           how many FILE has
  --worker_gpu_count N       GPUs of each host; 0: one worker on the processor. With 1 or more, --backend=cuda is added
                             to the program's arguments unless they have --backend or --gpus
  --trainer_script_dir DIR   for the scripts and the key of the job (job.key, of mode 0600); on a file system that all
                             hosts share, or to be copied to each of them
  --log_dir DIR              for what each process prints: ps0, worker0, ...; default: /tmp/
  --training_script PROGRAM [ARGUMENT...]
                             what to start; options that are none of these here are its own, wherever they stand
  --help, --version

Servers listen at port 2222 of their host, the first one also at a port that the system chooses. Options may be written
with - in place of _.
)";

struct Options {
  bool help = false, version = false;
  std::string workers_file, script_dir, log_dir = "/tmp/";
  int worker_count = 0, gpus = 0;
  std::vector<std::string> command;  // the program and all its arguments
};

// UsageError names the option.
[[nodiscard]] inline Options parse_options(const std::vector<std::string>& words) {
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
