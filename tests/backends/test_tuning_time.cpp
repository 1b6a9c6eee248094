// SPDX-License-Identifier: MIT
// Tests when kernels of libraries are timed: the limit of time, stored results, and processes that share them. The
// tests give the time.
#include <tutti/backends/cuda/cudnn/tuning_time.hpp>

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/end_process.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;
using cuda::Tuning;
using cuda::TuningOptions;

namespace {

using Seconds = std::chrono::duration<double>;
constexpr TuningOptions limited{true, true, Seconds(20)}, unlimited{true, true, {}}, off{false, true, {}};

// A process's choices between kernels. Each measurement takes 8 seconds of a clock that only measurements move.
struct Process {
  Process(const std::filesystem::path& folder, TuningOptions o, std::string name = "one")
      : store(folder, "test", ".plan"), tuning(store, o, [this] { return now; }), name(std::move(name)) {}

  std::string choose(const std::string& key) {
    const auto restore = [&](const std::string& k) { return store.load(k); };
    const auto make = [&](bool measures) -> std::optional<std::string> {
      ++(measures ? measured : guessed);
      if (measures) now += Seconds(8);
      const std::string choice = name + (measures ? " measured" : " guessed");
      store.save(key + (measures ? " timed" : " guessed"), choice);
      return choice;
    };
    return *tuning.choose<std::string>(key + " timed", key + " guessed", restore, make);
  }

  io::TextStore store;
  Seconds now{5};
  Tuning tuning;
  std::string name;
  int measured = 0, guessed = 0;
};

}  // namespace

TEST_CASE("kernels are timed for the limited time, and a later run continues where an earlier one has stopped") {
  const test::TempFolder folder;
  {
    Process p(folder.path(), limited);
    for (const char* key : {"a", "b", "c", "d", "e"}) (void)p.choose(key);
    CHECK(p.measured == 3);  // the third began within 20 seconds
    CHECK(p.guessed == 2);
    CHECK(p.choose("d") == "one guessed");
    CHECK(p.guessed == 2);
  }
  // The guesses of earlier runs are older than the next run.
  for (const auto& f : std::filesystem::directory_iterator(folder.path()))
    std::filesystem::last_write_time(f.path(), std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  Process next(folder.path(), limited, "two");
  CHECK(next.choose("a") == "one measured");
  CHECK(next.choose("d") == "two measured");
  CHECK(next.choose("e") == "two measured");
  CHECK(next.measured == 2);
  CHECK(next.guessed == 0);
}

TEST_CASE("without a limit all kernels are timed, and with tuning off a guess is kept") {
  const test::TempFolder folder;
  Process none(folder.path(), off);
  CHECK(none.choose("a") == "one guessed");
  CHECK(none.choose("a") == "one guessed");
  CHECK(none.measured == 0);
  CHECK(none.guessed == 1);  // the second one is stored
  Process all(folder.path(), unlimited, "two");
  for (const char* key : {"a", "b", "c", "d", "e"}) CHECK(all.choose(key) == "two measured");
  // A stored measured choice is better than a guess, unless the caller must not depend on a measurement.
  CHECK(none.choose("a") == "two measured");
  Process fixed(folder.path(), {false, false, {}});
  CHECK(fixed.choose("a") == "one guessed");
}

TEST_CASE("for a limited time kernels are timed only if results are stored") {
  Process p({}, limited);
  CHECK(p.choose("a") == "one guessed");
  Process all({}, unlimited);
  CHECK(all.choose("a") == "one measured");
}

TEST_CASE("processes that share a folder choose the same, also if the time of one of them is over") {
  const test::TempFolder folder;
  Process first(folder.path(), limited), second(folder.path(), limited, "two");
  for (const char* key : {"a", "b", "c", "d", "e"}) {
    const std::string choice = first.choose(key);
    CHECK(second.choose(key) == choice);
  }
  CHECK(first.measured == 3);
  CHECK(second.measured == 0);
  CHECK(second.guessed == 0);
  CHECK(second.choose("f") == "two measured");
  CHECK(first.choose("f") == "two measured");
}

TEST_CASE("two processes that choose at the same time measure each key once and choose the same") {
  const test::TempFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Process p(folder.path(), unlimited, std::to_string(i));
      std::string all;
      for (int key = 0; key < 40; ++key) all += p.choose("key " + std::to_string(key)) + "\n";
      p.store.save("choices " + std::to_string(i), all);
      p.store.save("measured " + std::to_string(i), std::to_string(p.measured));
      testing::end_process(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  const io::TextStore store(folder.path(), "test", ".plan");
  const auto first = store.load("choices 0");
  REQUIRE(first);
  int measured = 0;
  for (int i = 0; i < 4; ++i) {
    CHECK(store.load("choices " + std::to_string(i)) == first);
    measured += std::stoi(store.load("measured " + std::to_string(i)).value_or("0"));
  }
  CHECK(measured == 40);
}
