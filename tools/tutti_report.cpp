// SPDX-License-Identifier: MIT
// header-only
// Makes an HTML page from the files of runs, see report/options.hpp.
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/train/run_log.hpp>

#include "report_page.hpp"
#include "tools/report/options.hpp"
#include "tools/report/page.hpp"
#include "tools/report/read_run.hpp"

namespace {

using namespace tutti;
using namespace tutti::report_tool;

[[nodiscard]] std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  char text[64] = "";
  if (::gmtime_r(&t, &utc) != nullptr) (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

[[nodiscard]] std::string title_of(const Options& o, const std::vector<RunData>& runs) {
  if (!o.title.empty()) return o.title;
  std::string names;
  for (std::size_t i = 0; i < runs.size() && i < 3; ++i) names += (i > 0 ? ", " : "") + runs[i].name;
  return names + (runs.size() > 3 ? " and " + std::to_string(runs.size() - 3) + " more" : "");
}

int run(const std::vector<std::string>& words) {
  const Options o = parse_options(words);
  if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
  std::vector<RunData> runs;
  for (const std::string& r : o.runs) runs.push_back(read_run(r, images_of_each(o.runs.size())));
  tell_apart(runs);
  const std::string page = make_page({page_html, page_style, page_script}, runs, title_of(o, runs), now());
  if (o.out == "-") {
    if (std::fwrite(page.data(), 1, page.size(), stdout) != page.size() || std::fflush(stdout) != 0)
      fail<DataError>("--out", "a standard output that the page can be written to", "an error");
  } else {
    io::atomic_write_file(o.out, page);
    std::printf("%s: %zu %s, %.0f KB\n", o.out.c_str(), runs.size(), runs.size() == 1 ? "run" : "runs",
                static_cast<double>(page.size()) / 1000);
  }
  std::fflush(stdout);
  bool lacks = false;
  for (const RunData& r : runs) {
    for (const std::string& n : r.notes) std::fprintf(stderr, "tutti-report: %s: %s\n", r.name.c_str(), n.c_str());
    for (const std::string& p : r.problems) std::fprintf(stderr, "tutti-report: %s: %s\n", r.name.c_str(), p.c_str());
    lacks = lacks || !r.problems.empty();
  }
  return lacks ? static_cast<int>(ExitCode::data) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-report",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
