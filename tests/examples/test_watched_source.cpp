// SPDX-License-Identifier: MIT
// Tests the progress output of an evaluation.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>

#include "tools/trainer/watched_source.hpp"

using namespace tutti;
using namespace tutti::trainer;

namespace {

struct Shown {
  double now = 0;
  bool first_rank = true;
  std::vector<std::string> lines{};

  WatchOptions options(bool terminal) {
    WatchOptions o;
    o.shows = [this] { return first_rank; };
    o.write = [this](const std::string& text) { lines.push_back(text); };
    o.clock = [this] { return now; };
    o.terminal = terminal;
    return o;
  }
};

std::unique_ptr<BatchSource> eighty_images() {
  const Synthetic images({.size = 80, .height = 4, .width = 4, .classes = 2});
  return std::make_unique<Loader>(
      images, LoaderOptions{.placement = {.global_batch = 10}, .shuffle = false, .one_pass = true, .threads = 0});
}

// Reads all batches, each of which takes this number of seconds.
void pass(WatchedSource& source, Shown& shown, double seconds) {
  source.start({0, 0});
  for (bool last = false; !last;) {
    last = source.next().last_of_epoch;
    shown.now += seconds;
  }
  source.release();
}

}  // namespace

TEST_CASE("a short evaluation prints no progress") {
  for (const bool terminal : {false, true}) {
    Shown shown;
    WatchedSource source(eighty_images(), shown.options(terminal));
    pass(source, shown, 0.3);
    CHECK(shown.lines.empty());
    CHECK(source.size() == 80);
  }
}

TEST_CASE("without a terminal, progress is printed as one line each half minute, separately for each pass") {
  Shown shown;
  WatchedSource source(eighty_images(), shown.options(false));
  pass(source, shown, 16);
  CHECK(shown.lines == std::vector<std::string>{"evaluating: 20/80 images, 0.6 images/s, left 1:36\n",
                                                "evaluating: 40/80 images, 0.6 images/s, left 1:04\n",
                                                "evaluating: 60/80 images, 0.6 images/s, left 32 s\n"});
  shown.lines.clear();
  pass(source, shown, 3);
  CHECK(shown.lines.empty());
}

TEST_CASE("on a terminal, progress is one line that is overwritten and finally removed") {
  Shown shown;
  WatchedSource source(eighty_images(), shown.options(true));
  pass(source, shown, 2);
  REQUIRE(shown.lines.size() == 7);
  CHECK(shown.lines.front() == "\revaluating: 20/80 images, 5.0 images/s, left 12 s\x1b[K");
  CHECK(shown.lines.back() == "\r\x1b[K");
}

TEST_CASE("only the first rank prints progress") {
  Shown shown;
  shown.first_rank = false;
  WatchedSource source(eighty_images(), shown.options(false));
  pass(source, shown, 40);
  CHECK(shown.lines.empty());
}
