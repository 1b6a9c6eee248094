// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <tutti/io/json/json.hpp>
#include <tutti/train/run_log.hpp>

#include "data/temp_folder.hpp"
#include "io/size_limit.hpp"

using namespace tutti;
using test::TempFolder;

namespace {

std::vector<io::Json> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<io::Json> list;
  for (std::string line; std::getline(in, line);) list.push_back(io::parse_json(line, path.string()));
  return list;
}

void no_complaint(const std::string& text) { FAIL(text); }

StepReport a_step(std::int64_t n) {
  StepReport r;
  r.epoch = 2;
  r.step = n;
  r.train_loss = 0.5;
  r.train_top1 = 0.25;
  r.images_per_second = 1000;
  r.lr = 0.1;
  return r;
}

EpochReport an_epoch() {
  EpochReport r;
  r.epoch = 2;
  r.step = 782;
  r.train_loss = 0.5;
  r.train_top1 = 0.25;
  r.test = EvaluationReport{0.75, 0.625, 0.9375, 10000, 5000};
  r.images_per_second = 1000;
  r.lr = 0.1;
  r.seconds = 50;
  return r;
}

}  // namespace

TEST_CASE("each event has its keys and is written immediately") {
  TempFolder folder;
  RunLog log(folder.path(), 5, no_complaint);
  log.start(io::Json::object({{"version", "1.2.3"}, {"options", io::Json::object({{"depth", 20}})}}));
  log.step(a_step(20));
  log.epoch(an_epoch());
  log.warning("bad bytes \xff");
  const auto lines = lines_of(folder / "log.jsonl");  // the log is still open
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].at("event").as_string() == "start");
  CHECK(lines[0].at("options").at("depth").as_integer() == 20);

  CHECK(lines[1].at("event").as_string() == "step");
  CHECK(lines[1].at("epoch").as_integer() == 2);
  CHECK(lines[1].at("step").as_integer() == 20);
  CHECK(lines[1].at("train_loss").as_double() == 0.5);
  CHECK(lines[1].at("train_top1").as_double() == 0.25);
  CHECK(lines[1].at("images_per_second").as_double() == 1000);
  CHECK(lines[1].at("lr").as_double() == 0.1);

  CHECK(lines[2].at("event").as_string() == "epoch");
  CHECK(lines[2].at("step").as_integer() == 782);
  CHECK(lines[2].at("test_loss").as_double() == 0.75);
  CHECK(lines[2].at("test_top1").as_double() == 0.625);
  CHECK(lines[2].at("test_top5").as_double() == 0.9375);
  CHECK(lines[2].at("seconds").as_double() == 50);
  CHECK(lines[2].find("test_ema_top1") == nullptr);

  CHECK(lines[3].at("message").as_string() == "bad bytes ?");
}

TEST_CASE("an evaluation by several views is logged, with averaged weights or without") {
  TempFolder folder;
  RunLog log(folder.path(), 5, no_complaint);
  const EvaluationReport e{0.75, 0.625, 0.9375, 10000, 5000};
  log.views({782, 6, false, e});
  log.views({783, 2, true, {std::nan(""), 0.5, 0.75, 10000, 5000}});
  const auto lines = lines_of(folder / "log.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("event").as_string() == "views");
  CHECK(lines[0].at("step").as_integer() == 782);
  CHECK(lines[0].at("views").as_integer() == 6);
  CHECK(lines[0].at("test_loss").as_double() == 0.75);
  CHECK(lines[0].at("test_top1").as_double() == 0.625);
  CHECK(lines[0].at("test_top5").as_double() == 0.9375);
  CHECK(lines[0].find("test_ema_top1") == nullptr);
  CHECK(lines[1].at("views").as_integer() == 2);
  CHECK(lines[1].at("test_ema_loss").is_null());
  CHECK(lines[1].at("test_ema_top1").as_double() == 0.5);
  CHECK(lines[1].at("test_ema_top5").as_double() == 0.75);
  CHECK(lines[1].find("test_top1") == nullptr);
}

TEST_CASE("values that were not measured are null") {
  TempFolder folder;
  RunLog log(folder.path(), 3, no_complaint);
  EpochReport r = an_epoch();
  r.train_loss = std::numeric_limits<double>::infinity();
  r.test.reset();
  log.epoch(r);
  r.test_ema = EvaluationReport{0.7, 0.65, 0.95, 10000, 5000};
  r.test = r.test_ema;
  r.test->loss = std::nan("");
  log.epoch(r);
  const auto lines = lines_of(folder / "log.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("train_loss").is_null());
  CHECK(lines[0].at("test_top1").is_null());
  CHECK(lines[0].at("test_top3").is_null());
  CHECK(lines[1].at("test_loss").is_null());
  CHECK(lines[1].at("test_ema_top1").as_double() == 0.65);
  CHECK(lines[1].at("test_ema_top3").as_double() == 0.95);
}

TEST_CASE("a resumed run appends, and half a line of a killed run is cut off") {
  TempFolder folder;
  { RunLog(folder.path(), 5, no_complaint).step(a_step(40)); }
  { std::ofstream(folder / "log.jsonl", std::ios::app) << R"({"event":"st)"; }
  {
    RunLog log(folder.path(), 5, no_complaint);
    log.resume(20, 1, "somewhere");
    log.step(a_step(21));
    log.ended({"interrupted", 21, "signal 2"});
  }
  const auto lines = lines_of(folder / "log.jsonl");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].at("step").as_integer() == 40);
  CHECK(lines[1] == io::Json::object({{"event", "resume"}, {"step", 20}, {"epoch", 1}, {"from", "somewhere"}}));
  CHECK(lines[2].at("step").as_integer() == 21);
  CHECK(lines[3] ==
        io::Json::object({{"event", "end"}, {"status", "interrupted"}, {"step", 21}, {"message", "signal 2"}}));
}

