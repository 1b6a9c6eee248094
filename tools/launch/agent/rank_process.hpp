// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/host/control_socket.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

// How a process ended. why: own: by itself; stopped: the launcher or mpirun stopped it; unheard: its agent got no
// message of the launcher; orphaned: the parent of its agent ended; vanished: it ended together with its agent; ended:
// by --kill or another signal to the agent.
struct End {
  bool by_signal = false;
  int code = 0;
  std::string why = "own";

  [[nodiscard]] std::string line() const {
    return std::string(by_signal ? "signal " : "exit ") + std::to_string(code) + " " + why;
  }
};

// The variables that the launcher sets for every process. Users may not set them.
inline constexpr std::array launcher_variables{"TUTTI_RANK",       "TUTTI_SIZE",
                                               "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE",
                                               "TUTTI_HOST",       "TUTTI_JOB",
                                               "TUTTI_ROOT",       "TUTTI_REPORT",
                                               "TUTTI_ROLE",       "DMLC_ROLE",
                                               "TUTTI_SECRET",     "TUTTI_ROOT_PORTS",
                                               "DMLC_NUM_WORKER",  "DMLC_NUM_SERVER",
                                               "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT",
                                               "TUTTI_ASK",        "TUTTI_CONTROL",
                                               "TUTTI_ELASTIC",    "NEW_WORKER",
                                               "EPOCH_BEGIN",      "ELASTIC_TRAINING_ENABLED",
                                               "TUTTI_GENERATION", "TUTTI_FOUNDERS",
                                               "TUTTI_KEEP",       "TUTTI_KEPT"};

[[nodiscard]] inline bool is_launcher_variable(std::string_view name) {
  return std::find(launcher_variables.begin(), launcher_variables.end(), name) != launcher_variables.end();
}

// Returns the path of the order's program on this host, or an empty path if it does not exist or cannot be run.
[[nodiscard]] fs::path program_of(const Order& order);

// Returns "NAME=value" entries: this process's environment, overridden by the order's variables, and these by the
// launcher's variables. control: number of the channel's descriptor; empty without a channel.
[[nodiscard]] std::vector<std::string> environment_of(const Order& order, const ProcessOrder& p,
                                                      const std::string& report, const std::string& control);

// One process of the job, as its agent manages it.
class RankProcess {
 public:
  RankProcess(const Order& order, const ProcessOrder& process, fs::path folder);

  // Starts the program. If that fails, the result contains the reason. Throws FileError.
  [[nodiscard]] Started start(bool with_control);

  [[nodiscard]] const ProcessOrder& process() const noexcept { return process_; }
  [[nodiscard]] std::string name() const { return process_.role + " " + std::to_string(process_.rank); }
  [[nodiscard]] pid_t pid() const noexcept { return record_.pid; }
  [[nodiscard]] bool running() const noexcept { return running_; }
  [[nodiscard]] const std::optional<End>& end() const noexcept { return end_; }
  // Returns whether both pipes are closed.
  [[nodiscard]] bool drained() const noexcept { return streams_[0].pipe.get() < 0 && streams_[1].pipe.get() < 0; }
  [[nodiscard]] int pipe(std::size_t stream) const noexcept { return streams_[stream].pipe.get(); }
  [[nodiscard]] ControlSocket& control() noexcept { return control_; }

  // Stops a running process for the reason `why`. signal() does not change the reason.
  void stop(const std::string& why);
  // Changes the reason to "orphaned" if the process was stopped because the parent of its agent ended.
  void blame_parent() {
    if (why_ == "stopped") why_ = "orphaned";
  }
  void signal(int number) const {
    if (running_) ::kill(-record_.pid, number);
  }

  // Returns whether the process has ended. Does not reap it.
  [[nodiscard]] bool over() const;
  // Kills the rest of the process group, and reaps the process.
  void reap();

  // Copies the available output of a pipe into the log and, line by line, to `to`.
  void read_pipe(std::size_t stream, OutputQueue& to);
  void close_pipes(OutputQueue& out, OutputQueue& err) {
    for (const std::size_t stream : {0U, 1U}) close_pipe(stream, stream == 0 ? out : err);
  }
  void close_pipe(std::size_t stream, OutputQueue& to);

  // Returns the line "progress ..." if it has changed since the last call, otherwise an empty text.
  [[nodiscard]] std::string progress_news();
  [[nodiscard]] static std::string progress_line(const std::string& role, int rank, const RankProgress& p, char state);

  void write_end() const {
    if (end_) write_aside(folder_ / (record_.stem() + ".end"), end_->line() + "\n");
  }
  void remove_files() const { remove_process_files(folder_, record_); }

 private:
  struct Stream {
    io::Descriptor pipe{};
    LineSplitter lines{};
  };

  [[nodiscard]] static std::string now();

  void open_log();
  // Writes to the log. If that fails (full disk), closes the log and reports the error; training continues.
  void log(std::string_view bytes);
  void put(OutputQueue& to, std::string_view line);

  const Order& order_;
  ProcessOrder process_;
  fs::path folder_;
  Record record_;
  std::string prefix_, why_ = "own", last_news_, lost_log_;
  bool running_ = false;
  std::optional<End> end_;
  std::array<Stream, 2> streams_;
  ControlSocket control_;
  io::Descriptor log_;
  std::optional<ProgressFile> slot_;
};

}  // namespace tutti::launch
