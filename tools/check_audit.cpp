// SPDX-License-Identifier: MIT
// header-only
// Tells whether the audit of a run shows every sample once an epoch.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/io/file_error.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/version.hpp>

namespace {

using namespace tutti;
namespace fs = std::filesystem;

constexpr const char* help_text = R"(Tells whether the audit of a run (--audit) shows every sample once an epoch.

Usage: tutti-check-audit [OPTIONS] RUN...

RUN: a run's folder, on each host that has one of its own, or an audit file.
  --num-examples N   samples of an epoch  [what RUN/log.jsonl tells]
  --epochs N         so many must be whole  [all but the last, which may have been stopped]
Exit codes: 0 every sample once, 1 internal error, 2 usage, 3 a sample that is missing or was seen twice, a generation
that nobody has begun, a damaged file.
)";

struct Options {
  std::vector<std::string> runs;
  std::optional<std::int64_t> samples, epochs;
};

[[nodiscard]] Options parse(const std::vector<std::string>& words) {
  Options o;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i], value;
    if (!name.starts_with("-")) {
      o.runs.push_back(name);
      continue;
    }
    std::replace(name.begin(), name.end(), '_', '-');
    const std::size_t equals = name.find('=');
    name = name.substr(0, equals);
    if (name != "--num-examples" && name != "--epochs")
      fail<UsageError>("command line", "--num-examples, --epochs or a run", printable(words[i]),
                       "--help lists all options");
    if (equals == std::string::npos && i + 1 == words.size()) fail<UsageError>(name, "a value", "none");
    value = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error != std::errc{} || end != value.data() + value.size() || n < 1 || n > 0xFFFFFFFF)
      fail<UsageError>(name, "a number from 1 to 2^32 - 1", "'" + printable(value) + "'");
    (name == "--epochs" ? o.epochs : o.samples) = n;
  }
  if (o.runs.empty()) fail<UsageError>("command line", "a run's folder", "none", "--help says more");
  return o;
}

// As the last start of the run has it.
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
    fail<UsageError>("--num-examples", "how many samples an epoch has", o.samples ? std::to_string(*o.samples) : "none",
                     "log.jsonl tells, where it is there");
  std::sort(files.begin(), files.end());
  return files;
}

// Returns what is wrong; nothing where all is well.
[[nodiscard]] std::string check(std::int64_t epoch, const AuditResult& r, bool whole) {
  if (r.exactly_once() || (!whole && r.repeated == 0)) return "";
  std::string list;
  for (const std::int64_t i : r.examples) list.append(list.empty() ? "" : ", ").append(std::to_string(i));
  return "epoch " + std::to_string(epoch) + ": " + std::to_string(r.missing) + " missing, " +
         std::to_string(r.repeated) + " seen again (" + list + (r.examples.size() == 8 ? ", ..." : "") + ")" +
         (r.where.empty() ? "" : ", " + r.where);
}

int run(const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), "--help") != words.end() ||
      std::find(words.begin(), words.end(), "-h") != words.end())
    return std::fputs(help_text, stdout) < 0 ? 1 : 0;
  if (std::find(words.begin(), words.end(), "--version") != words.end())
    return std::printf("tutti-check-audit of tutti %s\n", version) < 0 ? 1 : 0;
  Options o = parse(words);
  const std::vector<std::string> files = audits_of(o);
  const Audit audit(files, *o.samples);
  const std::set<std::int64_t> told = audit.epochs();
  const std::int64_t last = told.empty() ? 0 : *told.rbegin();
  const std::int64_t whole = o.epochs.value_or(last);  // epochs from 0
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
  if (!bad.empty()) fail<DataError>("audit", "every sample once an epoch", bad);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-check-audit",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
