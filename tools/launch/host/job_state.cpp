// SPDX-License-Identifier: MIT
#include "tools/launch/host/job_state.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>

namespace tutti::launch {

namespace {

// Returns whether a path is a folder that only this user may open; `status` is from lstat.
[[nodiscard]] bool is_private_folder(const struct stat& status) {
  return S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 0077) == 0;
}

[[nodiscard]] bool is_private_folder(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && is_private_folder(status);
}

}  // namespace

std::vector<fs::path> possible_state_folders() {
  if (const char* own = std::getenv("TUTTI_STATE_DIR"); own != nullptr && *own != '\0') {
    if (!fs::path(own).is_absolute())
      fail<UsageError>("TUTTI_STATE_DIR", "an absolute path", "'" + printable(own) + "'");
    return {own};
  }
  std::vector<fs::path> folders;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const fs::path usual = "/run/user/" + std::to_string(::geteuid());
  for (const fs::path& base : {fs::path(runtime == nullptr ? "" : runtime), usual})
    if (base.is_absolute() && is_private_folder(base)) folders.push_back(base / "tutti");
  folders.emplace_back("/tmp/tutti-" + std::to_string(::geteuid()));
  return folders;
}

fs::path make_job_folder(const std::string& job) {
  const fs::path state = possible_state_folders().front();
  const fs::path folders[] = {state, state / "jobs", state / "jobs" / job};
  for (int made = 0, tries = 0; made < 3;) {
    const fs::path& folder = folders[made];
    const int error = ::mkdir(folder.c_str(), 0700) != 0 ? errno : 0;
    // Uses the result of one lstat only: another agent may remove and make the folder between two calls.
    struct stat status {};
    const bool there = (error == 0 || error == EEXIST) && ::lstat(folder.c_str(), &status) == 0;
    if (there && is_private_folder(status)) {
      ++made;
      continue;
    }
    // Another job that ends may remove empty folders. In that case this begins again with the first folder.
    const bool gone = error == ENOENT || ((error == 0 || error == EEXIST) && !there && errno == ENOENT);
    if (gone && ++tries < most_tries_to_make_folder) {
      std::this_thread::yield();
      made = 0;
      continue;
    }
    if (error != 0 && error != EEXIST) io::fail_file("make the folder", folder, error);
    fail<UsageError>("job state", "a folder of this user with mode 0700 at " + folder.string(), "something else",
                     "remove it, or set XDG_RUNTIME_DIR to a folder of this user");
  }
  return folders[2];
}

std::vector<fs::path> job_folders(const std::string& job) {
  std::vector<fs::path> found;
  for (const fs::path& state : possible_state_folders()) {
    if (!is_private_folder(state)) continue;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(state / "jobs", error)) {
      const std::string name = entry.path().filename().string();
      const bool known = std::find(found.begin(), found.end(), entry.path()) != found.end();
      if (is_job(name) && (job.empty() || name == job) && is_private_folder(entry.path()) && !known)
        found.push_back(entry.path());
    }
  }
  return found;
}

void write_aside(const fs::path& path, const std::string& text) {
  const fs::path aside = io::aside_path(path);
  {
    const auto fd = io::Descriptor::open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, "make", 0600);
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      io::fail_file("write", aside, errno);
  }
  io::rename_path(aside, path);
}

void write_record(const fs::path& folder, const Record& r) {
  std::ostringstream text;
  text << r.pid << ' ' << r.start << ' ' << r.agent << ' ' << r.agent_start << ' ' << r.node << ' ' << r.host << '\n';
  write_aside(folder / (r.stem() + ".process"), text.str());
}

std::optional<Record> read_record(const fs::path& path) {
  Record r;
  const std::string stem = path.stem().string();
  const std::size_t dash = stem.find('-');
  if (dash == std::string::npos) return {};
  const auto rank = tutti::detail::number_between(std::string_view(stem).substr(dash + 1), 0, 1 << 24);
  std::ifstream in(path);
  if (!rank || !(in >> r.pid >> r.start >> r.agent >> r.agent_start >> r.node >> r.host)) return {};
  if (r.pid <= 1 || r.agent <= 1) return {};
  r.role = stem.substr(0, dash);
  r.rank = *rank;
  r.job = path.parent_path().filename().string();
  return r;
}

std::vector<Record> read_records(const fs::path& folder) {
  std::vector<Record> records;
  std::error_code error;
  const std::string node = own_node();
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".process") continue;
    auto record = read_record(entry.path());
    if (record && record->node == node) records.push_back(std::move(*record));
  }
  return records;
}

void remove_process_files(const fs::path& folder, const Record& r) {
  std::error_code error;
  for (const char* kind : {".process", ".progress", ".end", ".kept"}) fs::remove(folder / (r.stem() + kind), error);
}

void remove_job_folder(const fs::path& folder) {
  ::rmdir(folder.c_str());
  ::rmdir(folder.parent_path().c_str());
  ::rmdir(folder.parent_path().parent_path().c_str());
}

bool signal_group(const Record& r, int signal) {
  if (lives(r.pid, r.start)) return ::kill(-r.pid, signal) == 0;
  bool any = false;
  const auto members = processes_where([&](pid_t, const ProcessStatus& s) { return s.group == r.pid; });
  for (const pid_t pid : members)
    if (started_with(pid, "TUTTI_JOB=" + r.job)) any = ::kill(pid, signal) == 0 || any;
  return any;
}

