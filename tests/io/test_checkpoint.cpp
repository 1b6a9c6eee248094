// SPDX-License-Identifier: MIT
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <tutti/io/checkpoint.hpp>

#include "../data/temp_folder.hpp"
#include "checkpoint_state.hpp"
#include "size_limit.hpp"

using namespace tutti::io;
using tutti::DataError;
using tutti::UsageError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::SizeLimit;
using tutti::test::State;
using tutti::test::TempFolder;
using tutti::test::write_text;

namespace {

constexpr const char* file_names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json", "COMPLETE"};

Path save(CheckpointStore& store, std::int64_t step, std::size_t elements = 100) {
  const State state(step, elements);
  return store.save(state.data());
}

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> out;
  for (const auto& e : std::filesystem::directory_iterator(folder)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::string complaint(const Path& folder) {
  return message_of<DataError>([&] { (void)load_checkpoint(folder); });
}

// In place: replacing a file is slow where the file system then waits for the disk.
void change_byte(const Path& path, std::size_t at, unsigned flip) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  REQUIRE(byte >= 0);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(static_cast<unsigned>(byte) ^ flip));
}

// Writes manifest.json and a COMPLETE that fits it.
void write_manifest_text(const Path& folder, const std::string& text) {
  write_text(folder / "manifest.json", text);
  write_text(folder / "COMPLETE", crc_text(crc32c(text)) + "\n");
}

// Replaces model.safetensors and makes all checksums fit.
void replace_model(const Path& folder, const std::string& bytes) {
  write_text(folder / "model.safetensors", bytes);
  auto manifest = parse_manifest(read_text_file(folder / "manifest.json", 1 << 20), "manifest.json");
  manifest.model = {bytes.size(), crc32c(bytes)};
  write_manifest_text(folder, write_manifest(manifest));
}

void replace_in_manifest(const Path& folder, const std::string& from, const std::string& to) {
  std::string text = read_text_file(folder / "manifest.json", 1 << 20);
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  write_manifest_text(folder, text.replace(at, from.size(), to));
}

}  // namespace

TEST_CASE("what is saved is loaded, bit by bit") {
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

TEST_CASE("the newest are kept, and the best") {
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

TEST_CASE("a step that was just saved stays, also where later ones exist") {
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

  // A crash between the two renames: the earlier one is still there, under its other name.
  const Path old = store.folder() / "step-000000005.old";
  rename_path(path, old);
  CHECK(State(5, 20).difference(*store.load_newest_valid()) == "");
  store.mark_best(5, 1);
  CHECK(store.load_best()->step() == 5);
  save(store, 5, 30);
  CHECK(State(5, 30).difference(*store.load_newest_valid()) == "");
  CHECK_FALSE(path_exists(old));

  // A damaged one goes for good, and does not push out the one kept beside it.
  std::filesystem::copy(path, old, std::filesystem::copy_options::recursive);
  std::filesystem::remove(path / "COMPLETE");
  CHECK(State(5, 30).difference(*store.load_newest_valid()) == "");
  save(store, 5, 40);
  CHECK(State(5, 40).difference(*store.load_newest_valid()) == "");
  CHECK(names_in(store.folder()) == std::vector<std::string>{"best.json", "step-000000005"});
}

TEST_CASE("a flipped bit anywhere, and a truncation at any length, is found and named") {
  const TempFolder run;
  CheckpointStore store(run.path());
  const Path path = save(store, 3, 5);
  for (const char* name : file_names) {
    const auto whole = read_file<std::vector<std::uint8_t>>(path / name, 1 << 20);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      change_byte(path / name, i, 1U << (i % 8));
      REQUIRE_MESSAGE(contains(complaint(path), path.string()), name << " byte " << i);
      change_byte(path / name, i, 1U << (i % 8));
    }
    REQUIRE(complaint(path) == "");
    for (std::size_t n = whole.size(); n-- > 0;) {
      std::filesystem::resize_file(path / name, n);
      REQUIRE_MESSAGE(contains(complaint(path), path.string()), name << " cut at " << n);
    }
    tutti::test::write_file(path / name, whole);
    std::vector<std::uint8_t> longer = whole;
    longer.push_back('\n');
    tutti::test::write_file(path / name, longer);
    CHECK_MESSAGE(contains(complaint(path), name), name);
    tutti::test::write_file(path / name, whole);
    std::filesystem::remove(path / name);
    CHECK_MESSAGE(contains(complaint(path), std::string("a file ") + name + ", got none"), name);
    tutti::test::write_file(path / name, whole);
  }
  change_byte(path / "optimizer.safetensors", 100, 4);
  CHECK(contains(complaint(path), "optimizer.safetensors] expected the CRC-32C"));
}

TEST_CASE("damage behind fitting checksums is found as well") {
  const TempFolder run;
  CheckpointStore store(run.path());
  const Path path = save(store, 3, 5);
  const std::string model = read_text_file(path / "model.safetensors", 1 << 20);

  replace_model(path, std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10));
  CHECK(contains(complaint(path), "model.safetensors] expected a header of at most 100000000 bytes"));
  std::string wrong_shape = model;
  const auto at = wrong_shape.find("[5]");
  REQUIRE(at != std::string::npos);
  replace_model(path, wrong_shape.replace(at, 3, "[6]"));
  CHECK(contains(complaint(path), "model.safetensors tensor '"));
  CHECK(contains(complaint(path), "24 bytes"));
  replace_model(path, model);
  CHECK(complaint(path) == "");

  replace_in_manifest(path, "\"version\": 1", "\"version\": 2");
  CHECK(contains(complaint(path), "manifest.json] expected format version 1, got 2. hint: another version"));
  replace_in_manifest(path, "\"version\": 2", "\"version\": 1");
  replace_in_manifest(path, "\"step\": 3", "\"step\": 4");
  CHECK(contains(message_of<DataError>([&] { (void)store.load(path); }), "step 3 as its name says, got 4"));
  replace_in_manifest(path, "\"step\": 4", "\"step\": 3, \"else\": 0");
  CHECK(contains(complaint(path), "'else'"));
  replace_in_manifest(path, ", \"else\": 0", "");
  replace_in_manifest(path, "tutti-checkpoint", "other");
  CHECK(contains(complaint(path), "the format 'tutti-checkpoint'"));
  replace_in_manifest(path, "{", "");
  CHECK(contains(complaint(path), "manifest.json:"));
}

