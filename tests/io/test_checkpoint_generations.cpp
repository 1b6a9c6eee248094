// SPDX-License-Identifier: MIT
// Tests checkpoints of a job whose members change, and the rules of generations at their limits.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/checkpoint/checkpoint.hpp>

#include "../data/temp_folder.hpp"
#include "checkpoint_state.hpp"

using namespace tutti;
using namespace tutti::io;
using test::contains;
using test::message_of;
using test::save;
using test::State;
using test::TempFolder;
namespace fs = std::filesystem;

namespace {

Path save_of(CheckpointStore& store, std::int64_t step, std::int64_t generation) {
  const State state(step, 10);
  CheckpointData data = state.data();
  data.generation = generation;
  return store.save(data);
}
// Returns the number of files with the prefix `begin`.
int files(const CheckpointStore& store, const std::string& begin) {
  int n = 0;
  for (const auto& entry : fs::directory_iterator(store.folder()))
    n += entry.path().filename().string().starts_with(begin) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("the state before the first step can be saved") {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 0);
  CHECK(store.load_newest_valid()->step() == 0);
  save(store, 1);
  save(store, 2);
  CHECK(store.list().size() == 2);  // the default allows three
  const CheckpointData nothing;
  CHECK(nothing.step + nothing.generation == 0);
  const CheckpointManifest empty;
  CHECK(empty.step == 0);
  CHECK(empty.model.size + empty.model.crc32c == 0);
  const BestCheckpoint best;
  CHECK(best.step == 0);
  CHECK(best.metric == 0);
}

TEST_CASE("a new generation keeps the best checkpoint and all earlier checkpoints") {
  const TempFolder run;
  CheckpointStore store(run.path(), 5);
  for (const std::int64_t step : {2, 4, 6}) save_of(store, step, 1);
  store.mark_best(4, 0.5, 1);
  CHECK(store.latest_generation() == 1);
  store.begin_generation(3, 5);
  CHECK(store.latest_generation() == 3);
  CHECK(store.list().size() == 2);  // step 6 of generation 1 does not count
  CHECK(store.best()->step == 4);
  CHECK(store.best_metric() == 0.5);
  CHECK(files(store, "best.g3.json") == 1);
  CHECK(files(store, "best.g1.json") == 0);
  // A new generation makes earlier generations meaningless if they begin at the same step or at a later step, but not
  // if they begin at an earlier step.
  store.begin_generation(4, 5);
  CHECK(files(store, "generation-") == 1);
  store.begin_generation(5, 7);
  CHECK(files(store, "generation-") == 2);
  store.begin_generation(6, 3);
  CHECK(files(store, "generation-") == 1);
  CHECK(store.list().size() == 1);
  // The best checkpoint does not count if its step no longer counts.
  CHECK_FALSE(store.best().has_value());
  store.forget_generations();
  CHECK(files(store, "generation-") == 0);
  CHECK(store.list().size() == 3);
}

TEST_CASE("a process without a lease changes no file") {
  const TempFolder run;
  CheckpointStore store(run.path(), 1);
  save(store, 1);
  store.set_require_lease([] { fail<UsageError>("right", "one", "none"); });
  CHECK_THROWS_AS(save(store, 2), UsageError);
  CHECK_THROWS_AS(save(store, 1), UsageError);
  CHECK_THROWS_AS(store.mark_best(1, 0.5), UsageError);
  CHECK_THROWS_AS(store.begin_generation(1, 0), UsageError);
  CHECK(store.list().size() == 1);
  CHECK(store.load_newest_valid()->step() == 1);
  CHECK(files(store, "generation-") + files(store, "best") == 0);
}

TEST_CASE("a run that continues from an older step discards later checkpoints, including a later best one") {
  const TempFolder run;
  for (const std::int64_t best : {2, 4, 6}) {
    CheckpointStore store(run.path() / std::to_string(best), 5);
    for (const std::int64_t step : {2, 4, 6}) save(store, step);
    store.mark_best(best, 0.5);
    store.discard_newer_than(4);
    CHECK(store.list().size() == 2);
    CHECK(store.best().has_value() == (best <= 4));
  }
}

TEST_CASE("counters and options of more than 16 MiB are refused and leave no files") {
  const TempFolder run;
  CheckpointStore store(run.path());
  const State state(1, 10);
  CheckpointData data = state.data();
  const std::size_t most = std::size_t{16} << 20;
  data.options = Json::object({{"text", std::string(most, 'x')}});
  CHECK(contains(message_of<UsageError>([&] { (void)store.save(data); }), "at most 16 MiB"));
  CHECK(fs::is_empty(store.folder()));
  data.options = Json::object({{"text", std::string(most - 2000, 'x')}});
  const Path path = store.save(data);
  CHECK(store.load(path).options() == data.options);
  const std::size_t rest = most - fs::file_size(path / "manifest.json");
  data.options = Json::object({{"text", std::string(most - 2000 + rest, 'x')}});
  CHECK(fs::file_size(store.save(data) / "manifest.json") == most);
  data.options = Json::object({{"text", std::string(most - 2000 + rest + 1, 'x')}});
  CHECK_THROWS_AS(store.save(data), UsageError);
}

TEST_CASE("the error names a file whose size differs from the manifest, and a path that is not a folder") {
  const TempFolder run;
  CheckpointStore store(run.path());
  const Path path = save(store, 1);
  const Path file = path / "model.safetensors";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  CHECK(contains(message_of<DataError>([&] { (void)store.load(path); }), "truncated"));
  fs::resize_file(file, size + 1);
  CHECK(contains(message_of<DataError>([&] { (void)store.load(path); }), "has grown"));
  CHECK(contains(message_of<DataError>([&] { (void)load_checkpoint(run.path() / "nothing"); }), "expected a folder"));
}

TEST_CASE("best.json of the latest generation determines the best checkpoint") {
  const TempFolder run;
  CheckpointStore store(run.path(), 20);
  CHECK(store.latest_generation() == 0);
  for (std::int64_t g = 0; g < 12; ++g) {
    save_of(store, g + 1, 0);
    test::write_text(store.folder() / best_name(g), "{\"step\": " + std::to_string(g + 1) + ", \"metric\": 1}");
  }
  CHECK(store.best()->step == 12);
}

TEST_CASE("a file at the folder's path is refused") {
  const TempFolder run;
  const CheckpointStore store(run.path());
  test::write_text(store.folder(), "none");
  CHECK_THROWS_AS((void)store.list(), FileError);
}

TEST_CASE("a checksum has eight lower-case hexadecimal digits") {
  CHECK(parse_crc_text("0123abcd", "here") == 0x0123abcd);
  for (const char* text : {"0123ABCD", "123abcd", "00123abcd", "0123abcg", "0x23abcd", " 123abcd", "+123abcd", ""})
    CHECK_THROWS_AS((void)parse_crc_text(text, "here"), DataError);
}

TEST_CASE("a manifest has exactly the known fields, each with its type") {
  const CheckpointManifest whole{3, Json::object({{"epoch", 1}}), Json::object({{"lr", 0.5}}), {7, 1}, {0, 2}};
  const std::string text = write_manifest(whole);
  CHECK(parse_manifest(text, "here") == whole);
  const auto complaint = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const auto at = changed.find(from);
    REQUIRE_MESSAGE(at != std::string::npos, from);
    changed.replace(at, from.size(), to);
    return message_of<DataError>([&] { (void)parse_manifest(changed, "here"); });
  };
  CHECK(contains(complaint("\"counters\": {", "\"counters\": 5, \"gone\": {"), "'gone'"));
  CHECK(contains(complaint("\"step\": 3", "\"step\": -1"), "a step of 0 or more"));
  CHECK(contains(complaint("\"size\": 7", "\"size\": -1"), "files model.safetensors] expected a size of 0 or more"));
  CHECK(contains(complaint("\"size\": 0", "\"size\": -1"), "files optimizer.safetensors] expected a size of 0"));
  for (const char* more : {"more", ""}) {
    const std::string member = std::string("\"") + more + "\": 0, ", named = std::string("'") + more + "'";
    CHECK(contains(complaint("\"size\": 7", member + "\"size\": 7"), named));
    CHECK(contains(complaint("\"files\": {", "\"files\": {" + member), "files] expected only members"));
    CHECK(contains(complaint("\"step\": 3", member + "\"step\": 3"), named));
  }
  // The manifest has only one object that is not a list of tensors.
  for (const char* name : {"counters", "options"}) {
    CheckpointManifest m = whole;
    (name[0] == 'c' ? m.counters : m.options) = Json::object({});
    std::string changed = write_manifest(m);
    const std::string from = std::string("\"") + name + "\": {}";
    const auto at = changed.find(from);
    REQUIRE_MESSAGE(at != std::string::npos, changed);
    changed.replace(at, from.size(), std::string("\"") + name + "\": 5");
    CHECK(contains(message_of<DataError>([&] { (void)parse_manifest(changed, "here"); }), std::string("here ") + name));
  }
}