TEST_CASE("a resumed run ends with the scores of the best evaluation, also if it has no better one or none at all") {
  TempFolder folder;
  const auto evaluated = [](RunLog& log, std::int64_t step, bool best, std::vector<double> confusion) {
    Mistakes m;
    m.classes = 2;
    m.confusion = std::move(confusion);
    log.mistakes(m);
    EpochReport r = an_epoch();
    r.step = step;
    r.best = best;
    log.epoch(r);
  };
  const auto last = [&] { return lines_of(folder / "log.jsonl").back(); };
  {
    RunLog log(folder.path(), 5, no_complaint);
    log.name_classes({"cat", "dog"});
    evaluated(log, 10, true, {4, 0, 0, 4});
    evaluated(log, 20, false, {2, 2, 2, 2});
  }  // killed: its log has no last line
  for (const bool evaluates : {true, false}) {
    RunLog log(folder.path(), 5, no_complaint);
    log.continue_best(10);
    if (evaluates) evaluated(log, 30, false, {1, 3, 3, 1});
    log.ended({"finished", 30});
    CHECK(last().at("classes_step").as_integer() == 10);
    CHECK(last().at("classes_best").as_bool());
    CHECK(last().at("mean_f1").as_double() == 1);
    CHECK(last().at("classes").as_array()[1].at("class").as_string() == "dog");
  }
  // A better one replaces them. Scores of another step than that of the best checkpoint do not count.
  {
    RunLog log(folder.path(), 5, no_complaint);
    log.continue_best(10);
    evaluated(log, 40, true, {4, 0, 4, 0});
    log.ended({"finished", 40});
    CHECK(last().at("classes_step").as_integer() == 40);
  }
  RunLog log(folder.path(), 5, no_complaint);
  log.continue_best(10);
  evaluated(log, 50, false, {1, 3, 3, 1});
  log.ended({"finished", 50});
  CHECK(last().at("classes_step").as_integer() == 50);
  CHECK_FALSE(last().at("classes_best").as_bool());
  std::ofstream(folder / "classes.json") << "[]";
  RunLog(folder.path(), 5, no_complaint).continue_best(10);
  CHECK(last().at("event").as_string() == "warning");
}

TEST_CASE("a full disk is reported once, and complete lines remain") {
  TempFolder folder;
  std::vector<std::string> complaints;
  RunLog log(folder.path(), 5, [&](const std::string& c) { complaints.push_back(c); });
  log.step(a_step(1));
  {
    const test::SizeLimit limit(200);
    for (int i = 2; i < 6; ++i) log.step(a_step(i));
  }
  REQUIRE(complaints.size() == 1);
  CHECK(test::contains(complaints[0], "log.jsonl cannot be written"));
  CHECK(test::contains(complaints[0], "Training continues."));
  log.step(a_step(9));
  const auto lines = lines_of(folder / "log.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1].at("step").as_integer() == 9);
  {
    const test::SizeLimit limit(100);
    log.step(a_step(10));
  }
  CHECK(complaints.size() == 2);
}

TEST_CASE("a missing folder is an error") {
  TempFolder folder;
  CHECK_THROWS_AS(RunLog(folder / "no such folder", 5, no_complaint), io::FileError);
}

TEST_CASE("TensorBoard gets the curves of the log") {
  TempFolder folder;
  TensorboardLog log(folder.path(), no_complaint);
  log.step(a_step(20));
  StepReport on_gpu = a_step(40);
  on_gpu.gpu_utilisation = 0.5;
  log.step(on_gpu);
  log.epoch(an_epoch());
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
    std::ifstream in(entry.path(), std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    for (const char* tag :
         {"train/loss", "train/top1", "train/lr", "test/top1", "test/topk", "time/data_wait", "time/gpu_utilisation"})
      CHECK_MESSAGE(test::contains(text.str(), tag), tag);
  }
  CHECK(files == 1);
}

TEST_CASE("lines of a job with changing members have the generation and the whole batch") {
  TempFolder folder;
  RunLog log(folder.path(), 5, no_complaint, 3);
  StepReport r = a_step(20);
  r.global_batch = 64;
  log.step(r);
  log.members({20, 3, 0.5, 4, 96});
  r.global_batch = 96;
  log.step(r);
  const auto lines = lines_of(folder / "log.jsonl");
  REQUIRE(lines.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(lines[i].at("generation").as_integer() == (i == 0 ? 3 : 4));
    CHECK(lines[i].at("batch").as_integer() == (i == 0 ? 64 : 96));
  }
}