TEST_CASE("what is not a checkpoint's folder") {
  const TempFolder run;
  CheckpointStore store(run.path());
  CHECK(contains(message_of<DataError>([&] { (void)store.load(run / "none"); }), "none"));
  std::filesystem::create_directories(store.folder() / "step-000000001");
  write_text(store.folder() / "step-000000002", "a file");
  for (const char* other :
       {"step-1", "step-00000000x", "step--00000001", "step-0000000001", "steps", ".tmp-step-000000009@a@1.0"})
    std::filesystem::create_directories(store.folder() / other);
  CHECK(store.list() == std::vector<Path>{store.folder() / "step-000000002", store.folder() / "step-000000001"});
  std::vector<std::string> complaints;
  CHECK_FALSE(store.load_newest_valid(&complaints).has_value());
  CHECK(complaints.size() == 2);
}

TEST_CASE("the newest valid one is used, each bad one named") {
  const TempFolder run;
  CheckpointStore store(run.path(), 4);
  std::vector<Path> paths;
  for (const std::int64_t s : {1, 2, 3, 4}) paths.push_back(save(store, s));
  std::filesystem::remove(paths[3] / "COMPLETE");
  change_byte(paths[2] / "model.safetensors", 300, 1);
  std::vector<std::string> complaints;
  const auto loaded = store.load_newest_valid(&complaints);
  REQUIRE(loaded.has_value());
  CHECK(State(2, 100).difference(*loaded) == "");
  REQUIRE(complaints.size() == 2);
  CHECK(contains(complaints[0], paths[3].string()));
  CHECK(contains(complaints[0], "COMPLETE"));
  CHECK(contains(complaints[1], "model.safetensors"));
}

TEST_CASE("a damaged best.json is an error, and no reason to remove anything") {
  const TempFolder run;
  CheckpointStore store(run.path(), 1);
  save(store, 1);
  store.mark_best(1, 0.5);
  write_text(store.folder() / "best.json", "{\"step\":");
  CHECK_THROWS_AS((void)store.load_best(), DataError);
  CHECK(contains(message_of<DataError>([&] { save(store, 2); }), "is valid, but older ones stay"));
  CHECK(store.list().size() == 2);
  store.mark_best(2, 0.75);
  save(store, 3);
  CHECK(store.list().size() == 2);
}

