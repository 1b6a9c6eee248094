// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/io/file_error.hpp>

#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"

// The state of the jobs on this host, in files. <state>/jobs/<job>/<role>-<rank>.process identifies a process and the
// agent that started it. The process reports progress in <role>-<rank>.progress. <role>-<rank>.end says how it ended.
// <state> is $TUTTI_STATE_DIR if that is set, and then no other folder is used. Otherwise it is $XDG_RUNTIME_DIR/tutti
// or /tmp/tutti-<uid>, accessible to this user only. Processes are found by these files only, never by name.
namespace tutti::launch {

namespace fs = std::filesystem;

[[nodiscard]] std::vector<fs::path> possible_state_folders();

// Makes the folder of a job and returns its path. Throws UsageError if another user could have made it.
[[nodiscard]] fs::path make_job_folder(const std::string& job);

// A busy machine can let other agents remove the folder many times between two calls of one.
inline constexpr int most_tries_to_make_folder = 10'000;

// Makes the folder of a job, calls `make_first` with it, which makes a file in it, and returns what `make_first`
// returns. Repeats both if the folder is removed before the file exists: agents of several hosts that share a state
// folder remove the folder of their job whenever they find it empty.
template <class F>  // f(folder); throws FileError if it cannot make its file
auto with_job_folder(const std::string& job, F&& make_first) {
  for (int tries = 1;; ++tries) {
    const fs::path folder = make_job_folder(job);
    try {
      return make_first(folder);
    } catch (const io::FileError& e) {
      const bool removed = e.error_number() == ENOENT || e.error_number() == ESTALE;
      if (!removed || tries == most_tries_to_make_folder) throw;
    }
  }
}

[[nodiscard]] inline bool is_job(const std::string& job) {
  return job.size() == 16 && job.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Returns the folders of one job, or of all jobs if `job` is empty.
[[nodiscard]] std::vector<fs::path> job_folders(const std::string& job);

// A process of a job, as its .process file describes it.
struct Record {
  std::string job, role = "worker", host, node;  // host: name in the hosts file; node: the host's own name
  int rank = 0;
  pid_t pid = 0, agent = 0;
  std::uint64_t start = 0, agent_start = 0;

  [[nodiscard]] std::string stem() const { return role + "-" + std::to_string(rank); }
};

// Writes a file. Several processes may write the same file at once.
void write_aside(const fs::path& path, const std::string& text);

void write_record(const fs::path& folder, const Record& r);

[[nodiscard]] std::optional<Record> read_record(const fs::path& path);

// Returns the records of this host in a job's folder.
[[nodiscard]] std::vector<Record> read_records(const fs::path& folder);

void remove_process_files(const fs::path& folder, const Record& r);

// Removes a job's folder, and the folders above it, if they are empty.
void remove_job_folder(const fs::path& folder);

// Sends a signal to the processes that remain in a record's process group. The leader is identified by number and start
// time. If the leader has ended, the signal goes to the members that were started with the job's TUTTI_JOB. Returns
// whether a process got the signal.
bool signal_group(const Record& r, int signal);

// Ends the processes in `records` with SIGTERM, and after `grace` with SIGKILL. Also ends their agents, unless an agent
// is this process or its parent: with SIGTERM, and with SIGKILL if they have not ended 3 s after their processes were
// killed. Calls `meanwhile` repeatedly while it waits.
void end_recorded(
    const std::vector<Record>& records, std::chrono::milliseconds grace,
    const std::function<void()>& meanwhile = [] {});

void record_launcher(const fs::path& folder);

void remove_launcher_files(const fs::path& folder);

// Removes the files of a launcher that has ended. Has no effect if it lives or is on another host. wait: time to wait
// for its end.
void remove_files_of_lost_launcher(const fs::path& folder, std::chrono::milliseconds wait = {});

// Returns the file with the order that the guard of this host received, for a job over MPI.
[[nodiscard]] inline fs::path order_file(const fs::path& folder) { return folder / ("order-" + own_node()); }

[[nodiscard]] inline fs::path session_file(const fs::path& folder) { return folder / ("session-" + own_node()); }

// Records what Open MPI may leave on a host after a failure: its daemon, a session folder, and segments of its
// shared-memory transport. Call it in a process that mpirun started, which knows all of these.
void record_mpi_session(const fs::path& folder);

void end_mpi_session(
    const fs::path& folder, const std::function<void()>& meanwhile = [] {});

}  // namespace tutti::launch
