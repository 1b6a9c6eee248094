// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <tutti/io/file.hpp>

namespace tutti::launch {

// The log of hosts that joined and left: lines "SEQ ADDED|REMOVED HOST TIME_NS", each appended after the event. Numbers
// continue after those of an earlier job. The open log is locked, so no second job can use the folder.
class MembershipLog {
 public:
  explicit MembershipLog(const std::filesystem::path& file);
  // Returns whether a running job has the log open. Takes no lock, so other processes may look at the same time.
  [[nodiscard]] static bool in_use(const std::filesystem::path& file);

  // Returns false if the log could not be written, as on a full disk.
  bool append(bool added, const std::string& host);

 private:
  bool write(const std::string& text) {
    return ::write(fd_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  std::filesystem::path file_;
  io::Descriptor fd_;
  std::int64_t next_ = 0;
};

}  // namespace tutti::launch
