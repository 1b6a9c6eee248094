// SPDX-License-Identifier: MIT
// Tests the conclusions of tutti-launch from the ends of processes and from unusable hosts.
#include <doctest/doctest.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_options.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/io/base64.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/blame.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_control.hpp"
#include "tools/launch/job/job_folder.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/job_verdict.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/mpi.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"
#include "tools/launch/mpi/mpi_verdict.hpp"

using namespace tutti;
using namespace tutti::launch;
using test::contains;

namespace {

// A job of one worker with a formed group.
struct OneMember final : JobMembers {
  [[nodiscard]] bool opened(const std::string&) const override { return true; }
  [[nodiscard]] bool can_spare(const std::string&) const override { return false; }
  void ask_to_leave(const std::string&) override {}
  void stop_all() override {}
  [[nodiscard]] bool too_few() const override { return false; }
  [[nodiscard]] bool finished() const override { return finishes; }
  [[nodiscard]] bool stopping() const override { return stops; }
  [[nodiscard]] std::uint64_t epoch() const override { return 0; }
  [[nodiscard]] std::vector<std::string> standing() const override { return members; }

  bool stops = false, finishes = false;
  std::vector<std::string> members{"worker 0"};
};

}  // namespace

TEST_CASE("the launcher finds the process that caused a failure") {
  const auto ending = [](const char* name, bool by_signal, int code, const char* why) {
    return ProcessExit{name, "h", {by_signal, code, why}};
  };
  using Endings = std::vector<ProcessExit>;
  const auto blamed = [](const Endings& e) {
    JobEnd job;
    job.endings = e;
    const ProcessExit* c = culprit(job);
    return c == nullptr ? std::string("nobody") : c->name;
  };
  CHECK(blamed({ending("0", false, 0, "own"), ending("1", true, 15, "stopped")}) == "nobody");
  CHECK(blamed({ending("0", false, 3, "own"), ending("1", false, 4, "own")}) == "0");
  // Other processes notice the loss before the launcher learns that the process has ended.
  CHECK(blamed({ending("0", false, 5, "own"), ending("1", true, 9, "own"), ending("2", false, 5, "own")}) == "1");
  CHECK(blamed({ending("0", false, 5, "own"), ending("2", false, 5, "own")}) == "0");
  CHECK(blamed({ending("0", true, 15, "orphaned"), ending("1", false, 5, "own")}) == "1");
  CHECK(blamed({ending("0", true, 15, "orphaned"), ending("1", true, 9, "vanished")}) == "1");
  CHECK(blamed({ending("0", true, 15, "stopped"), ending("1", true, 15, "orphaned")}) == "1");
  CHECK(exit_code_for({false, 17, "own"}) == 17);
  CHECK(exit_code_for({true, SIGKILL, "own"}) == 5);
  CHECK(exit_code_for({true, SIGTERM, "own"}) == 5);
  CHECK(exit_code_for({true, SIGSEGV, "own"}) == 1);
  CHECK(exit_code_for({true, SIGABRT, "own"}) == 1);
}

TEST_CASE("messages of mpirun about a rank are parsed") {
  CHECK(rank_that_mpirun_blames("MPI_ABORT was invoked on rank 12 in communicator MPI_COMM_WORLD") == 12);
  CHECK(rank_that_mpirun_blames("mpirun noticed that process rank 3 with PID 0 on node b exited on signal 9") == 3);
  CHECK_FALSE(rank_that_mpirun_blames("all is well on rank 3").has_value());
  CHECK_FALSE(rank_that_mpirun_blames("MPI_ABORT was invoked on rank x").has_value());
}

