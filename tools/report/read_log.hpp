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

// Reads log.jsonl (train/run_log.hpp), line by line. Steps that were repeated after a resume, or by a later generation,
// count once. Lines that cannot be read are ignored and counted.
class LogReader {
 public:
  explicit LogReader(RunData& run) : run_(run) {}

  void read(const io::Path& path);

 private:
  static constexpr std::size_t most_of_line = std::size_t{1} << 22, most_warnings = 50, most_resumes = 1000,
                               most_shares = 1000;

  // Returns the number of that name, or NaN if it is null or missing. Throws DataError for other values.
  [[nodiscard]] static double number(const io::Json& line, std::string_view name);
  // Returns a value in the form that the page shows. Shortens long text. Turns every value into text, except an object
  // of simple values.
  [[nodiscard]] static io::Json plain(const io::Json& v, bool members);
  [[nodiscard]] static double step_of(const io::Json& line);
  [[nodiscard]] static std::string text(const io::Json& line, std::string_view name);

  void line(const io::Json& l);

  void start(const io::Json& l);
  void resume(const io::Json& l);
  // Drops all data that was read before: a new run begins in the same folder.
  void begin_anew();

  // Returns the seconds of training of all processes in sequence. `seconds` counts from the start of the process that
  // wrote the line.
  [[nodiscard]] double time(double seconds);

  void step(const io::Json& l);
  void epoch(const io::Json& l);
  void members(const io::Json& l);
  void shares(const io::Json& l);
  void warning(std::string message);
  void end(const io::Json& l);

  RunData& run_;
  std::string where_, first_bad_, first_unknown_;
  std::int64_t bad_ = 0, unknown_ = 0, generation_ = 0;
  double began_at_ = 0;
  bool anew_ = false, told_version_ = false, follows_start_ = false;
};

}  // namespace tutti::report_tool
