// SPDX-License-Identifier: MIT
// Tests the stored state of a server: a state that is complete and of the same job is loaded; any other state is
// skipped with a message.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/io/file.hpp>
#include <tutti/train/server_snapshots.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

ps::ServerState state(std::int64_t steps) {
  ps::ServerState s;
  s.steps = steps;
  s.pieces.push_back({0, 64, std::vector<std::byte>(1000, static_cast<std::byte>(steps))});
  s.pieces.push_back({5, 0, std::vector<std::byte>(8, std::byte{7})});
  s.workers.resize(2);
  s.workers[1] = {~std::uint64_t{0}, 9, 17, 8, 3, 2, {{12, 0}, {12, 1 << 20}}};
  return s;
}
bool same(const ps::ServerState& a, const ps::ServerState& b) {
  return a.steps == b.steps &&
         std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                    [](const auto& x, const auto& y) {
                      return x.arena == y.arena && x.begin == y.begin && x.bytes == y.bytes;
                    }) &&
         std::equal(
             a.workers.begin(), a.workers.end(), b.workers.begin(), b.workers.end(), [](const auto& x, const auto& y) {
               return x.session == y.session && x.its_step == y.its_step && x.step == y.step && x.clock == y.clock &&
                      x.first_clock == y.first_clock && x.origin == y.origin && x.done == y.done;
             });
}

// The folder in which a run's servers store their states, and the log messages.
struct Scene {
  test::TempFolder folder;
  std::vector<std::string> log;
  [[nodiscard]] io::Path own() const { return io::Path(folder.path()) / "servers" / "server-0"; }
  [[nodiscard]] io::Path of_step(const char* digits) const {
    return own() / "checkpoints" / (std::string("step-0000000") + digits);
  }
  ServerSnapshots open(const std::string& job = "job") {
    return {own(), job, [this](const std::string& line) { log.push_back(line); }};
  }
  void write(const std::vector<std::int64_t>& steps, const std::string& job = "job") {
    auto s = open(job);
    for (const std::int64_t n : steps) {
      s.write(state(n));
      s.wait();
    }
  }
};

}  // namespace

TEST_CASE("a server's newest state is read back, and two states are kept") {
  Scene s;
  CHECK_FALSE(s.open().newest());
  s.write({0, 10, 20, 20});
  CHECK_FALSE(io::path_exists(s.of_step("00")));
  CHECK(io::path_exists(s.of_step("10")));
  auto again = s.open();
  const auto found = again.newest();
  REQUIRE(found);
  CHECK(same(*found, state(20)));
  // The server stores its next state beside the existing files.
  again.write(state(30));
  again.wait();
  CHECK(io::path_exists(s.of_step("20")));
  again.remove();
  CHECK_FALSE(io::path_exists(s.own().parent_path()));
  CHECK(s.log.empty());
}

TEST_CASE("a damaged state of a server is skipped, and the reason is given") {
  Scene s;
  s.write({10, 20});
  const io::Path newest = s.of_step("20") / "model.safetensors";
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 1);
  auto found = s.open().newest();
  REQUIRE(found);
  CHECK(found->steps == 10);
  REQUIRE(s.log.size() == 1);
  CHECK_MESSAGE((s.log[0].find(s.of_step("20").string() + " is not used: ") == 0 &&
                 s.log[0].find("the file is truncated") != std::string::npos),
                s.log[0]);
  io::remove_tree(s.of_step("10") / "COMPLETE");
  CHECK_FALSE(s.open().newest());
  CHECK(s.log.size() == 3);
}

TEST_CASE("a server's state is only valid for its own job") {
  Scene s;
  s.write({70, 80}, "another job");
  CHECK_FALSE(s.open().newest());
  s.write({5});
  CHECK_FALSE(io::path_exists(s.of_step("80")));
  auto found = s.open().newest();
  REQUIRE(found);
  CHECK(found->steps == 5);
  CHECK(s.log.empty());
}

TEST_CASE("a state without the first clock and the origin of its workers is used, and both are 0") {
  Scene s;
  io::CheckpointData data;
  data.step = 20;
  data.options = io::Json::object({{"job", "job"}});
  data.counters = io::Json::object(
      {{"workers", io::Json(io::Json::Array{io::Json::object({{"session", "4"},
                                                              {"its_step", "9"},
                                                              {"step", std::int64_t{17}},
                                                              {"clock", std::int64_t{8}},
                                                              {"done", io::Json(io::Json::Array{})}})})}});
  const std::vector<std::byte> bytes(8, std::byte{7});
  data.model.push_back({"arena 5 from 0", DType::u8, Shape{8}, bytes});
  io::CheckpointStore(s.own()).save(data);
  const auto found = s.open().newest();
  REQUIRE_MESSAGE(found, (s.log.empty() ? "" : s.log[0]));
  CHECK(found->steps == 20);
  REQUIRE(found->workers.size() == 1);
  const ps::ServerState::Worker& worker = found->workers[0];
  CHECK((worker.session == 4 && worker.its_step == 9 && worker.step == 17 && worker.clock == 8));
  CHECK((worker.first_clock == 0 && worker.origin == 0));
  CHECK(found->pieces.size() == 1);
  CHECK(s.log.empty());
}

TEST_CASE("a state that cannot be written is reported, and the previous state remains") {
  Scene s;
  s.write({10});
  auto again = s.open();
  REQUIRE(again.newest());
  std::filesystem::rename(s.own() / "checkpoints", s.own() / "aside");
  io::atomic_write_file(s.own() / "checkpoints", "no folder");
  again.write(state(20));
  again.wait();
  REQUIRE(s.log.size() == 1);
  CHECK(s.log[0].find("the state of a server was not saved: ") == 0);
}
