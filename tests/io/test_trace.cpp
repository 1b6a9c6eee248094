// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/trace/trace_merge.hpp>
#include <tutti/io/trace/trace_recorder.hpp>

#include "../data/temp_folder.hpp"
#include "size_limit.hpp"

using namespace tutti;
using namespace tutti::io;
using tutti::test::TempFolder;

namespace {

std::vector<Json> events_of(const Path& file) { return parse_json(read_text_file(file, 1 << 24)).as_array(); }

std::vector<Json> spans_of(const Path& file, const std::string& lane = "") {
  std::vector<Json> found;
  for (const Json& e : events_of(file))
    if (e.at("ph").as_string() == "X" && (lane.empty() || e.at("cat").as_string() == lane)) found.push_back(e);
  return found;
}

// Writes a part as a process of another host would. `sums` are the beginnings and ends of its sums, by its own clock.
void write_part(const Path& file, int process, const std::string& boot, std::int64_t ahead,
                const std::vector<std::pair<double, double>>& sums, const std::string& rest = "]\n",
                const std::string& job = "a") {
  std::string text = "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(process) +
                     ",\"args\":{\"name\":\"rank\",\"job\":\"" + job + "\",\"boot\":\"" + boot +
                     "\",\"clock_ahead\":" + std::to_string(ahead) + "}},\n";
  for (std::size_t i = 0; i < sums.size(); ++i)
    text += write_json(Json::object({{"ph", "X"},
                                     {"cat", "communication"},
                                     {"name", "all_reduce step " + std::to_string(i + 1) + " bucket 0"},
                                     {"pid", process},
                                     {"tid", 1},
                                     {"ts", sums[i].first},
                                     {"dur", sums[i].second - sums[i].first}})) +
            ",\n";
  atomic_write_file(file, text + rest);
}

std::map<std::int64_t, std::vector<double>> begins_of(const Path& file) {
  std::map<std::int64_t, std::vector<double>> all;
  for (const Json& e : spans_of(file)) all[e.at("pid").as_integer()].push_back(e.at("ts").as_double());
  return all;
}

}  // namespace

TEST_CASE("spans are in the rows of their thread and lane, and can have any name") {
  const TempFolder folder;
  auto& recorder = TraceRecorder::start({.file = folder.path() / "t.json", .process = 3, .name = "rank 3"});
  {
    const Span outer(Lane::step, "step", {}, 1);
    const Span inner(Lane::compute, "conv", "a \"layer\"\\\n\xff", 8, detail_watcher);
    std::thread([] { const Span other(Lane::compute, "conv", std::string(200, 'x'), 8, detail_watcher); }).join();
    span_watcher.load()->over(Lane::communication, "push", 7, 1500);
  }
  recorder.close();
  { const Span after(Lane::step, "step", {}, 2); }
  const auto spans = spans_of(folder.path() / "t.json");
  REQUIRE(spans.size() == 3);
  std::map<std::string, std::int64_t> rows;
  for (const Json& e : spans) {
    CHECK(e.at("pid").as_integer() == 3);
    rows[e.at("name").as_string()] = e.at("tid").as_integer();
  }
  CHECK(rows.at("step") == 1);
  CHECK(rows.contains("conv a \"layer\"\\??"));
  CHECK(rows.contains("conv " + std::string(55, 'x')));
  CHECK(rows.at("conv a \"layer\"\\??") != rows.at("conv " + std::string(55, 'x')));
  int joined = 0;
  for (const Json& e : events_of(folder.path() / "t.json"))
    if (e.find("id") != nullptr) joined += e.at("name").as_string() == "push";
  CHECK(joined == 2);
}

TEST_CASE("layers are recorded for whole steps only, up to the limit") {
  const TempFolder folder;
  auto& recorder = TraceRecorder::start({.file = folder.path() / "t.json", .most_details = 35});
  for (int step = 1; step <= 8; ++step) {
    const Span outer(Lane::step, "step", {}, step);
    for (int layer = 0; layer < 10; ++layer) const Span span(Lane::compute, "conv", {}, -1, detail_watcher);
  }
  recorder.close();
  CHECK(spans_of(folder.path() / "t.json", "compute").size() == 30);
  CHECK(spans_of(folder.path() / "t.json", "step").size() == 8);
  CHECK(recorder.details_end_at() == 3);
  CHECK(recorder.lost() == 0);
}

TEST_CASE("spans are recorded up to the limit, and spans of evaluations also beyond the limit") {
  const TempFolder folder;
  auto& recorder = TraceRecorder::start({.file = folder.path() / "t.json", .most_spans = 20});
  for (int step = 1; step <= 30; ++step) const Span span(Lane::step, "step", {}, step);
  { const Span span(Lane::evaluation, "evaluation"); }
  recorder.close();
  CHECK(spans_of(folder.path() / "t.json", "step").size() == 20);
  CHECK(spans_of(folder.path() / "t.json", "evaluation").size() == 1);
  CHECK(recorder.lost() == 10);
}

