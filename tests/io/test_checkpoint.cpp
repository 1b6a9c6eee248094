// SPDX-License-Identifier: MIT
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <tutti/io/checkpoint/checkpoint.hpp>

#include "../core/end_process.hpp"
#include "../data/temp_folder.hpp"
#include "checkpoint_state.hpp"
#include "size_limit.hpp"

using namespace tutti::io;
using tutti::DataError;
using tutti::UsageError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::save;
using tutti::test::SizeLimit;
using tutti::test::State;
using tutti::test::TempFolder;
using tutti::test::write_text;

namespace {

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> out;
  for (const auto& e : std::filesystem::directory_iterator(folder)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("a saved checkpoint is loaded bit by bit") {
  const TempFolder run;
  CheckpointStore store(run.path());
  CHECK(store.list().empty());
  CHECK_FALSE(store.load_newest_valid().has_value());
  const Path path = save(store, 7);
  CHECK(path == run.path() / "checkpoints" / "step-000000007");
  CHECK(names_in(path) ==
        std::vector<std::string>{"COMPLETE", "manifest.json", "model.safetensors", "optimizer.safetensors"});
  auto first = store.load(path);
  const LoadedCheckpoint loaded = std::move(first);
  CHECK(loaded.path() == path);
  CHECK(State(7, 100).difference(loaded) == "");
  CHECK(State(8, 100).difference(loaded) != "");
  CHECK(store.list() == std::vector<Path>{path});
}

TEST_CASE("the newest checkpoints and the best are kept") {
  const TempFolder run;
  CheckpointStore store(run.path(), 2);
  const auto steps = [&] {
    std::vector<std::int64_t> out;
    for (const auto& p : store.list()) out.push_back(store.load(p).step());
    return out;
  };
  for (const std::int64_t s : {1, 2, 3}) save(store, s);
  CHECK(steps() == std::vector<std::int64_t>{3, 2});
  CHECK_FALSE(store.load_best().has_value());
  CHECK_FALSE(store.best_metric().has_value());
  store.mark_best(2, 0.5);
  for (const std::int64_t s : {4, 5}) save(store, s);
  CHECK(steps() == std::vector<std::int64_t>{5, 4, 2});
  CHECK(store.load_best()->step() == 2);
  CHECK(store.best()->metric == 0.5);
  CHECK(store.best_metric() == 0.5);
  store.mark_best(5, 0.75);
  for (const std::int64_t s : {6, 1000000000}) save(store, s);
  CHECK(steps() == std::vector<std::int64_t>{1000000000, 6, 5});
  CHECK(names_in(store.folder()) ==
        std::vector<std::string>{"best.json", "step-000000005", "step-000000006", "step-1000000000"});
  CHECK_THROWS_AS(store.mark_best(77, 1), UsageError);
  CHECK_THROWS_AS(store.mark_best(5, std::nan("")), UsageError);
  CHECK_THROWS_AS(CheckpointStore(run.path(), 0), UsageError);
  CHECK_THROWS_AS(save(store, -1), UsageError);
}

TEST_CASE("a step that was just saved is kept, even if checkpoints of later steps exist") {
  const TempFolder run;
  CheckpointStore store(run.path(), 1);
  save(store, 9);
  const Path path = save(store, 5);
  CHECK(path_exists(path));
  CheckpointStore(run.path(), 2).discard_newer_than(5);
  CHECK(store.list() == std::vector<Path>{path});
}

TEST_CASE("a step can be saved again") {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 5, 10);
  const Path path = save(store, 5, 20);
  CHECK(State(5, 20).difference(store.load(path)) == "");
  CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000005"});

  // A process was killed between the two renames: the earlier checkpoint exists under its other name.
  const Path old = store.folder() / "step-000000005.old";
  rename_path(path, old);
  CHECK(State(5, 20).difference(*store.load_newest_valid()) == "");
  store.mark_best(5, 1);
  CHECK(store.load_best()->step() == 5);
  save(store, 5, 30);
  CHECK(State(5, 30).difference(*store.load_newest_valid()) == "");
  CHECK_FALSE(path_exists(old));

  // A damaged checkpoint is removed, and does not replace the valid one next to it.
  std::filesystem::copy(path, old, std::filesystem::copy_options::recursive);
  std::filesystem::remove(path / "COMPLETE");
  CHECK(State(5, 30).difference(*store.load_newest_valid()) == "");
  save(store, 5, 40);
  CHECK(State(5, 40).difference(*store.load_newest_valid()) == "");
  CHECK(names_in(store.folder()) == std::vector<std::string>{"best.json", "step-000000005"});
}

TEST_CASE("a failed save leaves only the earlier checkpoint") {
  const TempFolder run;
  CheckpointStore store(run.path());
  const Path first = save(store, 1);
  const auto untouched = [&] {
    CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000001"});
    CHECK(State(1, 100).difference(*store.load_newest_valid()) == "");
  };
  SUBCASE("a limit on file sizes") {
    const SizeLimit limit(10000);
    CHECK_THROWS_AS(save(store, 2, 100000), FileError);
  }
  SUBCASE("the same step again, with a limit on file sizes") {
    const SizeLimit limit(10000);
    CHECK_THROWS_AS(save(store, 1, 100000), FileError);
  }
  SUBCASE("options that JSON cannot represent") {
    const State state(2, 100);
    auto data = state.data();
    data.options.set("lr", std::nan(""));
    CHECK_THROWS_AS(store.save(data), UsageError);
  }
  SUBCASE("the same tensor twice") {
    const State state(2, 100);
    auto data = state.data();
    data.optimizer.push_back(data.optimizer[0]);
    CHECK_THROWS_AS(store.save(data), UsageError);
  }
  untouched();
  save(store, 2);
  CHECK(path_exists(first));
}

TEST_CASE("a save into a folder without write permission fails and leaves the earlier checkpoint") {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 1);
  ::chmod(run.path().c_str(), 0755);
  ::chmod(store.folder().c_str(), 0555);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) {
    std::cout << "SKIP: root may write everywhere, and there is no other user to be\n";
    return;
  }
  const std::string message = message_of<FileError>([&] { save(store, 2); });
  if (user == 0) REQUIRE(::seteuid(0) == 0);
  CHECK(contains(message, "to make the folder " + (store.folder() / "step-000000002").string()));
  CHECK(contains(message, "Permission denied. hint: give this user access"));
  ::chmod(store.folder().c_str(), 0755);
  CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000001"});
  CHECK(State(1, 100).difference(*store.load_newest_valid()) == "");
}

