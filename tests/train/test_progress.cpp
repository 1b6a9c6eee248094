// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include <tutti/train/progress.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;
using test::contains;

namespace {

// Returns the report of step `n` of a run with 3 epochs of 10 steps. The run began at second 0, and each step takes 2
// s.
StepReport at_step(std::int64_t n) {
  StepReport r;
  r.epoch = (n - 1) / 10 + 1;
  r.step = n;
  r.step_in_epoch = (n - 1) % 10 + 1;
  r.steps_per_epoch = 10;
  r.epochs = 3;
  r.train_loss = 1.25;
  r.train_top1 = 0.5;
  r.images_per_second = 640;
  r.lr = 0.1;
  r.data_wait = 0.07;
  r.seconds = 2.0 * static_cast<double>(n);
  return r;
}

// A progress display that writes to `out` and reads a clock that the test sets.
struct Screen {
  explicit Screen(bool terminal, std::size_t width = 200) : columns(width) {
    o.terminal = terminal;
    o.write = [this](std::string_view t) { out += t; };
    o.write_error = [this](std::string_view t) { error += t; };
    o.clock = [this] { return now; };
    o.columns = [this] { return columns; };
  }
  double now = 100;
  std::size_t columns;
  std::string out, error;
  ProgressOptions o;
};

}  // namespace

TEST_CASE("durations are printed in seconds, minutes, hours or days") {
  CHECK(format_duration(0) == "0 s");
  CHECK(format_duration(59.4) == "59 s");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(187) == "3:07");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(190000) == "2 d 4 h");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::nan("")) == "?");
  CHECK(format_duration(HUGE_VAL) == "?");
}

TEST_CASE("the time left is exact if all steps take equally long") {
  TimeEstimate e;
  const TimeLeft left = e.step(at_step(2));
  CHECK(left.epoch == doctest::Approx(16));
  CHECK(left.run == doctest::Approx(56));
  const TimeLeft later = e.step(at_step(5));
  CHECK(later.epoch == doctest::Approx(10));
  CHECK(later.run == doctest::Approx(50));
}

TEST_CASE("the time left includes evaluations") {
  TimeEstimate e;
  e.step(at_step(10));
  e.epoch_done(20 + 5);  // 20 s of training and 5 s of evaluation
  StepReport r = at_step(15);
  r.seconds = 35;
  const TimeLeft left = e.step(r);
  CHECK(left.epoch == doctest::Approx(10));
  CHECK(left.run == doctest::Approx(15 * 2 + 2 * 5));
}

TEST_CASE("the time left is not guessed after a resume, and max_steps shortens the time left") {
  TimeEstimate e(18);
  StepReport r = at_step(12);
  r.seconds = 3;  // this process has run for 3 s
  CHECK(e.step(r).run < 0);
  r.step += 2, r.step_in_epoch += 2, r.seconds += 4;
  const TimeLeft left = e.step(r);
  CHECK(left.run == doctest::Approx(8));
  CHECK(left.epoch == doctest::Approx(8));
}

TEST_CASE("the terminal's line has all values and fits the width") {
  const std::string line = progress_line(at_step(14), {12, 220}, 200);
  for (const char* part :
       {"epoch 2/3", "4/10", "640 images/s", "loss 1.2500", "top-1 50.00 %", "lr 0.1", "left: epoch 12 s, run 3:40"})
    CHECK_MESSAGE(contains(line, part), part, " in ", line);
  CHECK(progress_line(at_step(14), {12, 220}, 79) ==
        "2/3 4/10 640 im/s loss 1.250 top-1 50.0 % lr 0.1 left 12 s, 3:40");
  CHECK(progress_line(at_step(14), {12, 220}, 40).size() == 40);
  CHECK(progress_line(at_step(14), {12, 220}, 0).empty());
  CHECK_FALSE(contains(progress_line(at_step(14), {}, 200), "left"));
}

TEST_CASE("plain lines have all values") {
  const std::string line = step_line(at_step(14), {12, 220});
  for (const char* part : {"epoch 2 ", "step 4/10 (14)", "640.0 images/s", "loss 1.2500", "top-1 50.00 %", "lr 0.1",
                           "data wait 7 %", "left 3:40"})
    CHECK_MESSAGE(contains(line, part), part, " in ", line);
  StepReport of_workers = at_step(14);
  of_workers.step = 27;
  CHECK(contains(step_line(of_workers, {}), "step 4/10 (27 in all)"));
}

