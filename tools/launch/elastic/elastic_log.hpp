// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <tutti/io/file.hpp>

namespace tutti::launch {

// Locks the folder of a hosts file for a change of the file. Blocks until no other process has the lock. On a file
// system without such locks, returns at once.
[[nodiscard]] io::Descriptor lock_hosts(const std::filesystem::path& folder);

// The log of hosts that joined and left: lines "SEQ ADDED|REMOVED HOST TIME_NS", each appended after the event. Numbers
// continue after those of an earlier job. The open log is locked, so no second job can use the folder.
class MembershipLog {
 public:
  // Locks the hosts file, too, until hosts_are_written(): another process must not change the file of an earlier job.
  explicit MembershipLog(const std::filesystem::path& file);
  // Call it when the hosts file of this job is written. Other processes may change it from then on.
  void hosts_are_written() { hosts_lock_ = {}; }
  // Returns whether a running job has the log open. Takes no lock, so other processes may look at the same time.
  [[nodiscard]] static bool in_use(const std::filesystem::path& file);

  // Returns false if the log could not be written, as on a full disk.
  bool append(bool added, const std::string& host);

 private:
  bool write(const std::string& text) {
    return ::write(fd_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  io::Descriptor hosts_lock_;  // taken before the log, because other processes take the job as running by its log
  std::filesystem::path file_;
  io::Descriptor fd_;
  std::int64_t next_ = 0;
};

}  // namespace tutti::launch