TEST_CASE("a save on a full disk fails and leaves the earlier checkpoint") {
  const TempFolder run;
  if (::mount("tmpfs", run.path().c_str(), "tmpfs", 0, "size=128k") != 0) {
    std::cout << "SKIP: no right to mount a small disk: " << std::strerror(errno) << '\n';
    return;
  }
  struct Unmount {
    Path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } const unmount{run.path()};
  CheckpointStore store(run.path(), 1);
  save(store, 1, 1000);
  try {
    save(store, 2, 100000);
    FAIL("it was saved");
  } catch (const FileError& e) {
    CHECK(e.error_number() == ENOSPC);
    CHECK(contains(e.what(), "to write " + (store.folder() / "step-000000002" / "model.safetensors").string()));
    CHECK(contains(e.what(), "bytes free"));
  }
  CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000001"});
  CHECK(State(1, 1000).difference(*store.load_newest_valid()) == "");
  save(store, 2, 1000);
  CHECK(State(2, 1000).difference(*store.load_newest_valid()) == "");
}

TEST_CASE("the next save removes the files of a killed process") {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 1);
  const Path left =
      store.folder() / (".tmp-step-000000002@" + detail::host_name() + "@" + std::to_string(::getpid()) + ".99999");
  write_text(left / "model.safetensors", "half");
  CHECK(store.list().size() == 1);
  save(store, 2);
  CHECK_FALSE(path_exists(left));
}

