// SPDX-License-Identifier: MIT
// Tests the folder of a job in the state folder, which agents of several hosts may share.
#include <doctest/doctest.h>

#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <tutti/io/file_error.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/wire.hpp"

using namespace tutti;
using namespace tutti::launch;

namespace {

const std::string job = "0123456789abcdef";

// Sets the state folder for one test.
struct StateFolder {
  StateFolder() { ::setenv("TUTTI_STATE_DIR", (temp / "state").c_str(), 1); }
  ~StateFolder() { ::unsetenv("TUTTI_STATE_DIR"); }
  test::TempFolder temp;
};

}  // namespace

TEST_CASE("a process starts although another host's agent removes the empty folder of the job") {
  const StateFolder state;
  Order order;
  order.job = job;
  order.host = "b";
  order.folder = state.temp.path().string();
  order.command = {"/bin/true"};
  const ProcessOrder process{"worker", 2, 0, 1, 2};
  const fs::path folder = make_job_folder(job);
  RankProcess p(order, process, folder);
  for (int start = 0; start < 2; ++start) {  // the second one restarts a process with the same number
    remove_job_folder(folder);
    REQUIRE_FALSE(fs::exists(state.temp / "state"));
    const Started started = p.start(false);
    REQUIRE_MESSAGE(started.error == 0, started.what);
    CHECK(fs::exists(folder / "worker-2.progress"));
    // The folder is not empty, so it stays.
    remove_job_folder(folder);
    CHECK(fs::exists(folder / "worker-2.process"));
    while (!p.over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    p.reap();
    p.remove_files();
  }
  remove_job_folder(folder);
  CHECK_FALSE(fs::exists(state.temp / "state"));
}

TEST_CASE("agents that share a state folder can start and end at the same time") {
  const StateFolder state;
  std::atomic<int> lost{0};
  std::vector<std::thread> agents;
  for (int rank = 0; rank < 3; ++rank)
    agents.emplace_back([&, rank] {
      Record r;
      r.job = job;
      r.rank = rank;
      r.host = r.node = "h";
      r.pid = r.agent = 2;
      for (int i = 0; i < 300; ++i) {
        const fs::path folder = with_job_folder(job, [&](const fs::path& made) {
          write_aside(made / (r.stem() + ".progress"), "x");
          return made;
        });
        write_record(folder, r);
        lost += fs::exists(folder / (r.stem() + ".process")) ? 0 : 1;
        remove_process_files(folder, r);
        remove_job_folder(folder);
      }
    });
  for (std::thread& a : agents) a.join();
  CHECK(lost == 0);
  CHECK_FALSE(fs::exists(state.temp / "state"));
}

TEST_CASE("creating a file is not retried after a failure for another reason") {
  const StateFolder state;
  int calls = 0;
  const auto refuse = [&](const fs::path& folder) {
    ++calls;
    io::fail_file("make", folder / "x", EACCES);
  };
  CHECK_THROWS_AS(with_job_folder(job, refuse), io::FileError);
  CHECK(calls == 1);
}
