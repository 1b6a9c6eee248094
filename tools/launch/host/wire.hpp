// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The protocol between the launcher and its agent on a host. The launcher writes one frame with the start order to the
// agent's standard input, and then one command a line:
// "alive": the launcher runs; "go": start the processes; "stop": end all processes;
// "signal N [ROLE NUMBER]": send a signal to all processes or to one; "again ROLE NUMBER": start a process again;
// "hold": hold back output; "flow": send output again; "control ROLE NUMBER FRAME": pass a frame to a process;
// only over MPI (see ProcessGuard): "members ...": the next generation; "halt": end the current generation.
// The agent writes to its standard output: the output of the processes, each line with its prefix, and its own lines,
// which begin with the byte 0x1e.
namespace tutti::launch {

inline constexpr char control_mark = '\x1e';

inline constexpr int protocol = 5;

inline constexpr std::size_t max_frame = std::size_t{64} << 20;

using Variables = std::vector<std::pair<std::string, std::string>>;

// One process of the job.
struct ProcessOrder {
  std::string role = "worker";
  int rank = 0, local_rank = 0, local_size = 1;
  int mpi_rank = 0;  // counts the workers first, then the servers
};

// All data that an agent needs for its job.
struct Order {
  std::string job, job_name, host;
  std::string folder;   // working folder
  std::string log_dir;  // empty: no log files
  std::string root_host;
  std::string secret;  // value of TUTTI_SECRET
  int root_port = 0, root_ports = 1, ps_port = 0, workers = 0, servers = 0;
  bool through_mpi = false;  // mpirun starts the processes, and the agent only watches them
  bool keeps = false;        // the agent stays when all processes have ended, because one may be started again
  bool elastic = false;      // workers may join and leave
  bool joins = false;        // these workers join a running job, in epoch `epoch`
  int epoch = 0;
  // For jobs that restart their processes at each change of members, see LaunchEnvironment.
  int generation = 0, founders = 0;
  std::string kept;
  double host_timeout = 30;  // longest time without a line from the launcher, in seconds
  std::vector<std::string> command;
  Variables everywhere, on_workers, on_servers;
  std::vector<ProcessOrder> processes;
};

[[nodiscard]] inline std::string process_name(const std::string& role, int rank) {
  return role + " " + std::to_string(rank);
}

[[nodiscard]] std::string encode(const Order& o);

[[nodiscard]] Order decode(std::string_view payload);

// Returns the length in a frame's first line, "TUTTI-LAUNCH <bytes>".
[[nodiscard]] std::size_t frame_length(std::string_view line);

// Splits a stream into lines. Passes on a line longer than 64 KiB in parts.
class LineSplitter {
 public:
  static constexpr std::size_t longest = 65536;

  template <class F>  // called with f(std::string_view line), without the newline
  void feed(std::string_view bytes, F&& f) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const std::size_t take = std::min({end, bytes.size(), longest - rest_.size()});
      rest_.append(bytes.substr(0, take));
      const bool whole = take == end;
      bytes.remove_prefix(take + (whole ? 1 : 0));
      if (whole || rest_.size() >= longest) flush(f, whole);
    }
  }
  template <class F>
  void finish(F&& f) {
    flush(f, false);
  }

 private:
  template <class F>
  void flush(F&& f, bool whole) {
    if (rest_.empty() && !whole) return;
    f(std::string_view(rest_));
    rest_.clear();
  }
  std::string rest_;
};

[[nodiscard]] std::vector<std::string> words_of(std::string_view line);

}  // namespace tutti::launch