namespace {

Path save_in(CheckpointStore& store, std::int64_t generation, std::int64_t step) {
  const State state(step, 100);
  CheckpointData data = state.data();
  data.generation = generation;
  return store.save(data);
}

struct EvictedMember : std::exception {};

// Runs f in another process. Files that f leaves are removed like those of any process that has ended.
template <class F>
void in_another_process(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      f();
      tutti::testing::end_process(0);
    } catch (...) {
      tutti::testing::end_process(1);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

}  // namespace

TEST_CASE("names of checkpoints are parsed") {
  for (const char* name : {"step-000000007", "step-012345678", "step-123456789", "step-000000007.g3",
                           "step-000000007.old", "step-000000007.g3.old", "step-1234567890.g12"}) {
    CAPTURE(name);
    REQUIRE(CheckpointName::parse(name).has_value());
    CHECK(CheckpointName::parse(name)->text() == name);
  }
  for (const char* name : {"step-7", "step-000000007.g0", "step-000000007.g", "step-000000007.g-1",
                           "step-000000007.g3x", "step-000000007.old.g3", "step-000000007.g03", "step-", "best.json"}) {
    CAPTURE(name);
    CHECK_FALSE(CheckpointName::parse(name).has_value());
  }
  CHECK(parse_best_name("best.json") == 0);
  CHECK(parse_best_name("best.g7.json") == 7);
  for (const char* name : {"best.g.json", "best.g0.json", "best.g7", "best"})
    CHECK_FALSE(parse_best_name(name).has_value());
  CHECK(GenerationBegin::parse("generation-3-behind-42")->step == 42);
  for (const char* name : {"generation-3", "generation-3-behind-", "generation-3-behind-4x", "generation--behind-4"})
    CHECK_FALSE(GenerationBegin::parse(name).has_value());
}

TEST_CASE("a writer that was stopped and evicted replaces no checkpoint after the writer continues") {
  const TempFolder run;
  CheckpointStore others(run.path(), 2);
  bool given_up = false;
  std::function<void()> meanwhile = [] {};
  CheckpointStore coordinator(run.path(), 1, [&] {
    if (given_up) throw EvictedMember{};
    std::exchange(meanwhile, [] {})();
  });
  coordinator.begin_generation(1, 0);
  save_in(coordinator, 1, 5);
  coordinator.mark_best(5, 0.5, 1);
  // The coordinator is paused between the check of its permission to write and the rename. Meanwhile other processes
  // save the same step and one more.
  meanwhile = [&] {
    in_another_process([&] {
      others.begin_generation(2, 10);
      save_in(others, 2, 10);
      others.mark_best(10, 0.75, 2);
      save_in(others, 2, 12);
    });
    given_up = true;
  };
  CHECK_THROWS_AS(save_in(coordinator, 1, 10), EvictedMember);
  // The coordinator has saved its own checkpoint next to theirs, but it does not count.
  CHECK(path_exists(others.folder() / "step-000000010.g1"));
  std::vector<std::string> list;
  for (const Path& c : others.list()) list.push_back(c.filename().string());
  CHECK(list ==
        std::vector<std::string>{"step-000000012.g2", "step-000000010.g2", "step-000000010.g1", "step-000000005.g1"});
  CHECK(others.best()->metric == 0.75);
  CHECK(others.load_best()->path() == others.folder() / "step-000000010.g2");
  CHECK_THROWS_AS(coordinator.mark_best(10, 0.9, 1), EvictedMember);
  CHECK(others.best()->metric == 0.75);
  save_in(others, 2, 14);
  CHECK(names_in(others.folder()) == std::vector<std::string>{"best.g2.json", "generation-2-behind-10",
                                                              "step-000000010.g2", "step-000000012.g2",
                                                              "step-000000014.g2"});

  // The other processes began their generation one step earlier and repeated the step, so the coordinator's checkpoint
  // belongs to another history.
  given_up = false;
  others.begin_generation(3, 14);
  meanwhile = [&] { given_up = true; };
  CHECK_THROWS_AS(save_in(coordinator, 2, 15), EvictedMember);
  CHECK(path_exists(others.folder() / "step-000000015.g2"));
  CHECK(others.load_newest_valid()->path() == others.folder() / "step-000000014.g2");
  CHECK(others.best()->metric == 0.75);
  CHECK(others.latest_generation() == 3);
  save_in(others, 3, 16);
  CHECK_FALSE(path_exists(others.folder() / "step-000000015.g2"));
  // A run without generations starts from the beginning.
  others.forget_generations();
  CHECK(others.load_newest_valid()->step() == 16);
  others.discard_newer_than(12);
  CHECK(others.load_newest_valid()->step() == 10);
  others.discard_newer_than(0);
  CHECK_FALSE(others.best().has_value());
}