TEST_CASE("the reason for an unusable host is found") {
  const Host b{"b", 0, 1, 1};
  auto p = connection_problem(b, false, 255, "Warning: x\nroot@b: Permission denied (publickey).\r\n", "/p");
  CHECK(p.code == 5);
  CHECK(contains(p.message, "[host b]"));
  CHECK(contains(p.message, "Permission denied (publickey)"));
  p = connection_problem(b, false, 127, "sh: 1: exec: /p: not found\n", "/p");
  CHECK(p.code == 2);
  CHECK(contains(p.message, "/p"));
  CHECK(contains(p.message, "--remote-launch"));
  p = connection_problem(b, false, 255, "\x1b]0;evil\x07\n", "/p");
  for (const char c : p.message) CHECK(static_cast<unsigned char>(c) >= 0x20);
}

TEST_CASE("the exit codes of the ranks of one mpirun are combined into one result") {
  const auto ending = [](const char* name, bool by_signal, int code, const char* why) {
    return ProcessExit{name, "h", {by_signal, code, why}};
  };
  const ProcessExit done = ending("worker 0", false, 0, "own"), makes_way = ending("worker 1", false, 75, "own"),
                    killed = ending("worker 2", true, 9, "own"), stopped = ending("worker 3", true, 15, "stopped"),
                    lost_it = ending("worker 4", false, 5, "own"), gone = ending("worker 5", true, 9, "vanished"),
                    usage = ending("worker 6", false, 2, "own"), data = ending("worker 7", false, 3, "own");
  CHECK((in_order(done) && in_order(makes_way) && !in_order(killed) && !in_order(lost_it)));
  CHECK((!ends_job({makes_way, killed, stopped, data}) && ends_job({makes_way, usage})));
  CHECK(ends_job({ending("worker 0", false, 6, "own")}));
  CHECK(ends_job({ending("worker 0", false, 143, "own")}));
  const auto culprits = culprits_of({done, makes_way, killed, stopped, lost_it, gone, data});
  REQUIRE(culprits.size() == 2);
  CHECK((culprits[0].name == killed.name && culprits[1].name == data.name));
  const auto without_failure = culprits_of({done, stopped, lost_it, gone});
  REQUIRE(without_failure.size() == 1);
  CHECK(without_failure[0].name == gone.name);
  CHECK(culprits_of({lost_it, stopped}).empty());
  CHECK(done_in_order({makes_way, killed})[0].good());
  CHECK(!done_in_order({makes_way, killed})[1].good());
}

TEST_CASE("ranks of a generation know their numbers and the state that earlier ranks left") {
  Order o;
  o.elastic = o.through_mpi = o.joins = true;
  o.command = {"true"};
  o.workers = 2;
  const ProcessOrder p{"worker", 7, 0, 1, 1};
  const auto has = [&](const std::string& entry) {
    const auto all = environment_of(o, p, "/state/worker-7.progress", "");
    return std::find(all.begin(), all.end(), entry) != all.end();
  };
  CHECK((has("TUTTI_RANK=7") && has("TUTTI_SIZE=8") && has("NEW_WORKER=1") && !has("TUTTI_KEPT=")));
  o.generation = 3;
  o.founders = 4;
  o.kept = "17 0 a run";
  for (const char* entry : {"TUTTI_RANK=1", "TUTTI_SIZE=2", "TUTTI_GENERATION=3", "TUTTI_FOUNDERS=4",
                            "TUTTI_KEEP=/state/worker-7.kept", "TUTTI_KEPT=17 0 a run", "TUTTI_ELASTIC=1"})
    CHECK_MESSAGE(has(entry), entry);
  CHECK(!has("NEW_WORKER=1"));
}

