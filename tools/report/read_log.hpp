// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/report/run_data.hpp"

namespace tutti::report_tool {

// Reads log.jsonl (train/run_log.hpp), line by line. What was done again after a resume or by a later generation counts
// once; a line that cannot be read is left out and counted.
class LogReader {
 public:
  explicit LogReader(RunData& run) : run_(run) {}

  void read(const io::Path& path);

 private:
  static constexpr std::size_t most_of_line = std::size_t{1} << 22, most_warnings = 50, most_resumes = 1000;

  // The number of that name; NaN for null and for none. DataError for anything else.
  [[nodiscard]] static double number(const io::Json& line, std::string_view name);
  // A value as the page shows it: what is long is cut, and what is no object of simple values becomes text.
  [[nodiscard]] static io::Json plain(const io::Json& v, bool members);
  [[nodiscard]] static double step_of(const io::Json& line);
  [[nodiscard]] static std::string text(const io::Json& line, std::string_view name);

  void line(const io::Json& l);

  void start(const io::Json& l);
  void resume(const io::Json& l);
  // A run that begins where another one has been.
  void begin_anew();

  // Seconds of training, of all processes one after the other, from those of the process that writes.
  [[nodiscard]] double time(double seconds);

  void step(const io::Json& l);
  void epoch(const io::Json& l);
  void members(const io::Json& l);
  void warning(std::string message);
  void end(const io::Json& l);

  RunData& run_;
  std::string where_, first_bad_, first_unknown_;
  std::int64_t bad_ = 0, unknown_ = 0, generation_ = 0;
  double began_at_ = 0;
  bool anew_ = false, told_version_ = false, follows_start_ = false;
};

}  // namespace tutti::report_tool
