// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/io/file.hpp>

// Processes of Linux: starting them without a shell, finding them again, ending them.
namespace tutti::launch {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// For how long a process that looks around many times a second did not, because nobody let it run; `last`, when it
// looked before, becomes now.
[[nodiscard]] Clock::duration stood_still(Clock::time_point& last);

// "2.5 s"
[[nodiscard]] std::string seconds_text(double seconds);

// "1 host", "2 hosts"
[[nodiscard]] inline std::string count_text(std::size_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

[[nodiscard]] inline std::string error_text(int number) { return std::generic_category().message(number); }

[[nodiscard]] std::string signal_text(int number);

struct Pipe {
  io::Descriptor read, write;
};

[[nodiscard]] Pipe make_pipe();

struct Start {
  std::vector<std::string> argv;
  std::optional<std::vector<std::string>> environment{};  // "NAME=value"; this process's own where absent
  std::string folder{};
  int in = -1, out = -1, err = -1;  // -1: /dev/null for in, this process's own for out and err
  int keep = -1;                    // one more descriptor, above 2, which has the same number there
  bool own_session = false;         // else a process group of its own
  int signal_at_parents_death = 0;
  bool ignore_user_signals = false;          // SIGUSR1 and SIGUSR2, until the program says what it does with them
  std::function<void(pid_t)> before_exec{};  // called here while the new process waits
};

struct Started {
  pid_t pid = -1;
  int error = 0;       // errno of what failed; 0: it runs
  std::string what{};  // what failed
};

// fork and execvp. The program gets default signal handling and only these descriptors.
[[nodiscard]] Started start_process(const Start& start);

// A file of /proc/<pid>: what can be read of it. Reading one of a process that ends meanwhile fails, which iterators of
// a stream would throw.
[[nodiscard]] std::string proc_text(pid_t pid, const char* name);

// What /proc says of a process.
struct ProcessStatus {
  char state = '?';
  pid_t parent = 0, group = 0;
  std::uint64_t start = 0;  // clock ticks after boot: with the number it names one process for ever
};

[[nodiscard]] std::optional<ProcessStatus> process_status(pid_t pid);

// Is it still the same process, and no zombie?
[[nodiscard]] bool lives(pid_t pid, std::uint64_t start);

// The processes for which f(pid, status) holds.
template <class F>
[[nodiscard]] std::vector<pid_t> processes_where(F&& f) {
  std::vector<pid_t> found;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    const auto pid = static_cast<pid_t>(std::atoi(entry->d_name));
    const auto status = process_status(pid);
    if (status && status->state != 'Z' && f(pid, *status)) found.push_back(pid);
  }
  ::closedir(folder);
  return found;
}

// Did the process start with NAME=value in its environment?
[[nodiscard]] bool started_with(pid_t pid, const std::string& entry);

// Blocks signals and lets poll see them.
class SignalQueue {
 public:
  SignalQueue(std::initializer_list<int> signals);
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // 0 when there is none.
  [[nodiscard]] int next() const;

 private:
  io::Descriptor fd_;
};

// Bytes on their way to a descriptor that may not take them yet.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  void put(std::string_view bytes) {
    if (!broken_) waiting_.append(bytes);
  }
  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size() - sent_; }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  void close() noexcept { broken_ = true; }

  // To be called when poll says that the descriptor takes bytes; a pipe then takes 4096 without blocking.
  void send();

 private:
  int fd_;
  std::string waiting_;
  std::size_t sent_ = 0;
  bool broken_ = false;
};

// Adds to `text` what the descriptor has: more, nothing now, or the end.
enum class ReadResult { bytes, nothing, end };

[[nodiscard]] ReadResult read_some(int fd, std::string& text);

[[nodiscard]] std::string own_program();

[[nodiscard]] std::string own_node();

// The path of a program as execvp would find it, with this PATH, in this folder; empty if it cannot be run.
[[nodiscard]] std::filesystem::path find_program(const std::string& program, const std::string& path,
                                                 const std::string& folder);

}  // namespace tutti::launch
