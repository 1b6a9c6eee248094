// SPDX-License-Identifier: MIT
#include "tools/launch/host/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::launch {

Clock::duration stood_still(Clock::time_point& last) {
  const auto gap = Clock::now() - last;
  last += gap;
  return gap > std::chrono::seconds(1) ? gap : Clock::duration::zero();
}

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + " s";
}

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + name;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail<Error>("pipe", "two descriptors", error_text(errno));
  return {io::Descriptor(ends[0]), io::Descriptor(ends[1])};
}

Started start_process(const Start& start) {
  std::vector<char*> argv, environment;
  for (const auto& word : start.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (start.environment)
    for (const auto& entry : *start.environment) environment.push_back(const_cast<char*>(entry.c_str()));
  environment.push_back(nullptr);
  Pipe report = make_pipe(), hold = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return {-1, errno, "fork"};
  if (pid == 0) {
    // The child calls only functions that POSIX allows between fork and exec. It sends the stage and errno through the
    // pipe, which a successful exec closes.
    const auto give_up = [&](char stage) {
      const int number = errno;
      char message[1 + sizeof number];
      message[0] = stage;
      std::memcpy(message + 1, &number, sizeof number);
      const ssize_t written = ::write(report.write.get(), message, sizeof message);
      ::_exit(written > 0 ? 127 : 126);
    };
    if (start.own_session)
      ::setsid();
    else
      ::setpgid(0, 0);
    if (start.signal_at_parents_death != 0) {
      ::prctl(PR_SET_PDEATHSIG, start.signal_at_parents_death);
      if (::getppid() != parent) ::_exit(126);
    }
    const int in = start.in >= 0 ? start.in : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    // Moves the descriptors to numbers above 2 first, because one of them might be 0, 1 or 2.
    const int in_copy = ::fcntl(in, F_DUPFD_CLOEXEC, 3);
    const int out_copy = ::fcntl(start.out >= 0 ? start.out : 1, F_DUPFD_CLOEXEC, 3);
    const int err_copy = ::fcntl(start.err >= 0 ? start.err : 2, F_DUPFD_CLOEXEC, 3);
    if (in_copy >= 0) ::dup2(in_copy, 0);
    if (out_copy >= 0) ::dup2(out_copy, 1);
    if (err_copy >= 0) ::dup2(err_copy, 2);
    if (start.keep >= 0) ::fcntl(start.keep, F_SETFD, 0);
    if (!start.folder.empty() && ::chdir(start.folder.c_str()) != 0) give_up('d');
    for (int s = 1; s < SIGRTMIN; ++s) ::signal(s, SIG_DFL);
    if (start.ignore_user_signals)
      for (const int s : {SIGUSR1, SIGUSR2}) ::signal(s, SIG_IGN);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (start.environment) environ = environment.data();
    hold.write = io::Descriptor();
    char released = 0;
    if (::read(hold.read.get(), &released, 1) != 1) ::_exit(126);
    ::execvp(argv[0], argv.data());
    give_up('x');
  }
  report.write = io::Descriptor();
  if (start.before_exec) start.before_exec(pid);
  if (::write(hold.write.get(), "", 1) != 1) return {pid, errno, "pipe"};
  hold.write = io::Descriptor();
  char message[1 + sizeof(int)];
  ssize_t n = -1;
  do n = ::read(report.read.get(), message, sizeof message);
  while (n < 0 && errno == EINTR);
  if (n != ssize_t{sizeof message}) return {pid, 0, ""};
  Started failed;
  std::memcpy(&failed.error, message + 1, sizeof failed.error);
  failed.what = message[0] == 'd' ? "folder " + start.folder : "program " + start.argv[0];
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return failed;
}

std::string proc_text(pid_t pid, const char* name) {
  std::string text;
  const io::Descriptor file(::open(("/proc/" + std::to_string(pid) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return text;
  char block[4096];
  for (;;) {
    const ssize_t n = ::read(file.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(block, static_cast<std::size_t>(n));
  }
}

std::optional<ProcessStatus> process_status(pid_t pid) {
  const std::string text = proc_text(pid, "stat");
  const std::size_t close = text.rfind(')');  // skips the program's name, which may contain any character
  if (close == std::string::npos) return {};
  std::istringstream fields(text.substr(close + 1));
  ProcessStatus status;
  fields >> status.state >> status.parent >> status.group;
  std::string skipped;
  for (int field = 6; field < 22; ++field) fields >> skipped;
  if (!(fields >> status.start)) return {};
  return status;
}

bool lives(pid_t pid, std::uint64_t start) {
  const auto status = process_status(pid);
  return status && status->start == start && status->state != 'Z' && status->state != 'X';
}

bool started_with(pid_t pid, const std::string& entry) {
  const std::string text = proc_text(pid, "environ");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    if (text.compare(at, end - at, entry) == 0) return true;
    at = end + 1;
  }
  return false;
}

SignalQueue::SignalQueue(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int s : signals) ::sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  fd_ = io::Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() < 0) fail<Error>("signalfd", "a descriptor", error_text(errno));
}

int SignalQueue::next() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == ssize_t{sizeof info} ? static_cast<int>(info.ssi_signo) : 0;
}

void OutputQueue::send() {
  const ssize_t n = ::write(fd_, waiting_.data() + sent_, std::min<std::size_t>(size(), 4096));
  if (n < 0 && errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    waiting_.clear();
    sent_ = 0;
  }
  if (n <= 0) return;
  sent_ += static_cast<std::size_t>(n);
  if (sent_ == waiting_.size() || sent_ > std::size_t{1} << 20) {
    waiting_.erase(0, sent_);
    sent_ = 0;
  }
}

ReadResult read_some(int fd, std::string& text) {
  char block[16384];
  const ssize_t n = ::read(fd, block, sizeof block);
  if (n > 0) text.assign(block, static_cast<std::size_t>(n));
  if (n > 0) return ReadResult::bytes;
  return n < 0 && (errno == EINTR || errno == EAGAIN) ? ReadResult::nothing : ReadResult::end;
}

std::string own_program() {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0 || n >= ssize_t{sizeof path} - 1) fail<Error>("/proc/self/exe", "a path", error_text(errno));
  path[n] = 0;
  std::string program(path, static_cast<std::size_t>(n));
  // If the file was replaced while the program runs, for example by an update, the path ends in this mark. The new file
  // has the path without the mark.
  constexpr std::string_view gone = " (deleted)";
  if (program.ends_with(gone) && ::access(path, F_OK) != 0) program.resize(program.size() - gone.size());
  return program;
}

std::string own_node() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::filesystem::path find_program(const std::string& program, const std::string& path, const std::string& folder) {
  const auto runs = [&](std::filesystem::path& file) {
    if (file.is_relative()) file = std::filesystem::path(folder) / file;
    std::error_code error;
    return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
  };
  std::filesystem::path file(program);
  if (program.find('/') != std::string::npos) return runs(file) ? file : std::filesystem::path();
  std::istringstream folders(path);
  for (std::string f; std::getline(folders, f, ':');) {
    file = std::filesystem::path(f.empty() ? "." : f) / program;
    if (runs(file)) return file;
  }
  return {};
}

}  // namespace tutti::launch
