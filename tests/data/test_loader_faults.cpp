// SPDX-License-Identifier: MIT
// Tests loaders with a data set or options that cause errors, and with threads that stop early.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <tutti/data/loader.hpp>

#include "core/startable.hpp"
#include "loader_batches.hpp"
#include "temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("next() throws the exception of read(), and its message names the data set and the index") {
  for (const int threads : {0, 3})
    for (int kind = 0; kind < 4; ++kind) {
      Troubled data;
      data.bad = 37;
      data.kind = kind;
      LoaderOptions o = options_of(10, 0, 1, threads);
      o.shuffle = false;
      Loader loader(data, o);
      for (int i = 0; i < 3; ++i) CHECK(loader.next().labels[0] == 10 * i);
      const auto message = message_of<Error>([&] { (void)loader.next(); });
      CHECK(contains(message, "sample 37 of tiny"));
      CHECK(contains(message, kind == 0 ? "garbage" : kind == 1 ? "boom" : kind == 2 ? "exception" : "remote store"));
      if (kind == 0) CHECK_THROWS_AS((void)loader.next(), DataError);
      if (kind == 3) {
        int code = 0;
        try {
          (void)loader.next();
        } catch (const Error& e) {
          code = e.exit_code();
        }
        CHECK(code == 5);
      }
      loader.start({0, 50});
      CHECK(loader.next().labels[0] == 50);
    }
}

TEST_CASE("the error for a damaged record says how to continue") {
  Troubled data;
  data.bad = 3;
  const auto message = [&](int kind, const std::string& hint) {
    data.kind = kind;
    LoaderOptions o = options_of(10, 0, 1, 0);
    if (!hint.empty()) o.bad_record_hint = hint;
    Loader loader(data, o);
    return message_of<Error>([&] { (void)loader.next(); });
  };
  CHECK(message(0, "").ends_with("garbage. hint: LoaderOptions::skip_bad_records continues without the record."));
  CHECK(message(0, "--on-bad-record skip").ends_with("garbage. hint: --on-bad-record skip."));
  CHECK(!contains(message(1, ""), "hint"));  // not a DataError: an error in the program, so there is no hint
}

TEST_CASE("unreadable samples are skipped on request and keep their position") {
  Troubled data;
  data.several = {3, 4, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 29, 55};
  const auto options = [&](int threads) {
    LoaderOptions o = options_of(10, 0, 1, threads);
    o.shuffle = false;
    o.skip_bad_records = true;
    return o;
  };
  Loader plain(data, options(0));
  std::vector<Copy> expected;
  std::vector<std::int64_t> skipped;
  for (int i = 0; i < 10; ++i) {
    const Batch& b = plain.next();
    expected.push_back(copy_of(b));
    skipped.push_back(b.skipped);
    CHECK(b.count == 10);
    CHECK(b.global_count == 10);
  }
  CHECK(skipped == std::vector<std::int64_t>{3, 10, 1, 0, 0, 1, 0, 0, 0, 0});
  CHECK(plain.skipped() == 15);
  const auto image = [&](std::size_t batch, std::size_t row) { return int{expected[batch].images[75 * row + 74]}; };
  CHECK(expected[0].labels == std::vector<std::int32_t>{0, 1, 2, -1, -1, 5, 6, 7, 8, -1});
  CHECK(image(0, 3) == 5);
  CHECK(image(0, 4) == 5);
  CHECK(image(0, 9) == 0);
  CHECK(expected[1].labels == std::vector<std::int32_t>(10, ignored_label));
  CHECK(std::ranges::count(expected[1].images, 0) == 750);
  CHECK(image(2, 9) == 20);
  CHECK(expected[5].labels[5] == ignored_label);
  CHECK(image(5, 5) == 56);
  const auto messages = plain.take_skip_messages();
  REQUIRE(messages.size() == 3 + 8 + 1 + 1);  // at most 8 messages per batch
  CHECK(contains(messages[0], "sample 3 of tiny"));
  CHECK(contains(messages[0], "garbage"));
  CHECK(contains(messages[3], "sample 10 "));
  CHECK(contains(messages.back(), "sample 55 "));
  CHECK(plain.take_skip_messages().empty());
  for (const int threads : {1, 3}) {
    Loader loader(data, options(threads));
    CHECK(take(loader, 10) == expected);
    CHECK(loader.skipped() == 15);
    CHECK(loader.take_skip_messages() == messages);
    for (int i = 0; i < 100; ++i) (void)loader.next();  // ten more epochs
    CHECK(loader.skipped() == 15 * 11);
    CHECK(loader.take_skip_messages().size() == 64);
  }
  // An exception that is not a DataError remains an error, even if a bad record was skipped before it.
  data.bad = 5;
  for (const int kind : {1, 2, 3})
    for (const int threads : {0, 2}) {
      data.kind = kind;
      Loader loader(data, options(threads));
      CHECK(contains(message_of<Error>([&] { (void)loader.next(); }), "sample 5 of tiny"));
    }
}

TEST_CASE("a loader can be stopped at any time") {
  for (int i = 0; i < 20; ++i) {
    Troubled data;
    data.milliseconds = 1;
    Loader loader(data, options_of(64, 0, 1, 1 + i % 4));
    if (i % 2 != 0) loader.start({0, i});
    if (i % 4 == 3) CHECK(loader.next().count > 0);
  }
  // This loader is never started.
  const Loader idle(numbered(5), options_of(2, 0, 1, 3));
}

TEST_CASE("the loader reads no more batches in advance than it has slots") {
  Troubled data;
  LoaderOptions o = options_of(10, 0, 1, 2);
  o.slots = 3;
  Loader loader(data, o);
  (void)loader.next();
  for (int i = 0; i < 200 && data.reads->load() < 30; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(data.reads->load() == 30);  // one batch in use, two batches read ahead
  loader.release();
  for (int i = 0; i < 200 && data.reads->load() < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(data.reads->load() == 40);
}

TEST_CASE("the loader reports the time of waiting for data") {
  Troubled data;
  data.milliseconds = 2;
  Loader loader(data, options_of(10, 0, 1, 1));
  CHECK(loader.seconds_waited() == 0);
  (void)loader.next();
  CHECK(loader.seconds_waited() >= 0.015);
}

TEST_CASE("invalid options are refused") {
  const auto build = [](auto change) {
    LoaderOptions o;
    change(o);
    const Loader loader(numbered(5), o);
  };
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.threads = -1; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.slots = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.group = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.placement.global_batch = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.placement.rank = 1; }), UsageError);
  CHECK_THROWS_AS(Loader(numbered(0), {}), DataError);
}

TEST_CASE("if the threads cannot be started, the error says so") {
  for (int n : {0, 2}) {
    const testing::Startable limit(n);
    CHECK_THROWS_AS(Loader(numbered(5), options_of(2, 0, 1, 3)), DeviceError);
  }
}
