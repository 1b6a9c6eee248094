// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

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
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::generate_trainer
