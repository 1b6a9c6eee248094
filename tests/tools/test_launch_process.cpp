// SPDX-License-Identifier: MIT
// Tests the environment and the reports of a process that tutti-launch started, and the conclusions from the reports.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/job/progress_board.hpp"

using namespace tutti;
using namespace tutti::launch;
using test::contains;
using test::message_of;

namespace {

LaunchEnvironment environment(const std::map<std::string, std::string>& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto v = variables.find(name);
    return v == variables.end() ? nullptr : v->second.c_str();
  });
}

}  // namespace

TEST_CASE("the environment of a started process is read") {
  CHECK_FALSE(environment({}).launched);
  CHECK(environment({}).size == 1);
  const auto e = environment({{"TUTTI_RANK", "2"},
                              {"TUTTI_SIZE", "4"},
                              {"TUTTI_LOCAL_RANK", "0"},
                              {"TUTTI_LOCAL_SIZE", "2"},
                              {"TUTTI_HOST", "b"},
                              {"TUTTI_JOB", "0123456789abcdef"},
                              {"TUTTI_ROOT", "a:1"},
                              {"TUTTI_REPORT", "/x"},
                              {"TUTTI_ROLE", "worker"}});
  CHECK((e.launched && e.rank == 2 && e.size == 4 && e.local_rank == 0 && e.local_size == 2 && e.host == "b" &&
         e.job == "0123456789abcdef" && e.root == "a:1" && e.report == "/x" && e.role == "worker"));
  const auto mpi = environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "3"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK((mpi.launched && mpi.rank == 1 && mpi.size == 3 && mpi.local_rank == 1 && mpi.local_size == 2 &&
         mpi.report.empty()));
  const auto server = environment({{"TUTTI_RANK", "0"},
                                   {"TUTTI_SIZE", "2"},
                                   {"TUTTI_ROLE", "server"},
                                   {"DMLC_NUM_WORKER", "4"},
                                   {"DMLC_NUM_SERVER", "2"}});
  CHECK((server.is_server() && server.workers == 4 && server.servers == 2));
  CHECK_FALSE((e.elastic || e.new_worker));
  // A process that joins later may have a number beyond the number of workers.
  const auto joins = environment({{"TUTTI_RANK", "7"},
                                  {"TUTTI_SIZE", "8"},
                                  {"DMLC_NUM_WORKER", "3"},
                                  {"TUTTI_ELASTIC", "1"},
                                  {"NEW_WORKER", "1"},
                                  {"EPOCH_BEGIN", "12"}});
  CHECK((joins.elastic && joins.new_worker && joins.epoch_begin == 12 && joins.rank == 7 && joins.workers == 3));
  // This variable belongs to another job.
  CHECK_FALSE(environment({{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"NEW_WORKER", "1"}}).new_worker);
}

TEST_CASE("an inconsistent environment of the launcher is refused") {
  using V = std::map<std::string, std::string>;
  for (const V& bad :
       {V{{"TUTTI_RANK", "4"}, {"TUTTI_SIZE", "4"}}, V{{"TUTTI_RANK", "x"}, {"TUTTI_SIZE", "4"}},
        V{{"TUTTI_RANK", ""}, {"TUTTI_SIZE", "4"}}, V{{"TUTTI_RANK", "-1"}, {"TUTTI_SIZE", "4"}},
        V{{"TUTTI_RANK", "0"}}, V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "0"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "2"}, {"TUTTI_LOCAL_RANK", "1"}}, V{{"TUTTI_SIZE", "abc"}},
        V{{"TUTTI_SIZE", "2"}}, V{{"TUTTI_RANK", "9"}, {"TUTTI_SIZE", "2"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"TUTTI_ROLE", "boss"}}, V{{"DMLC_ROLE", "boss"}},
        V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "two"}}, V{{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}},
        V{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "x"}},
        V{{"OMPI_COMM_WORLD_SIZE", "2"}}, V{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "two"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}}) {
    CAPTURE(bad.begin()->second);
    CHECK_THROWS_AS((void)environment(bad), UsageError);
  }
  CHECK(message_of<UsageError>([&] {
          (void)environment(V{{"TUTTI_SIZE", "abc"}});
        }).starts_with("[environment TUTTI_SIZE] expected an integer from 1 to 16777216, got 'abc'."));
  const auto alone = message_of<UsageError>([&] { (void)environment(V{{"TUTTI_SIZE", "2"}}); });
  CHECK(contains(alone, "[environment TUTTI_RANK] expected a number together with TUTTI_SIZE 2, got no value."));
  CHECK(contains(alone, "tutti-launch -n N"));
}

