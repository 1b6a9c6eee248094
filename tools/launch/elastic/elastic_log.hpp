// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <tutti/io/file.hpp>

namespace tutti::launch {

// The log of who came and went, a line "SEQ ADDED|REMOVED HOST TIME_NS" each, appended once it has happened. The
// numbers go on where an earlier job ended. Whoever has it open has the folder: no second job writes there.
class MembershipLog {
 public:
  explicit MembershipLog(const std::filesystem::path& file);
  // Is there a job that has the log open?
  [[nodiscard]] static bool in_use(const std::filesystem::path& file);

  // False where it could not be written, as on a full disk.
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
