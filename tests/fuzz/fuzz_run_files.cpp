// SPDX-License-Identifier: MIT
// Reads any bytes as the files of a run. From log.jsonl and evaluation.json, tutti-report makes a page. Its data must
// be valid JSON and small. The timeline of a process is merged into the timeline of its job.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/trace/trace_merge.hpp>

// Includes the report's code, so that the sanitizers instrument it.
#include "memory_file.hpp"
#include "tools/report/page.cpp"
#include "tools/report/read_evaluation.cpp"
#include "tools/report/read_log.cpp"
#include "tools/report/table.cpp"

namespace fuzz::run_files {

using namespace tutti;

void report(const std::string& path) {
  report_tool::RunData run;
  report_tool::LogReader(run).read(path);
  const std::size_t points = report_tool::points_of_each(1);
  for (const double step : run.steps["step"])
    if (!(step >= 0)) std::abort();
  try {
    run.evaluation = report_tool::read_evaluation(path, report_tool::images_of_each(1));
  } catch (const DataError&) {
  }
  const std::string text = report_tool::json_for_script(report_tool::page_data(run, points));
  if (text.find_first_of("<>&") != std::string::npos) std::abort();
  (void)io::parse_json(text, "the page");
}

void timeline(const std::string& path) {
  io::MergedTrace about;
  const auto part = io::detail::read_trace(path, "job", about);
  if (!part) return;
  for (const auto& [name, times] : io::detail::sums_of({&*part})) (void)times;
  (void)io::detail::clock_shift({&*part}, {&*part});
}

int run(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile file({data, size});
  report(file.path());
  timeline(file.path());
  return 0;
}

}  // namespace fuzz::run_files