void end_recorded(const std::vector<Record>& records, std::chrono::milliseconds grace,
                  const std::function<void()>& meanwhile) {
  const auto signal_agent = [](const Record& r, int signal) {
    if (r.agent == ::getpid() || r.agent == ::getppid() || !lives(r.agent, r.agent_start)) return false;
    return ::kill(r.agent, signal) == 0;
  };
  // Signals the agents first, so that they know why their processes end.
  for (const Record& r : records) {
    signal_agent(r, SIGTERM);
    signal_agent(r, SIGCONT);
  }
  for (const Record& r : records) {
    signal_group(r, SIGTERM);
    signal_group(r, SIGCONT);
  }
  const auto wait_gone = [&](std::chrono::milliseconds longest) {
    for (const auto end = Clock::now() + longest;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      bool any = false;
      for (const Record& r : records) any = signal_group(r, 0) || signal_agent(r, 0) || any;
      if (!any || Clock::now() >= end) return !any;
      meanwhile();
    }
  };
  if (wait_gone(grace)) return;
  for (const Record& r : records) signal_group(r, SIGKILL);
  // An agent that is killed cannot report the end of its processes, and its launcher then takes the host for lost.
  if (wait_gone(std::chrono::milliseconds(3000))) return;
  for (const Record& r : records) signal_agent(r, SIGKILL);
  (void)wait_gone(std::chrono::milliseconds(1000));
}

namespace {

// Returns the file that identifies the launcher of the job on this host. An agent reads it to check whether the
// launcher still lives. If not, the agent removes the launcher's files for mpirun and rsync.
[[nodiscard]] fs::path launcher_file(const fs::path& folder) { return folder / ("launcher-" + own_node()); }

}  // namespace

void record_launcher(const fs::path& folder) {
  if (const auto status = process_status(::getpid()))
    write_aside(launcher_file(folder), std::to_string(::getpid()) + ' ' + std::to_string(status->start) + "\n");
}

void remove_launcher_files(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {"mpirun.hosts", "rsh-agent", "rsh-agent.hosts"}) fs::remove(folder / name, error);
  fs::remove(launcher_file(folder), error);
}

void remove_files_of_lost_launcher(const fs::path& folder, std::chrono::milliseconds wait) {
  std::ifstream in(launcher_file(folder));
  pid_t pid = 0;
  std::uint64_t start = 0;
  if (!(in >> pid >> start)) return;
  for (const auto end = Clock::now() + wait; lives(pid, start);
       std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (Clock::now() >= end) return;
  remove_launcher_files(folder);
  remove_job_folder(folder);
}

void record_mpi_session(const fs::path& folder) {
  const char* session = std::getenv("OMPI_MCA_orte_jobfam_session_dir");
  const char* job = std::getenv("PMIX_NAMESPACE");
  const pid_t parent = ::getppid();
  const auto status = process_status(parent);
  if (session == nullptr || job == nullptr || !status) return;
  std::ifstream in("/proc/" + std::to_string(parent) + "/comm");
  std::string name;
  in >> name;
  const bool daemon = name == "orted";  // otherwise the parent is mpirun itself
  write_aside(session_file(folder), std::string(session) + "\n" + job + ' ' + std::to_string(daemon ? parent : 0) +
                                        ' ' + std::to_string(status->start) + "\n");
}

void end_mpi_session(const fs::path& folder, const std::function<void()>& meanwhile) {
  std::error_code error;
  const fs::path file = session_file(folder);
  std::ifstream in(file);
  std::string session;
  std::uint32_t job = 0;
  pid_t daemon = 0;
  std::uint64_t start = 0;
  if (!std::getline(in, session) || !(in >> job >> daemon >> start)) return;
  fs::remove(file, error);
  for (int i = 0; i < 100 && daemon > 1 && lives(daemon, start); ++i) {
    if (i == 50) ::kill(daemon, SIGKILL);
    meanwhile();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const fs::path path = fs::path(session).lexically_normal(), parent = path.parent_path();
  if (path.is_absolute() && path.filename().string().starts_with("jf.") &&
      parent.filename().string().starts_with("ompi.")) {
    // The parent folder remains if it contains the folder of another job.
    const auto keeps_parent = [&] {
      for (const auto& entry : fs::directory_iterator(parent, error))
        if (entry.path() != path && entry.path().filename().string().starts_with("jf.")) return true;
      return false;
    };
    // Tries again while a process still writes or removes files there. If a daemon was killed while it cleaned up, its
    // empty parent folder remains.
    struct stat status {};
    for (int i = 0; i < 40; ++i) {
      if (::lstat(path.c_str(), &status) == 0) {
        if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) break;
        fs::remove_all(path, error);
      }
      const bool gone = ::lstat(path.c_str(), &status) != 0;
      if (::rmdir(parent.c_str()) == 0 || (errno != ENOTEMPTY && errno != EEXIST) || (gone && keeps_parent())) break;
      meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  std::ostringstream segment;
  segment << "vader_segment." << own_node() << '.' << ::geteuid() << '.' << std::hex << job << '.';
  for (const auto& entry : fs::directory_iterator("/dev/shm", error))
    if (entry.path().filename().string().starts_with(segment.str())) fs::remove(entry.path(), error);
}

}  // namespace tutti::launch
