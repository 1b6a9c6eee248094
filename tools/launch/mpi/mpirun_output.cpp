// SPDX-License-Identifier: MIT
#include "tools/launch/mpi/mpirun_output.hpp"

#include <string>
#include <string_view>

#include "tools/launch/job/mpi.hpp"

namespace tutti::launch {

void MpirunOutput::hear(std::string_view line, OutputQueue& err) {
  const bool of_a_process = line.starts_with("[") && line.find("] ") != std::string_view::npos &&
                            line.find_first_not_of("s0123456789", 1) == line.find(']');
  if (of_a_process) return err.put(std::string(line) + "\n");
  // Open MPI 4.1 prints this warning for a harmless race of its own.
  if (line.find("plm:rsh: Warning: setpgid(") != std::string_view::npos) return;
  if (const auto rank = rank_that_mpirun_blames(line)) blames_ = *rank;
  if (!line.empty() && held_.size() < 65536) held_.append(line).append("\n");
  heard_ = Clock::now();
}

void MpirunOutput::forget() {
  held_.clear();
  blames_ = -1;
}

void MpirunOutput::repeat(OutputQueue& err) {
  LineSplitter lines;
  lines.feed(held_, [&](std::string_view line) { err.put("mpirun: " + std::string(line) + "\n"); });
  held_.clear();
}

}  // namespace tutti::launch