TEST_CASE("on a full disk the timeline ends with one warning, and training continues") {
  const TempFolder folder;
  const Path out = folder.path() / "out.json";
  std::vector<std::string> said;
  auto& recorder = TraceRecorder::start({.file = trace_part(out, "rank0"), .complain = [&](const std::string& text) {
                                           said.push_back(text);
                                           throw Error("nobody listens");
                                         }});
  {
    const test::SizeLimit limit(4096);
    for (int step = 1; step <= 200; ++step) const Span span(Lane::step, "step", {}, step);
    recorder.flush();
    recorder.flush();
  }
  CHECK(span_watcher.load() == nullptr);
  CHECK(detail_watcher.load() == nullptr);
  { const Span unseen(Lane::step, "step", {}, 201); }
  recorder.close();
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("the timeline ends here: ") == 0);
  CHECK(said[0].find("out.rank0.json") != std::string::npos);
  CHECK(said[0].find("Training continues.") != std::string::npos);
  // The part that was written is merged, like the part of a killed process.
  const auto merged = merge_traces(out, "");
  REQUIRE(merged.has_value());
  CHECK(merged->complaints.empty());
  const std::size_t steps = spans_of(out, "step").size();
  CHECK(steps > 0);
  CHECK(steps < 200);
}

TEST_CASE("a file that another process writes is refused") {
  const TempFolder folder;
  auto& first = TraceRecorder::start({.file = folder.path() / "t.json"});
  CHECK_THROWS_AS(TraceRecorder::start({.file = folder.path() / "t.json"}), UsageError);
  first.close();
}

TEST_CASE("the parts are merged after the last process has ended, not earlier") {
  const TempFolder folder;
  const Path out = folder.path() / "out.json";
  auto& a = TraceRecorder::start({.file = trace_part(out, "rank0"), .process = 0, .job = "j"});
  { const Span span(Lane::step, "step", {}, 1); }
  write_part(trace_part(out, "rank7"), 7, "elsewhere", 0, {{1, 2}}, "]\n", "another job");
  CHECK_FALSE(merge_traces(out, "j").has_value());
  CHECK_FALSE(path_exists(out));
  a.close();
  auto& b = TraceRecorder::start({.file = trace_part(out, "rank1"), .process = 1, .job = "j"});
  { const Span span(Lane::step, "step", {}, 1); }
  CHECK_FALSE(merge_traces(out, "j").has_value());
  b.close();
  REQUIRE(merge_traces(out, "j").value().processes == 2);
  CHECK(begins_of(out).size() == 2);
  CHECK_FALSE(path_exists(trace_part(out, "rank0")));
  CHECK(path_exists(trace_part(out, "rank7")));  // it belongs to another job
  // A process that starts after the other processes have ended is added too.
  auto& c = TraceRecorder::start({.file = trace_part(out, "rank2"), .process = 2, .job = "j"});
  { const Span span(Lane::step, "step", {}, 2); }
  c.close();
  CHECK(merge_traces(out, "j").value().processes == 3);
  CHECK(begins_of(out).size() == 3);
}

TEST_CASE("clocks of other hosts are shifted so that no rank leaves a reduction before all ranks have entered") {
  const TempFolder folder;
  const Path out = folder.path() / "out.json";
  // The recorded difference of the clocks is 50 ms, with which the sums agree.
  write_part(trace_part(out, "rank0"), 0, "a", 5'000'000, {{1000, 1100}, {2000, 2100}});
  write_part(trace_part(out, "rank1"), 1, "b", 4'950'000, {{51'040, 51'090}, {52'050, 52'110}});
  CHECK(merge_traces(out, "a").value().processes == 2);
  auto begins = begins_of(out);
  CHECK(begins[0] == std::vector<double>{1000, 2000});
  // Rank 1 enters the sums at 1040 and 2050.
  CHECK(begins[1] == std::vector<double>{1040, 2050});

  // The sums contradict a recorded difference of 10 ms: rank 0 would leave almost 40 ms before rank 1 enters.
  write_part(trace_part(out, "rank0"), 0, "a", 5'000'000, {{1000, 1100}, {2000, 2100}}, "]\n", "c");
  write_part(trace_part(out, "rank1"), 1, "b", 4'990'000, {{51'040, 51'090}, {52'050, 52'110}}, "]\n", "c");
  CHECK(merge_traces(out, "c").value().processes == 2);
  begins = begins_of(out);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(begins[1][i] <= begins[0][i] + 100);
    CHECK(begins[0][i] <= begins[1][i] + 60);
  }
}

TEST_CASE("the undamaged parts are merged") {
  const TempFolder folder;
  const Path out = folder.path() / "out.json";
  write_part(trace_part(out, "rank0"), 0, "a", 0, {{1, 2}}, "{\"ph\":\"X\",\"na");
  auto merged = merge_traces(out, "a");
  REQUIRE(merged.has_value());
  CHECK(merged->complaints.empty());  // the unfinished line of a killed process is no complaint
  CHECK(spans_of(out).size() == 1);
  write_part(trace_part(out, "rank1"), 1, "a", 0, {{1, 2}},
             "{\"ph\":7},\n[[[[\n{\"ph\":\"X\",\"ts\":\"x\"},\n" + std::string(1000, '{') + "\n");
  for (const char* text : {"", "[\n", "[\n{}\n", "[\n{\"ph\":\"M\",\"pid\":1,\"args\":3}\n", "\x7f\x45LF"})
    atomic_write_file(trace_part(out, "rank" + std::to_string(2 + std::string(text).size())), std::string(text));
  merged = merge_traces(out, "a");
  REQUIRE(merged.has_value());
  REQUIRE(merged->complaints.size() == 1);
  CHECK(merged->complaints[0].starts_with("4 events of"));
  CHECK(spans_of(out).size() == 2);
}
