// SPDX-License-Identifier: MIT
// header-only
// Tests parts of tutti-report: the reduction of many rows, the reading of a log, and the contents of a page.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/json/json.hpp>

#include "../../tools/report/lines.hpp"
#include "../../tools/report/options.hpp"
#include "../../tools/report/page.hpp"
#include "../../tools/report/read_evaluation.hpp"
#include "../../tools/report/read_log.hpp"
#include "../../tools/report/table.hpp"
#include "../data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::report_tool;
using namespace tutti::test;

namespace {

RunData run_of(const std::string& log) {
  const TempFolder folder;
  write_text(folder / "log.jsonl", log);
  RunData run;
  LogReader(run).read(folder / "log.jsonl");
  return run;
}

std::string step(int n, double loss, double seconds, int generation = 0) {
  io::Json line =
      io::Json::object({{"event", "step"}, {"epoch", 1}, {"step", n}, {"train_loss", loss}, {"seconds", seconds}});
  if (generation > 0) line.set("generation", generation);
  return io::write_json(line) + "\n";
}

const std::string begun = R"({"event":"start","version":"0.1.0","world":2,"options":{"lr":0.1}})"
                          "\n";

std::vector<double> column(const io::Json& reduced, const char* which) {
  std::vector<double> all;
  for (const io::Json& v : reduced.at(which).as_array()) all.push_back(v.is_null() ? none : v.as_double());
  return all;
}

}  // namespace