TEST_CASE("the end of a worker that was lost or removed before is no failure") {
  const test::TempFolder folder;
  const Options o = parse_options({"--elastic", "--elastic-dir", folder.path().string(), "-n", "1", "true"});
  const Plan plan = make_plan(o);
  OneMember members;
  JobFolder of_job;
  std::list<Link> links;
  Elastic elastic(o, plan, members, of_job, links, [](const std::string&) {});
  control::Decision stands;
  stands.kind = control::Decision::Kind::standing;
  elastic.hear({stands, ""});
  CHECK(elastic.meaning_of({"worker 4", "h", {true, SIGTERM, "own"}}) == Elastic::Meaning::none);
  CHECK(elastic.meaning_of({"worker 0", "h", {true, SIGKILL, "own"}}) == Elastic::Meaning::noted);

  // The host of a server is reachable again when the user asks the job to stop.
  control::Decision lost;
  lost.kind = control::Decision::Kind::lost;
  lost.member.role = control::Role::server;
  elastic.hear({lost, "server 1"});
  members.stops = true;
  CHECK(elastic.meaning_of({"server 1", "h", {true, SIGKILL, "own"}}) == Elastic::Meaning::none);
  CHECK(elastic.meaning_of({"server 0", "h", {true, SIGKILL, "own"}}) == Elastic::Meaning::noted);
}

TEST_CASE("the launcher classifies the end of a worker") {
  using Meaning = Elastic::Meaning;
  const test::TempFolder folder;
  const Options o = parse_options({"--elastic", "--elastic-dir", folder.path().string(), "-n", "3", "true"});
  const Plan plan = make_plan(o);
  OneMember members;
  members.members = {"worker 0", "worker 1", "worker 2"};
  JobFolder of_job;
  std::list<Link> links;
  std::string said;
  Elastic elastic(o, plan, members, of_job, links, [&](const std::string& text) { said += text + "\n"; });
  control::Decision stands, lost;
  stands.kind = control::Decision::Kind::standing;
  lost.kind = control::Decision::Kind::lost;
  lost.why = "silence";
  const End killed{true, SIGKILL, "own"}, failed{false, 3, "own"}, good{false, 0, "own"};
  elastic.hear({stands, ""});

  SUBCASE("a worker that was removed from the job counts until the other workers have formed a new group") {
    for (const bool stand : {false, true}) {
      const std::string name = stand ? "worker 1" : "worker 2";
      elastic.hear({lost, name});
      CHECK(elastic.has_given_up(name));
      if (stand) elastic.hear({stands, ""});
      CHECK(elastic.meaning_of({name, "h", killed}, true) == (stand ? Meaning::none : Meaning::noted));
    }
    CHECK(said.find("SIGKILL") == std::string::npos);
  }
  SUBCASE("killed, before and after another worker has done the work") {
    members.finishes = true;
    CHECK(elastic.meaning_of({"worker 1", "h", killed}) == Meaning::noted);
    CHECK(elastic.meaning_of({"worker 0", "h", good, true}) == Meaning::noted);
    CHECK(elastic.meaning_of({"worker 2", "h", killed}) == Meaning::none);
    CHECK(said.find("warning: worker 2 on h: its end by SIGKILL; the work was done") != std::string::npos);
  }
  SUBCASE("failed by itself after another worker has done the work") {
    members.finishes = true;
    CHECK(elastic.meaning_of({"worker 0", "h", good, true}) == Meaning::noted);
    CHECK(elastic.meaning_of({"worker 2", "h", failed}) == Meaning::noted);
  }
  SUBCASE("a loss that is not finite: the other workers would get the same loss") {
    const End not_finite{false, static_cast<int>(ExitCode::not_finite), "own"};
    CHECK_FALSE(elastic.ends_job({"worker 0", "h", killed}));
    CHECK_FALSE(elastic.ends_job({"worker 0", "h", failed}));
    CHECK_FALSE(elastic.ends_job({"worker 7", "h", not_finite}));
    CHECK_FALSE(elastic.ends_job({"worker 0", "h", {false, not_finite.code, "stopped"}}));
    CHECK(elastic.ends_job({"worker 1", "h", not_finite}));
    elastic.hear({lost, "worker 1"});
    elastic.hear({lost, "worker 2"});
    CHECK(said.find("workers continue") == std::string::npos);
  }
  SUBCASE("servers that the launcher ended are not lost") {
    lost.member.role = control::Role::server;
    elastic.job_ends();
    elastic.hear({lost, "server 0"});
    CHECK(said.find("server 0") == std::string::npos);
  }
  SUBCASE("only the worker that completed the work counts as done, not a worker that left") {
    control::Decision left;
    left.kind = control::Decision::Kind::left;
    elastic.hear({left, "worker 1"});
    left.work_done = true;
    elastic.hear({left, "worker 2"});
    CHECK_FALSE((elastic.did_work("worker 0") || elastic.did_work("worker 1") || elastic.did_work("server 0")));
    CHECK(elastic.did_work("worker 2"));
  }
}

