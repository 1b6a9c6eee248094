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

// What runs on this host, in files: <state>/jobs/<job>/<role>-<rank>.process names a process and the agent that started
// it, <role>-<rank>.progress is where it reports to, <role>-<rank>.end how it ended. <state> is $XDG_RUNTIME_DIR/tutti,
// else /tmp/tutti-<uid>, open to this user only; $TUTTI_STATE_DIR where that is set, and then nowhere else is looked.
// Processes are ended by what these files say, never by a name.
namespace tutti::launch {

namespace fs = std::filesystem;

[[nodiscard]] std::vector<fs::path> possible_state_folders();

// Makes the folder of a job; UsageError if another user could have put it there.
[[nodiscard]] fs::path make_job_folder(const std::string& job);

// Makes the folder of a job, calls `make_first` with it, which makes a file there, and returns what `make_first`
// returns. Repeats both if the folder is removed in between: agents of several hosts that share a state folder remove
// the folder of their job whenever they find it empty. Once the file is there, the folder stays.
template <class F>  // f(folder); throws FileError if it cannot make its file
auto with_job_folder(const std::string& job, F&& make_first) {
  for (int tries = 1;; ++tries) {
    const fs::path folder = make_job_folder(job);
    try {
      return make_first(folder);
    } catch (const io::FileError& e) {
      const bool removed = e.error_number() == ENOENT || e.error_number() == ESTALE;
      if (!removed || tries == 100) throw;
    }
  }
}

[[nodiscard]] inline bool is_job(const std::string& job) {
  return job.size() == 16 && job.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The folders of one job, or of all jobs where `job` is empty.
[[nodiscard]] std::vector<fs::path> job_folders(const std::string& job);

// A process of a job, as its file has it.
struct Record {
  std::string job, role = "worker", host, node;  // host: in the hosts file; node: its own name for itself
  int rank = 0;
  pid_t pid = 0, agent = 0;
  std::uint64_t start = 0, agent_start = 0;

  [[nodiscard]] std::string stem() const { return role + "-" + std::to_string(rank); }
};

// Several processes may write the same file at once.
void write_aside(const fs::path& path, const std::string& text);

void write_record(const fs::path& folder, const Record& r);

[[nodiscard]] std::optional<Record> read_record(const fs::path& path);

// The records of this host in a job's folder.
[[nodiscard]] std::vector<Record> read_records(const fs::path& folder);

void remove_process_files(const fs::path& folder, const Record& r);

// Removes a job's folder and those above it, once they are empty.
void remove_job_folder(const fs::path& folder);

// Sends a signal to what is left of a record's process group. Its leader is known by number and start time; where it
// has gone, a member belongs to the job if it was started with the job's identity. Returns whether there was one.
bool signal_group(const Record& r, int signal);

// Ends what the records name: SIGTERM, and SIGKILL after `grace`. Agents are ended with their processes; an agent that
// is this process or its parent is not. meanwhile: called all the time while it waits.
void end_recorded(
    const std::vector<Record>& records, std::chrono::milliseconds grace,
    const std::function<void()>& meanwhile = [] {});

void record_launcher(const fs::path& folder);

void remove_launcher_files(const fs::path& folder);

// Does nothing where the launcher lives, or is on another host. wait: for one that is about to be gone.
void remove_files_of_lost_launcher(const fs::path& folder, std::chrono::milliseconds wait = {});

// Of a job through mpirun: what the guard of this host was told.
[[nodiscard]] inline fs::path order_file(const fs::path& folder) { return folder / ("order-" + own_node()); }

[[nodiscard]] inline fs::path session_file(const fs::path& folder) { return folder / ("session-" + own_node()); }

// What Open MPI may leave on a host when it is torn down: its daemon, a folder for the session, and the segments of its
// shared-memory transport. A process that mpirun started knows all three.
void record_mpi_session(const fs::path& folder);

void end_mpi_session(
    const fs::path& folder, const std::function<void()>& meanwhile = [] {});

}  // namespace tutti::launch