TEST_CASE("the epoch's line has all values") {
  EpochReport r;
  r.epoch = 2;
  r.epochs = 3;
  r.train_loss = 0.5;
  r.train_top1 = 0.8;
  r.images_per_second = 1234.5;
  r.lr = 0.02;
  r.seconds = 61;
  CHECK_FALSE(contains(epoch_line(r), "test"));
  CHECK_FALSE(contains(epoch_line(r), "compute"));
  r.data_wait = 0.07;
  CHECK(contains(epoch_line(r), "  data wait 7 %"));
  CHECK_FALSE(contains(epoch_line(r), "compute"));
  r.comm_wait = 0.0;
  CHECK(contains(epoch_line(r), "compute 93 % data wait 7 %"));
  CHECK_FALSE(contains(epoch_line(r), "communication"));
  r.comm_wait = 0.13;
  CHECK(contains(epoch_line(r), "compute 80 % data wait 7 % communication 13 %"));
  CHECK_FALSE(contains(epoch_line(r), "GPU"));
  r.gpu_utilisation = 0.94;
  CHECK(contains(epoch_line(r), "communication 13 % GPU 94 %"));
  r.comm_wait.reset();
  CHECK(contains(epoch_line(r), "  data wait 7 % GPU 94 %"));
  r.test = EvaluationReport{0.75, 0.7123, 0.99, 100, 1000};
  r.best = true;
  const std::string line = epoch_line(r, 5);
  for (const char* part :
       {"epoch 2/3", "train loss 0.5000 top-1 80.00 %", "test loss 0.7500 top-1 71.23 % top-5 99.00 %",
        "1234.5 images/s", "lr 0.02", "1:01", "best so far"})
    CHECK_MESSAGE(contains(line, part), part, " in ", line);
  CHECK(contains(epoch_line(r, 3), "top-3 99.00 %"));
  CHECK_FALSE(contains(line, "skipped"));
  r.skipped = 1;
  CHECK(contains(epoch_line(r), "  1 record skipped  best so far"));
  r.skipped = 12;
  CHECK(contains(epoch_line(r), "  12 records skipped"));
  r.test_ema = EvaluationReport{0.7, 0.7345, 0.99, 100, 1000};
  CHECK(contains(epoch_line(r), "averaged weights loss 0.7000 top-1 73.45 %"));
}

TEST_CASE("on a terminal the line is rewritten, at most ten times a second") {
  Screen s(true, 50);
  ProgressDisplay p(s.o);
  p.step(at_step(1));
  CHECK(s.out.starts_with("\r1/3 1/10 640"));
  CHECK(s.out.ends_with("\x1b[K"));
  CHECK(s.out.size() == 49 + 1 + 3);
  const std::string before = s.out;
  s.now += 0.05;
  p.step(at_step(2));
  CHECK(s.out == before);
  s.now += 0.06;
  p.step(at_step(3));
  CHECK(s.out.size() > before.size());
  CHECK_FALSE(contains(s.out, "\n"));

  EpochReport e;
  e.epoch = 1;
  p.epoch(e);
  CHECK(s.out.ends_with("\n"));
  s.out.clear();
  p.end_line();
  CHECK(s.out.empty());
}

TEST_CASE("a warning does not run into the terminal's line") {
  Screen s(true);
  {
    ProgressDisplay p(s.o);
    p.step(at_step(1));
    p.warning("the disk is full");
    CHECK(s.out.ends_with("\n"));
    CHECK(s.error == "warning: the disk is full\n");
    s.now += 1;
    p.step(at_step(2));
  }
  CHECK(s.out.ends_with("\n"));
}

TEST_CASE("without a terminal each progress report is a separate line") {
  Screen s(false);
  ProgressDisplay p(s.o);
  p.step(at_step(1));
  p.step(at_step(2));
  p.epoch({});
  CHECK(std::count(s.out.begin(), s.out.end(), '\n') == 3);
  CHECK_FALSE(contains(s.out, "\r"));
  CHECK_FALSE(contains(s.out, "\x1b"));
}