TEST_CASE("the loss of the last server makes an elastic job fail unless a worker has done the work") {
  const test::TempFolder folder;
  Options o = parse_options({"--elastic", "--elastic-dir", folder.path().string(), "-n", "2", "-s", "1", "true"});
  o.rank_timeout = 0.3;
  const Plan plan = make_plan(o);
  // The processes have no agent: a link that ends at once takes its place.
  std::filesystem::create_symlink("/bin/true", folder / "ssh");
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", folder.path().c_str(), 1);
  Link link({Host{"h"}, false, plan.first().order}, o);
  ::setenv("PATH", path.c_str(), 1);
  for (const bool finished : {false, true}) {
    CAPTURE(finished);
    JobControl job(o, plan);
    const auto say = [&](const std::string& name, const control::Message& m) {
      control::split_message(control::encode(m),
                             [&](std::string_view frame) { CHECK(job.hear(name, io::to_base64(frame))); });
    };
    const std::vector<std::string> names{"worker 0", "worker 1", "server 0"};
    for (const std::string& name : names) job.started(name, link);
    job.forget(link);
    for (const int i : {0, 1})
      say(names[static_cast<std::size_t>(i)], control::Enrol{control::Role::worker, i, "h", ""});
    say("server 0", control::Enrol{control::Role::server, 0, "h", ""});
    for (const std::string& name : names) say(name, control::GroupReady{1});
    if (finished) job.ended("worker 0", true, "exit code 0");
    std::optional<control::Decision> loss;
    std::vector<Problem> problems;
    const auto is_lost = [&] {
      for (const char* name : {"worker 0", "worker 1"}) say(name, control::Heartbeat{1});
      problems = job.lost(ProgressBoard());
      for (const auto& update : job.take_updates())
        if (update.decision.kind == control::Decision::Kind::lost) loss = update.decision;
      return loss.has_value();
    };
    poll(is_lost, std::chrono::minutes(1), "the loss of the server");
    CHECK((loss->member.role == control::Role::server && loss->fatal));
    CHECK(job.ends_job(*loss) == !finished);
    REQUIRE(problems.size() == (finished ? 0 : 1));
    if (!finished) CHECK((problems[0].code == 5 && contains(problems[0].message, "server 0 on h")));
  }
}

TEST_CASE("the remains of Open MPI's sessions are removed, those of another job are not") {
  const test::TempFolder temp;
  const fs::path top = temp.path() / "ompi.host.0", ours = top / "jf.1", other = top / "jf.2";
  const auto end = [&](const fs::path& session) {
    std::ofstream(session_file(temp.path())) << session.string() << "\n1 0 0\n";
    end_mpi_session(temp.path());
    CHECK_FALSE(fs::exists(session_file(temp.path())));
  };

  fs::create_directories(ours / "0");
  end(ours);
  CHECK_FALSE(fs::exists(top));

  // A daemon ended between its two steps of cleanup: the folder of all sessions is empty.
  fs::create_directories(top);
  end(ours);
  CHECK_FALSE(fs::exists(top));

  fs::create_directories(ours);
  fs::create_directories(other);
  end(ours);
  CHECK_FALSE(fs::exists(ours));
  CHECK(fs::exists(other));

  // This is no path of Open MPI.
  const fs::path foreign = temp.path() / "elsewhere" / "jf.1";
  fs::create_directories(foreign);
  end(foreign);
  CHECK(fs::exists(foreign));
}