TEST_CASE("a save that fails leaves the earlier checkpoint and nothing else") {
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
  SUBCASE("a limit on file sizes, the same step again") {
    const SizeLimit limit(10000);
    CHECK_THROWS_AS(save(store, 1, 100000), FileError);
  }
  SUBCASE("options that JSON cannot hold") {
    const State state(2, 100);
    auto data = state.data();
    data.options.set("lr", std::nan(""));
    CHECK_THROWS_AS(store.save(data), UsageError);
  }
  SUBCASE("a tensor twice") {
    const State state(2, 100);
    auto data = state.data();
    data.optimizer.push_back(data.optimizer[0]);
    CHECK_THROWS_AS(store.save(data), UsageError);
  }
  untouched();
  save(store, 2);
  CHECK(path_exists(first));
}

TEST_CASE("a folder without the right to write") {
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
  CHECK(contains(message, "to make the folder " + (store.folder() / ".tmp-step-000000002@").string()));
  CHECK(contains(message, "Permission denied. hint: the folder"));
  ::chmod(store.folder().c_str(), 0755);
  CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000001"});
  CHECK(State(1, 100).difference(*store.load_newest_valid()) == "");
}

TEST_CASE("a full disk") {
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
    CHECK(contains(e.what(), (store.folder() / ".tmp-step-000000002@").string()));
    CHECK(contains(e.what(), "bytes free"));
  }
  CHECK(names_in(store.folder()) == std::vector<std::string>{"step-000000001"});
  CHECK(State(1, 1000).difference(*store.load_newest_valid()) == "");
  save(store, 2, 1000);
  CHECK(State(2, 1000).difference(*store.load_newest_valid()) == "");
}

TEST_CASE("what a killed process left is removed by the next save") {
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

struct GivenUp : std::exception {};

// What a process leaves in a folder goes when it has ended, or writes there again.
template <class F>
void in_another_process(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      f();
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

}  // namespace

TEST_CASE("names of checkpoints") {
  for (const char* name :
       {"step-000000007", "step-000000007.g3", "step-000000007.old", "step-000000007.g3.old", "step-1234567890.g12"}) {
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

TEST_CASE("a writer that was stopped, given up and goes on replaces nothing") {
  const TempFolder run;
  CheckpointStore others(run.path(), 2);
  bool given_up = false;
  std::function<void()> meanwhile = [] {};
  CheckpointStore chief(run.path(), 1, [&] {
    if (given_up) throw GivenUp{};
    std::exchange(meanwhile, [] {})();
  });
  chief.begin_generation(1, 0);
  save_in(chief, 1, 5);
  chief.mark_best(5, 0.5, 1);
  // Stopped behind the question whether it may write, in front of the rename; the others save the same step and one
  // more.
  meanwhile = [&] {
    in_another_process([&] {
      others.begin_generation(2, 10);
      save_in(others, 2, 10);
      others.mark_best(10, 0.75, 2);
      save_in(others, 2, 12);
    });
    given_up = true;
  };
  CHECK_THROWS_AS(save_in(chief, 1, 10), GivenUp);
  // It has left its own beside theirs, and that does not count.
  CHECK(path_exists(others.folder() / "step-000000010.g1"));
  std::vector<std::string> list;
  for (const Path& c : others.list()) list.push_back(c.filename().string());
  CHECK(list ==
        std::vector<std::string>{"step-000000012.g2", "step-000000010.g2", "step-000000010.g1", "step-000000005.g1"});
  CHECK(others.best()->metric == 0.75);
  CHECK(others.load_best()->path() == others.folder() / "step-000000010.g2");
  CHECK_THROWS_AS(chief.mark_best(10, 0.9, 1), GivenUp);
  CHECK(others.best()->metric == 0.75);
  save_in(others, 2, 14);
  CHECK(names_in(others.folder()) == std::vector<std::string>{"best.g2.json", "generation-2-behind-10",
                                                              "step-000000010.g2", "step-000000012.g2",
                                                              "step-000000014.g2"});

  // A step that the others did again: theirs began one earlier, so the one of before is of another past.
  given_up = false;
  others.begin_generation(3, 14);
  meanwhile = [&] { given_up = true; };
  CHECK_THROWS_AS(save_in(chief, 2, 15), GivenUp);
  CHECK(path_exists(others.folder() / "step-000000015.g2"));
  CHECK(others.load_newest_valid()->path() == others.folder() / "step-000000014.g2");
  CHECK(others.best()->metric == 0.75);
  CHECK(others.latest_generation() == 3);
  save_in(others, 3, 16);
  CHECK_FALSE(path_exists(others.folder() / "step-000000015.g2"));
  // A run that begins anew without generations.
  others.forget_generations();
  CHECK(others.load_newest_valid()->step() == 16);
  others.discard_newer_than(12);
  CHECK(others.load_newest_valid()->step() == 10);
  others.discard_newer_than(0);
  CHECK_FALSE(others.best().has_value());
}
