// SPDX-License-Identifier: MIT
#include "tools/generate_trainer/options.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"

namespace tutti::generate_trainer {

namespace {

const command_line::Form form{
    .program = "generate-trainer",
    .help =
        R"(usage: generate-trainer --workers_file_path FILE --worker_count N --worker_gpu_count N --trainer_script_dir DIR
                        [--log_dir DIR] --training_script PROGRAM [ARGUMENT...]

Writes DIR/<host>.sh for each host of FILE. Run on that host, it starts one parameter server and one worker for each
GPU, or one on the processor, in the background:

  while read -u 10 host; do ssh -o StrictHostKeyChecking=no "$host" "bash DIR/$host.sh"; done 10<FILE

  --workers_file_path FILE   hosts, one on each line, as in tutti-launch's hosts files
  --worker_count N           number of hosts in FILE
  --worker_gpu_count N       GPUs of each host; 0: one worker on the processor. With 1 or more, --backend=cuda is added
                             to the program's arguments unless they have --backend or --gpus
  --trainer_script_dir DIR   folder for the scripts and the key of the job (job.key, of mode 0600), on a file system
                             that all hosts share; otherwise copy it to each host
  --log_dir DIR              folder for the output of each process: ps0, worker0, ...; default: /tmp/
  --training_script PROGRAM [ARGUMENT...]
                             the program to start; options that are not in this list belong to it, in any position
  --help, --version

Servers listen on port 2222 of their host; the first one also listens on a port that the system chooses. Options may be
written with - in place of _.
)",
    .hint = "generate-trainer --help",
    .double_dash = false,
    .passes_unknown = true};

}  // namespace

Options parse_options(const std::vector<std::string>& words) {
  using command_line::integer;
  Options o;
  std::optional<int> count, gpus;
  const auto any = [](std::string& to) { return [&to](const std::string&, const std::string& value) { to = value; }; };
  const auto adds = [&o](const std::string&, const std::string& value) { o.command.push_back(value); };
  const auto line =
      command_line::read(words,
                         {{"--workers-file-path", "FILE", any(o.workers_file)},
                          {"--worker-count", "N", integer(count, 0, 65536, "a number")},
                          {"--worker-gpu-count", "N", integer(gpus, 0, 1024, "a number")},
                          {"--trainer-script-dir", "DIR", any(o.script_dir)},
                          {"--log-dir", "DIR", any(o.log_dir)},
                          {.names = "--training-script", .value = "PROGRAM", .set = adds, .several = true}},
                         form);
  o.text = line.text;
  if (!o.text.empty()) return o;
  for (const auto& [name, missing] : {std::pair{"--workers_file_path", o.workers_file.empty()},
                                      {"--worker_count", !count},
                                      {"--worker_gpu_count", !gpus},
                                      {"--trainer_script_dir", o.script_dir.empty()},
                                      {"--log_dir", o.log_dir.empty()},
                                      {"--training_script", o.command.empty() || o.command[0].empty()}})
    if (missing) fail<UsageError>(name, "a value", "none", form.hint);
  o.worker_count = *count;
  o.gpus = *gpus;
  o.command.insert(o.command.end(), line.words.begin(), line.words.end());
  return o;
}

}  // namespace tutti::generate_trainer