TEST_CASE("a few rows stay unchanged, and many rows are reduced to minimum and maximum") {
  CHECK(column(reduce({1, 2.5, 3}, 3), "mean") == std::vector<double>{1, 2.5, 3});
  CHECK(reduce({1, 2, 3}, 3).find("min") == nullptr);
  const io::Json r = reduce({1, 3, 5, 9, 4}, 2);  // a part of 3 rows and a part of 2 rows
  CHECK(column(r, "mean") == std::vector<double>{3, 6.5});
  CHECK(column(r, "min") == std::vector<double>{1, 4});
  CHECK(column(r, "max") == std::vector<double>{5, 9});
  // One peak among a hundred thousand values.
  std::vector<double> many(100'000, 1.0);
  many[54'321] = 70;
  many[99'999] = -3;
  const io::Json all = reduce(many, 800);
  double least = 0, greatest = 0;
  for (const double v : column(all, "min")) least = std::fmin(least, v);
  for (const double v : column(all, "max")) greatest = std::fmax(greatest, v);
  CHECK(column(all, "mean").size() == 800);
  CHECK(least == -3);
  CHECK(greatest == 70);
}

TEST_CASE("a value that is not a number makes a gap in the curve, and a column without numbers is left out") {
  const io::Json r = reduce({none, none, 2, 4}, 2);
  CHECK(r.at("mean").as_array()[0].is_null());
  CHECK(r.at("min").as_array()[0].is_null());
  CHECK(r.at("mean").as_array()[1] == io::Json(3));
  CHECK(reduce({none, none}, 2).is_null());
  CHECK(reduce(std::vector<double>{}, 2).is_null());
  CHECK(io::write_json(short_number(1.0 / 3)) == "0.333333");
  CHECK(io::write_json(short_number(123456789)) == "123456789");
  CHECK(short_number(INFINITY).is_null());
}

TEST_CASE("parts cover all rows in order, and the sizes of parts differ by at most one row") {
  for (const std::size_t n : {1U, 7U, 800U, 801U, 12345U}) {
    const std::size_t parts = n < 800 ? n : 800;
    std::size_t at = 0;
    for (std::size_t p = 0; p < parts; ++p) {
      const auto [begin, end] = part_of_rows(n, p, parts);
      CHECK(begin == at);
      CHECK((end - begin == n / parts || end - begin == n / parts + 1));
      at = end;
    }
    CHECK(at == n);
  }
}

TEST_CASE("no string of a run ends the script element, and each string is read back unchanged") {
  const io::Json hostile = io::Json::object({{"</script><script>alert(1)</script>", "<!-- <script> ]]> & \"'"},
                                             {"quote\"", "\xE2\x80\xA8line\xE2\x80\xA9 \x01 \n \\"}});
  const std::string text = json_for_script(hostile);
  for (const char c : {'<', '>', '&', '\n', '\x01'}) CHECK(text.find(c) == std::string::npos);
  CHECK(io::parse_json(text) == hostile);
  CHECK(html_text("<b a='1' c=\"2\">&\xFF") == "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;?");
}

TEST_CASE("placeholders of a page are filled once, and not inside filled text") {
  RunData r;
  r.name = "{{script}}\xFF";
  const std::string page =
      make_page({"<{{title}}|{{style}}|{{made}}|{{data}}|{{script}}|{{other}}{{", "css", "js {{data}}"}, {r},
                "{{style}}<", "now");
  CHECK(page.starts_with("<{{style}}&lt;|css|now|{"));
  CHECK(page.ends_with("|js {{data}}|{{other}}{{"));
  CHECK(contains(page, R"("name":"{{script}}?")"));
}

TEST_CASE("lines are numbered, long lines are cut, and a line without a newline is incomplete") {
  const TempFolder folder;
  const std::string file = folder / "lines";
  struct Line {
    std::string text;
    std::int64_t number;
    bool whole;
    bool operator==(const Line&) const = default;
  };
  const auto lines = [&](const std::string& text) {
    write_text(file, text);
    std::vector<Line> all;
    for_each_line(file, 5, [&](std::string_view t, std::int64_t n, bool whole) {
      all.push_back({std::string(t), n, whole});
    });
    return all;
  };
  CHECK(lines("").empty());
  CHECK(lines("a\n\n12345\n123456\nb") ==
        std::vector<Line>{{"a", 1, true}, {"", 2, true}, {"12345", 3, true}, {"12345", 4, false}, {"b", 5, false}});
  // The lines cross the boundaries of the reader's blocks.
  const auto many = lines(std::string(300'000, 'x') + "\n" + std::string(5, 'y') + "\n");
  CHECK(many == std::vector<Line>{{"xxxxx", 1, false}, {"yyyyy", 2, true}});
  CHECK_THROWS_AS(for_each_line(folder.path(), 5, [](std::string_view, std::int64_t, bool) {}), DataError);
}

TEST_CASE("steps that are repeated after a resume count once") {
  const RunData r = run_of(begun + step(1, 3, 1) + step(2, 2, 2) + step(3, 1, 3) + begun +
                           R"({"event":"resume","step":1,"epoch":1,"from":"x"})"
                           "\n" +
                           step(2, 2.5, 1) +
                           R"({"event":"end","status":"interrupted","step":2})"
                           "\n");
  CHECK(r.steps["step"] == std::vector<double>{1, 2});
  CHECK(r.steps["train_loss"] == std::vector<double>{3, 2.5});
  // The time of the second process is counted after that of the first one.
  CHECK(r.steps["time"] == std::vector<double>{1, 4});
  CHECK(r.resumed == std::vector<double>{1});
  CHECK(r.starts == 2);
  CHECK(r.status == "interrupted");
  CHECK(r.problems.empty());
  CHECK(r.notes.empty());
}

TEST_CASE("a run that starts again in a folder replaces the earlier run") {
  const RunData r = run_of(begun + step(1, 3, 1) + step(2, 2, 2) + begun + step(1, 5, 1));
  CHECK(r.steps["train_loss"] == std::vector<double>{5});
  CHECK(r.steps["time"] == std::vector<double>{1});
  CHECK(r.status == "running");
}

TEST_CASE("lines of a process that was removed from the job do not count") {
  const std::string change = R"({"event":"members","step":1,"ranks":3,"seconds":0.5,"batch":64,"generation":2})"
                             "\n";
  const RunData r = run_of(begun + step(1, 3, 10, 1) + change + step(2, 9, 11, 1) + step(2, 2, 4, 2));
  CHECK(r.steps["train_loss"] == std::vector<double>{3, 2});
  // Another process continues, with a clock that began later.
  CHECK(r.steps["time"] == std::vector<double>{10, 10});
  REQUIRE(r.changes.size() == 1);
  CHECK(r.changes[0].ranks == 3);
  CHECK(r.changes[0].time == 10);
  CHECK(r.changes[0].batch == 64);
}

TEST_CASE("each epoch has the k of its top-k accuracy") {
  const RunData r = run_of(
      begun + step(5, 1, 4) +
      R"({"event":"epoch","epoch":1,"step":5,"train_loss":1.5,"test_loss":null,"test_top1":0.5,"test_top3":0.75,)"
      R"("test_ema_loss":1.0,"test_ema_top1":0.6,"test_ema_top3":0.8,"seconds":6.0})"
      "\n");
  CHECK(r.top_k == "3");
  CHECK(r.epochs["test_topk"] == std::vector<double>{0.75});
  CHECK(r.epochs["test_ema_topk"] == std::vector<double>{0.8});
  CHECK(r.epochs["time"] == std::vector<double>{4});
  CHECK(std::isnan(r.epochs["test_loss"][0]));
}

TEST_CASE("the readable part of a damaged log is shown, and the rest is reported") {
  const RunData r = run_of(begun + step(1, 3, 1) + "{\"event\":\"step\",\"st\n" + "\xFF\xFE\n" +
                           R"({"event":"step","step":"two"})"
                           "\n"
                           R"({"event":"step","step":-1})"
                           "\n"
                           R"({"event":"step","step":7,"train_loss":[1]})"
                           "\n"
                           R"(["no object"])"
                           "\n"
                           R"({"event":"dance"})"
                           "\n" +
                           step(2, 2, 2) + "{\"event\":\"st");
  CHECK(r.steps["step"] == std::vector<double>{1, 2});
  REQUIRE(r.problems.size() == 1);
  CHECK(contains(r.problems[0], "6 lines of "));
  CHECK(contains(r.problems[0], "line 3"));
  REQUIRE(r.notes.size() == 2);
  CHECK(contains(r.notes[0], "the last line"));
  CHECK(contains(r.notes[1], "'dance'"));
}

TEST_CASE("a log of another version is read as far as possible, and options of any form are shown") {
  std::string deep = "1";
  for (int i = 0; i < 60; ++i) deep = "[" + deep + "]";
  const RunData r =
      run_of(R"({"event":"start","version":"9.9.9","options":{"a":)" + deep + R"(,"b":")" + std::string(5000, 'x') +
             R"("},"world":[[1]]})"
             "\n");
  REQUIRE(r.notes.size() == 1);
  CHECK(contains(r.notes[0], "written by tutti 9.9.9"));
  CHECK(r.problems.empty());
  CHECK(r.options.at("a").as_string() == deep);
  CHECK(r.options.at("b").as_string().size() == 1004);
  CHECK(r.facts.at("world").as_string() == "[[1]]");
  CHECK(io::parse_json(json_for_script(page_data(r, 10))).at("name").as_string().empty());
}

TEST_CASE("an evaluation is shown as written, or reported as damaged") {
  const TempFolder folder;
  const std::string file = folder / "evaluation.json";
  const io::Json good = io::parse_json(
      R"({"format":1,"epoch":2,"step":10,"averaged":true,"images":4,"classes":3,"class_names":["a","b","</script>"],)"
      R"("confusion":[0,0,2,0,2,1,2,1,1],"worst":[{"index":7,"label":0,"said":2,"loss":3.25,"sure":0.96,"png":"iVBORw0KGgo="},)"
      R"({"index":8,"label":2,"said":1,"loss":1.5,"sure":0.5,"png":"\"><script>"},{"index":9,"label":2,"said":1,"loss":1.5,"sure":0.5,"png":null}]})");
  const auto read = [&](const io::Json& json, std::size_t most = 24) {
    write_text(file, io::write_json(json));
    return read_evaluation(file, most);
  };
  const io::Json shown = read(good);
  for (const char* name : {"epoch", "step", "averaged", "images", "classes", "class_names", "confusion"})
    CHECK(shown.at(name) == good.at(name));
  const auto& worst = shown.at("worst").as_array();
  REQUIRE(worst.size() == 3);
  CHECK(worst[0].at("png").as_string() == "iVBORw0KGgo=");
  // A browser must not get a file that is not a picture.
  CHECK(worst[1].find("png") == nullptr);
  CHECK(worst[2].find("png") == nullptr);
  CHECK(read(good, 2).at("worst").as_array().size() == 2);
  io::Json no_matrix = good;
  no_matrix.set("confusion", nullptr).set("class_names", io::Json::array());
  CHECK(read(no_matrix).at("confusion").is_null());

  const auto refused = [&](const char* name, io::Json value, const char* says) {
    CAPTURE(name);
    io::Json bad = good;
    bad.set(name, std::move(value));
    CHECK_THROWS_WITH_AS((void)read(bad), doctest::Contains(says), DataError);
  };
  refused("format", 2, "expected format 1, got 2");
  refused("classes", -1, "classes");
  refused("classes", 2, "2 names, or no names");
  refused("class_names", io::Json::array({1, 2, 3}), "a string");
  refused("confusion", io::Json::array({0, 0}), "triples");
  refused("confusion", io::Json::array({0, 3, 1}), "from 0 to 2");
  refused("confusion", io::Json::array({0, 1, -1}), "from 0");
  refused("confusion", io::Json::array({0, 1, 1, 0, 1, 1}), "another order");
  refused("worst", io::Json::array({io::Json::object({{"index", 1}})}), "'label'");
  refused("images", "many", "an integer");
  const std::string whole = io::write_json(good);
  for (const std::size_t size : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
    write_text(file, whole.substr(0, size));
    CHECK_THROWS_AS((void)read_evaluation(file, 24), DataError);
  }
}

TEST_CASE("options of tutti-report are parsed, and invalid options are refused") {
  const Options o = parse_options({"--out=a.html", "--title", "T", "run", "--", "--odd"});
  CHECK(o.out == "a.html");
  CHECK(o.title == "T");
  CHECK(o.runs == std::vector<std::string>{"run", "--odd"});
  CHECK_THROWS_AS((void)parse_options({}), UsageError);
  CHECK_THROWS_AS((void)parse_options({"run", "--out"}), UsageError);
  CHECK_THROWS_AS((void)parse_options({"run", "--out="}), UsageError);
  CHECK_THROWS_AS((void)parse_options({"run", "--ou", "x"}), UsageError);
  CHECK_THROWS_AS((void)parse_options({""}), UsageError);
}
