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

// Linux processes: starts them without a shell, finds them again, ends them.
namespace tutti::launch {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// Returns for how long this process did not run. Call it several times a second. `last` is the time of the last call;
// it is set to the present time.
[[nodiscard]] Clock::duration stood_still(Clock::time_point& last);

// Returns, for example, "2.5 s".
[[nodiscard]] std::string seconds_text(double seconds);

// Returns, for example, "1 host" or "2 hosts".
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
  std::optional<std::vector<std::string>> environment{};  // "NAME=value"; if absent, the environment of this process
  std::string folder{};
  int in = -1, out = -1, err = -1;  // -1: /dev/null for in, this process's own for out and err
  int keep = -1;                    // one more descriptor, above 2, that keeps its number
  bool own_session = false;         // if false, the process gets its own process group
  int signal_at_parents_death = 0;
  bool ignore_user_signals = false;          // ignores SIGUSR1 and SIGUSR2 until the program handles them
  std::function<void(pid_t)> before_exec{};  // called in this process while the new one waits
};

struct Started {
  pid_t pid = -1;
  int error = 0;       // errno of the step that failed; 0: the program runs
  std::string what{};  // the step that failed
};

// Starts a program with fork and execvp. It gets default signal handling and only the descriptors in `start`.
[[nodiscard]] Started start_process(const Start& start);

// Returns the text of a file of /proc/<pid>, as far as it can be read. If the process ends during the call, reading
// fails, for which iterators of a stream would throw.
[[nodiscard]] std::string proc_text(pid_t pid, const char* name);

// The state of a process, as in /proc.
struct ProcessStatus {
  char state = '?';
  pid_t parent = 0, group = 0;
  std::uint64_t start = 0;  // in clock ticks after boot: number and start time together identify one process forever
};

[[nodiscard]] std::optional<ProcessStatus> process_status(pid_t pid);

// Returns whether the process with this number and start time exists and is not a zombie.
[[nodiscard]] bool lives(pid_t pid, std::uint64_t start);

// Returns the processes for which f(pid, status) is true.
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

// Returns whether the process was started with NAME=value in its environment.
[[nodiscard]] bool started_with(pid_t pid, const std::string& entry);

// Blocks signals, so that poll reports them.
class SignalQueue {
 public:
  SignalQueue(std::initializer_list<int> signals);
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Returns the next signal, or 0.
  [[nodiscard]] int next() const;

 private:
  io::Descriptor fd_;
};

// Queues bytes for a descriptor that may not accept them at once.
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

  // Call when poll() reports the descriptor as writable: a pipe then accepts 4096 bytes without blocking.
  void send();

 private:
  int fd_;
  std::string waiting_;
  std::size_t sent_ = 0;
  bool broken_ = false;
};

// The result of read_some(), which appends the available bytes of a descriptor to `text`. nothing: no bytes yet. end:
// end of the file.
enum class ReadResult { bytes, nothing, end };

[[nodiscard]] ReadResult read_some(int fd, std::string& text);

[[nodiscard]] std::string own_program();

[[nodiscard]] std::string own_node();

// Returns the path of a program as execvp would find it, with this PATH, in this folder. Returns an empty path if it
// cannot be run.
[[nodiscard]] std::filesystem::path find_program(const std::string& program, const std::string& path,
                                                 const std::string& folder);

}  // namespace tutti::launch
