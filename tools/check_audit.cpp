// SPDX-License-Identifier: MIT
// header-only
// Checks that the audit of a run shows every sample once in each epoch.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/io/file_error.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"

namespace {

using namespace tutti;
namespace fs = std::filesystem;

const command_line::Form form{
    .program = "tutti-check-audit",
    .title = "Checks that the audit of a run (--audit) shows every sample once in each epoch.",
    .usage = "tutti-check-audit [OPTIONS] RUN...",
    .notes = R"(RUN: the folder of a run (of each host, if hosts have folders of their own), or an audit file.
Exit codes: 0 every sample once, 1 internal error, 2 usage, 3 a sample is missing or was seen twice, a file begins with
an unknown generation, or a file is damaged.)",
    .expected = "--num-examples, --epochs or a run",
    .double_dash = false,
    .single_dash = false};

struct Options {
  std::string text{};  // text to print for --help or --version; otherwise empty
  std::vector<std::string> runs{};
  std::optional<std::int64_t> samples{}, epochs{};
};

[[nodiscard]] Options parse(std::vector<std::string> words) {
  // --help and --version take effect in any position.
  for (const char* first : {"--version", "-h", "--help"})
    if (std::find(words.begin(), words.end(), first) != words.end()) words.insert(words.begin(), first);
  constexpr std::int64_t most = 0xFFFFFFFF;
  Options o;
  auto line = command_line::read(words,
                                 {{"--num-examples", "N", command_line::integer(o.samples, 1, most, "a number"),
                                   "number of samples of an epoch  [from RUN/log.jsonl]", "Options"},
                                  {"--epochs", "N", command_line::integer(o.epochs, 1, most, "a number"),
                                   "number of epochs, from the first one, that must be complete  [all except the last, "
                                   "which may have been stopped]",
                                   "Options"}},
                                 form);
  o.text = line.text;
  o.runs = line.words;
  if (o.text.empty() && o.runs.empty()) fail<UsageError>("command line", "a run's folder", "none", "--help says more");
  return o;
}

// Returns the number of samples that the last start of the run recorded in its log.
[[nodiscard]] std::optional<std::int64_t> samples_of(const fs::path& run) {
  std::ifstream in(run / "log.jsonl");
  std::optional<std::int64_t> found;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"train_images\"") == std::string::npos) continue;
    const std::string where = (run / "log.jsonl").string();
    const io::Json json = io::parse_json(line, where);
    if (const io::Json* n = json.find("train_images")) found = n->as_integer(where);
  }
  return found;
}

[[nodiscard]] std::vector<std::string> audits_of(Options& o) {
  std::vector<std::string> files;
  for (const std::string& run : o.runs) {
    std::error_code error;
    if (fs::is_regular_file(run, error)) {
      files.push_back(run);
      continue;
    }
    if (!fs::is_directory(run, error))
      fail<DataError>(printable(run), "a run's folder or an audit file", fs::exists(run, error) ? "neither" : "none");
    fs::directory_iterator all(run, error);
    if (error) io::fail_file("list the folder", run, error.value());
    for (const auto& e : all)
      if (const std::string name = e.path().filename().string();
          name.starts_with("audit-rank") && name.ends_with(".txt"))
        files.push_back(e.path().string());
    if (!o.samples) o.samples = samples_of(run);
  }
  if (files.empty())
    fail<DataError>("audit", "audit-rank0.txt in " + printable(o.runs.front()), "none", "runs write it with --audit");
  if (!o.samples || *o.samples < 1 || *o.samples > 0xFFFFFFFF)
    fail<UsageError>("--num-examples", "the number of samples of an epoch",
                     o.samples ? std::to_string(*o.samples) : "none",
                     "it is read from log.jsonl if the run's folder has that file");
  std::sort(files.begin(), files.end());
  return files;
}

// Returns what is wrong with an epoch, or an empty text.
[[nodiscard]] std::string check(std::int64_t epoch, const AuditResult& r, bool whole) {
  if (r.exactly_once() || (!whole && r.repeated == 0)) return "";
  std::string list;
  for (const std::int64_t i : r.examples) list.append(list.empty() ? "" : ", ").append(std::to_string(i));
  return "epoch " + std::to_string(epoch) + ": " + std::to_string(r.missing) + " missing, " +
         std::to_string(r.repeated) + " seen again (" + list + (r.examples.size() == 8 ? ", ..." : "") + ")" +
         (r.where.empty() ? "" : ", " + r.where);
}

int run(const std::vector<std::string>& words) {
  Options o = parse(words);
  if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
  const std::vector<std::string> files = audits_of(o);
  const Audit audit(files, *o.samples);
  const std::set<std::int64_t> recorded = audit.epochs();
  const std::int64_t last = recorded.empty() ? 0 : *recorded.rbegin();
  const std::int64_t whole = o.epochs.value_or(last);  // the first `whole` epochs must be complete
  std::string bad;
  for (std::int64_t epoch = 0; epoch <= std::max(last, whole - 1); ++epoch) {
    const AuditResult r = audit.result(epoch);
    const std::string wrong = check(epoch, r, epoch < whole);
    std::string more = r.exactly_once() ? ", each once" : "";
    if (r.repeated > 0) more.append(", ").append(std::to_string(r.repeated)).append(" seen again");
    std::printf("epoch %lld: %lld of %lld samples%s\n", static_cast<long long>(epoch),
                static_cast<long long>(*o.samples - r.missing), static_cast<long long>(*o.samples), more.c_str());
    if (bad.empty()) bad = wrong;
  }
  if (!bad.empty()) fail<DataError>("audit", "every sample once in each epoch", bad);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-check-audit",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
