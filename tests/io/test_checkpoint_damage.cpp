// SPDX-License-Identifier: MIT
// Tests checkpoints with damaged, missing or unexpected parts: an error names the part, and no file is removed.
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/checkpoint/checkpoint.hpp>

#include "../data/temp_folder.hpp"
#include "checkpoint_state.hpp"

using namespace tutti::io;
using tutti::DataError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::save;
using tutti::test::State;
using tutti::test::TempFolder;
using tutti::test::write_text;

namespace {

constexpr const char* file_names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json", "COMPLETE"};

std::string complaint(const Path& folder) {
  return message_of<DataError>([&] { (void)load_checkpoint(folder); });
}

// Changes a byte in place: it is slow to replace a file if the file system waits for the disk.
void change_byte(const Path& path, std::size_t at, unsigned flip) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  REQUIRE(byte >= 0);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(static_cast<unsigned>(byte) ^ flip));
}

// Writes manifest.json and a COMPLETE that matches it.
void write_manifest_text(const Path& folder, const std::string& text) {
  write_text(folder / "manifest.json", text);
  write_text(folder / "COMPLETE", crc_text(crc32c(text)) + "\n");
}

// Replaces model.safetensors and updates all checksums.
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

TEST_CASE("any flipped bit and any truncation is detected, and the error names the file") {
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
    CHECK_MESSAGE(contains(complaint(path), std::string("a file ") + name + ", got no such file"), name);
    tutti::test::write_file(path / name, whole);
  }
  change_byte(path / "optimizer.safetensors", 100, 4);
  CHECK(contains(complaint(path), "optimizer.safetensors] expected the CRC-32C"));
}

TEST_CASE("damage is detected even if the checksums match") {
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
  CHECK(contains(message_of<DataError>([&] { (void)store.load(path); }), "step 3, as in its name, got 4"));
  replace_in_manifest(path, "\"step\": 4", "\"step\": 3, \"else\": 0");
  CHECK(contains(complaint(path), "'else'"));
  replace_in_manifest(path, ", \"else\": 0", "");
  replace_in_manifest(path, "tutti-checkpoint", "other");
  CHECK(contains(complaint(path), "the format 'tutti-checkpoint'"));
  replace_in_manifest(path, "{", "");
  CHECK(contains(complaint(path), "manifest.json:"));
}

TEST_CASE("a folder that is not a checkpoint is refused") {
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

TEST_CASE("the newest valid checkpoint is used, and a warning names each damaged checkpoint") {
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

TEST_CASE("a damaged best.json is an error, and no file is removed") {
  const TempFolder run;
  CheckpointStore store(run.path(), 1);
  save(store, 1);
  store.mark_best(1, 0.5);
  write_text(store.folder() / "best.json", "{\"step\":");
  CHECK_THROWS_AS((void)store.load_best(), DataError);
  CHECK(contains(message_of<DataError>([&] { save(store, 2); }), "is valid, but older ones were not removed"));
  CHECK(store.list().size() == 2);
  store.mark_best(2, 0.75);
  save(store, 3);
  CHECK(store.list().size() == 2);
}