TEST_CASE("the environment tells which launcher started a process, and whether the process may train") {
  using V = std::map<std::string, std::string>;
  // Variables that were left in a shell do not count as a launcher.
  for (const V& stray : {V{{"DMLC_NUM_WORKER", "4"}}, V{{"DMLC_NUM_WORKER", "abc"}},
                         V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "1"}}, V{{"DMLC_ROLE", ""}},
                         V{{"DMLC_PS_ROOT_URI", "a"}, {"DMLC_NUM_WORKER", "3"}}}) {
    const auto e = environment(stray);
    CHECK((!e.launched && e.size == 1 && e.workers == 1));
    CHECK_NOTHROW(require_worker(e));
  }
  const auto said = [](const V& v) { return message_of<UsageError>([&] { require_worker(environment(v)); }); };
  for (const char* role : {"server", "scheduler"}) {
    CHECK(contains(said(V{{"DMLC_ROLE", role}}), "[environment DMLC_ROLE] expected worker"));
    CHECK(contains(said(V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"TUTTI_ROLE", role}, {"DMLC_ROLE", "worker"}}),
                   "[environment TUTTI_ROLE] expected worker, because "));
  }
  // This launcher gives no numbers to its processes.
  CHECK(contains(said(V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}), "tutti-launch -n 2 starts as many"));
  CHECK(contains(said(V{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}}), "mpirun -np 2"));
  CHECK_NOTHROW(require_worker(environment(V{{"SLURM_STEP_NUM_TASKS", "1"}})));
  CHECK_NOTHROW(require_worker(
      environment(V{{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})));
  // PyTorch's launcher: variables of other launchers have precedence, and a single variable does not count.
  const V torchrun{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  CHECK(contains(said(torchrun), "[environment WORLD_SIZE] expected tutti-launch or mpirun to start the 2 processes"));
  CHECK(contains(said(torchrun), "tutti-launch -n 2 starts as many"));
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR"}) {
    V stray = torchrun;
    stray.erase(name);
    CHECK_NOTHROW(require_worker(environment(stray)));
  }
  for (const char* size : {"1", "two", "0"}) {
    V other = torchrun;
    other["WORLD_SIZE"] = size;
    CHECK_NOTHROW(require_worker(environment(other)));
  }
  V launched = torchrun;
  launched.insert({{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}});
  CHECK_NOTHROW(require_worker(environment(launched)));
  const V through_mpi{{"TUTTI_RANK", "1"},
                      {"TUTTI_SIZE", "2"},
                      {"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                      {"TUTTI_LOCAL_RANK", "1"},
                      {"TUTTI_LOCAL_SIZE", "2"}};
  // The variables of tutti-launch have precedence over those of mpirun.
  const auto both = environment(through_mpi);
  CHECK((both.mpi && both.rank == 1 && both.local_rank == 1 && both.local_size == 2));
  const auto hydra =
      environment(V{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK((hydra.mpi && hydra.launched && hydra.rank == 1 && hydra.size == 2 && hydra.local_rank == 1));
  CHECK_NOTHROW(require_launched_size(both, "mpi", 2));
  CHECK(contains(message_of<UsageError>([&] { require_launched_size(both, "mpi", 1); }),
                 "[--strategy mpi] expected 2 ranks, because 2 processes were started, got 1 rank."));
  const auto by_hand = environment(V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "3"}});
  CHECK(contains(message_of<UsageError>([&] { require_launched_size(by_hand, "mpi", 1); }),
                 "'tutti-launch -n 3 --launcher mpi' and 'mpirun -np 3'"));
  CHECK(
      contains(message_of<UsageError>([&] { require_launched_size(environment({}), "mpi", 2); }), "one rank, because"));
}

TEST_CASE("the progress of a process can be read after the process has ended") {
  const test::TempFolder folder;
  const std::string path = (folder / "slot").string();
  const char* job = "00000000000000ff";
  const ProgressFile file = ProgressFile::create(path, job);
  CHECK(file.read() == RankProgress{});
  {
    ProgressReporter reporter(path.c_str(), job);
    REQUIRE(reporter.active());
    reporter.begin(57, 2);
    CHECK(file.read() == RankProgress{57, 2, ProgressPhase::begin});
    reporter.end((std::uint64_t{1} << 40) - 1, ProgressSlot::max_bucket);
    CHECK(file.read() == RankProgress{(std::uint64_t{1} << 40) - 1, ProgressSlot::max_bucket, ProgressPhase::end});
    reporter.begin(3, -1);
  }
  CHECK(file.read() == RankProgress{3, -1, ProgressPhase::idle});
  CHECK(ProgressFile::open(path, job)->read() == RankProgress{3, -1, ProgressPhase::idle});
  CHECK_THROWS_AS((void)ProgressFile::create(path, job), DataError);
}

TEST_CASE("reporting progress without a file, for another job or to another file has no effect") {
  const test::TempFolder folder;
  const std::string path = (folder / "slot").string();
  const ProgressFile file = ProgressFile::create(path, "1");
  test::write_text(folder / "other", std::string(64, 'x'));
  test::write_text(folder / "short", "x");
  for (const auto& [name, job] : {std::pair<const char*, const char*>{nullptr, "1"},
                                  {"", "1"},
                                  {path.c_str(), nullptr},
                                  {path.c_str(), "2"},
                                  {"/dev/null", "1"},
                                  {"/nowhere/slot", "1"}}) {
    ProgressReporter reporter(name, job);
    CHECK_FALSE(reporter.active());
    reporter.begin(1, 1);
    reporter.idle();
  }
  for (const char* name : {"other", "short"}) CHECK_FALSE(ProgressReporter((folder / name).c_str(), "1").active());
  CHECK(file.read() == RankProgress{});
  CHECK_FALSE(ProgressFile::open(path, "2").has_value());
  CHECK_FALSE(ProgressFile::open(folder / "other", "1").has_value());
  // A process may write any bytes to its file.
  const auto fd = io::Descriptor::open(path, O_WRONLY, "open");
  REQUIRE(::pwrite(fd.get(), "\xff\xff\xff\xff\xff\xff\xff\xff", 8, 16) == 8);
  CHECK_FALSE(file.read().has_value());
  REQUIRE(::pwrite(fd.get(), "garbage!", 8, 0) == 8);
  CHECK_FALSE(file.read().has_value());
}

TEST_CASE("the launcher finds the process that delays the other processes") {
  using std::chrono::seconds;
  const auto t = Clock::time_point{} + seconds(1000);
  const auto at = [](std::uint64_t step, int bucket, ProgressPhase phase) { return RankProgress{step, bucket, phase}; };
  ProgressBoard board;
  board.update("worker 0", "a", at(57, 2, ProgressPhase::begin), false, t);
  board.update("worker 1", "b", at(57, 1, ProgressPhase::begin), false, t + seconds(1));
  board.update("worker 2", "b", at(57, 2, ProgressPhase::begin), false, t);
  board.update("worker 3", "b", at(9, 0, ProgressPhase::idle), false, t);
  board.update("worker 4", "b", RankProgress{}, false, t);
  CHECK_FALSE(board.stalled(5, t + seconds(4)).has_value());
  // Worker 2 caused the stall, although it reported later than the workers that wait for it.
  auto stall = board.stalled(5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  const std::string text = board.describe(*stall);
  CHECK(contains(text, "worker 1 on b has made no progress for 6 s at step 57, bucket 1 (begun)"));
  CHECK(contains(text, "worker 0 is at step 57, bucket 2 (begun)"));
  // The same if its silence is a little shorter than that of the processes that wait for it.
  stall = board.stalled(6.5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  // If a process is stopped, it causes the stall in any position.
  board.update("worker 2", "b", at(57, 2, ProgressPhase::begin), true, t + seconds(6));
  stall = board.new_stall(5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 2");
  CHECK(contains(board.describe(*stall), "SIGSTOP"));
  CHECK_FALSE(board.new_stall(5, t + seconds(8)).has_value());
  CHECK(board.stalled(5, t + seconds(8)).has_value());
  // New progress clears the stall.
  for (const char* name : {"worker 0", "worker 1", "worker 2"})
    board.update(name, "b", RankProgress{57, 3, ProgressPhase::begin}, false, t + seconds(9));
  CHECK_FALSE(board.stalled(5, t + seconds(10)).has_value());
  CHECK(board.new_stall(5, t + seconds(20)).has_value());
  board.ended("worker 0");
  board.ended("worker 1");
  board.ended("worker 2");
  CHECK_FALSE(board.stalled(5, t + seconds(99)).has_value());
}

TEST_CASE("a process that hangs between two steps is found") {
  using std::chrono::seconds;
  const auto t = Clock::time_point{} + seconds(1000);
  const auto at = [](std::uint64_t step, ProgressPhase phase) { return RankProgress{step, 1, phase}; };
  ProgressBoard board;
  board.update("worker 0", "a", at(12, ProgressPhase::begin), false, t);
  board.update("worker 1", "b", at(11, ProgressPhase::idle), false, t);
  board.update("worker 2", "b", at(9, ProgressPhase::idle), false, t);
  auto stall = board.stalled(5, t + seconds(6));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  // No process waits for another one, so only a stopped process can cause a stall.
  board.update("worker 0", "a", at(12, ProgressPhase::idle), false, t + seconds(7));
  CHECK_FALSE(board.stalled(5, t + seconds(99)).has_value());
  board.update("worker 2", "b", at(9, ProgressPhase::idle), true, t + seconds(7));
  stall = board.new_stall(5, t + seconds(8));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 2");
  CHECK_FALSE(board.new_stall(5, t + seconds(9)).has_value());
}

TEST_CASE("the time in which the launcher was stopped does not count") {
  using std::chrono::seconds;
  const auto t = Clock::time_point{} + seconds(1000);
  ProgressBoard board;
  board.update("worker 0", "a", RankProgress{12, 1, ProgressPhase::begin}, true, t);
  CHECK(board.stopped(5, t + seconds(6)) != nullptr);
  board.skip(seconds(4));
  CHECK(board.stopped(5, t + seconds(6)) == nullptr);
  CHECK_FALSE(board.stalled(5, t + seconds(6)).has_value());
  CHECK(board.stopped(5, t + seconds(10)) != nullptr);
}
