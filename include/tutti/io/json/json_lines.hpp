// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <tutti/io/append_file.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::io {

// Appends JSON values to a file, one on each line. Each value is a single write, so that a concurrent reader sees
// complete lines. The constructor removes an incomplete line that a killed program left at the end. Throws FileError if
// a line cannot be written. The lines before it stay, and the caller may try again.
class JsonLines {
 public:
  explicit JsonLines(Path path) : file_(std::move(path), AppendFile::Mode::continue_file) {
    file_.cut_after_last('\n');
  }

  void write(const Json& value) { file_.append(write_json(value) + "\n"); }
  void sync() { file_.sync(); }
  [[nodiscard]] const Path& path() const noexcept { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace tutti::io
