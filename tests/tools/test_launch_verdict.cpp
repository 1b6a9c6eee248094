// SPDX-License-Identifier: MIT
// Tests how the exit code of a job depends on the ends of its processes.
#include <doctest/doctest.h>

#include <signal.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/job/job_verdict.hpp"

using namespace tutti;
using namespace tutti::launch;

namespace {

using Cause = JobResult::Cause;

// how: "work": exit code 0 at the end of the job's work; "left": exit code 0 after the worker left; "exit N", "kill N":
// the process itself; other words: how the launcher, an agent or mpirun ended it.
ProcessExit ending(const std::string& name, const std::string& how) {
  ProcessExit e{name, "h", {}, how == "work"};
  if (how.starts_with("exit ")) e.end.code = std::stoi(how.substr(5));
  if (how.starts_with("kill ")) e.end = {true, std::stoi(how.substr(5)), "own"};
  for (const char* why : {"stopped", "unheard", "orphaned", "vanished", "ended"})
    if (how == why) e.end = {true, SIGTERM, why};
  return e;
}

struct Row {
  std::vector<std::string> workers, servers;
  int interrupted;
  Cause cause;
  int code;
  std::string blamed{};  // name of the process that caused the end, or the beginning of the name
};

JobEnd job_of(const Row& r, bool elastic) {
  JobEnd job;
  job.elastic = elastic;
  job.interrupted = r.interrupted;
  for (std::size_t i = 0; i < r.workers.size(); ++i)
    job.endings.push_back(ending("worker " + std::to_string(i), r.workers[i]));
  for (std::size_t i = 0; i < r.servers.size(); ++i)
    job.endings.push_back(ending("server " + std::to_string(i), r.servers[i]));
  return job;
}

// Checks every order in which the launcher may learn of the ends.
void check(const Row& r, bool elastic) {
  JobEnd job = job_of(r, elastic);
  std::vector<std::size_t> order(job.endings.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const std::vector<ProcessExit> all = job.endings;
  do {
    std::string text = elastic ? "elastic:" : "fixed:";
    for (std::size_t i = 0; i < order.size(); ++i) {
      job.endings[i] = all[order[i]];
      text += " " + job.endings[i].name + " " + job.endings[i].end.line() + (job.endings[i].did_work ? " done;" : ";");
    }
    CAPTURE(text);
    CAPTURE(r.interrupted);
    const JobResult v = judge(job);
    CHECK(v.cause == r.cause);
    CHECK(v.code == r.code);
    if (!r.blamed.empty()) CHECK((v.blamed != nullptr && v.blamed->name.starts_with(r.blamed)));
  } while (std::next_permutation(order.begin(), order.end()));
}

const std::string server = "server 0";

}  // namespace

TEST_CASE("the exit code of a job follows the table, in any order in which the processes end") {
  const auto done = Cause::done, interrupted = Cause::interrupted, process = Cause::process, outside = Cause::outside;
  const std::string kill = "kill 9", zero = "exit 0";
  SUBCASE("elastic members") {
    const Row rows[] = {
        // The work was done.
        {{"work", "work"}, {}, 0, done, 0},
        {{"work", "work"}, {zero, zero}, 0, done, 0},
        {{"work", "work"}, {"stopped", "kill 9"}, 0, done, 0},
        {{"work", "work"}, {"exit 5"}, SIGTERM, done, 0},
        {{"work", kill}, {zero}, 0, done, 0},
        {{"work", "exit 5"}, {}, 0, done, 0},
        {{"work", "vanished"}, {"stopped"}, SIGINT, done, 0},
        {{"work", "exit 143"}, {zero}, 0, done, 0},
        // The work was done, but a result could not be saved.
        {{"work", "exit 3"}, {zero}, 0, process, 3, "worker 1"},
        {{"work", "exit 3"}, {}, SIGINT, process, 3, "worker 1"},
        {{"work", "exit 6"}, {}, 0, process, 6, "worker 1"},
        // Workers were asked to leave, and the last one saved its state. The servers do not change the result.
        {{"exit 143", "exit 143"}, {}, 0, process, 143, "worker"},
        {{"left", "exit 143"}, {zero}, 0, process, 143, "worker 1"},
        {{"left", "exit 143"}, {zero, zero}, 0, process, 143, "worker 1"},
        {{"left", "exit 130"}, {kill, "exit 5"}, 0, process, 130, "worker 1"},
        {{"exit 143"}, {"exit 3"}, 0, process, 143, "worker"},
        {{"exit 143", "exit 3"}, {zero}, 0, process, 3, "worker 1"},
        // The user interrupted the job.
        {{"exit 130", "exit 130"}, {zero, "stopped"}, SIGINT, interrupted, 130},
        {{"exit 130", "exit 143"}, {"kill 15"}, SIGTERM, interrupted, 143},
        {{"exit 130", "left"}, {"exit 143"}, SIGHUP, interrupted, 143},
        {{"kill 2", "kill 15"}, {"kill 9"}, SIGINT, interrupted, 130},
        {{"stopped", "stopped"}, {}, SIGINT, interrupted, 130},
        {{"exit 130", "exit 3"}, {zero}, SIGINT, process, 3, "worker 1"},
        {{"exit 130", "kill 11"}, {}, SIGINT, process, 1, "worker 1"},
        {{"kill 9", "kill 2"}, {zero}, SIGINT, process, 5, "worker 0"},
        // The last worker with the trained state was lost.
        {{kill}, {zero, "stopped"}, 0, process, 5, "worker 0"},
        {{kill, "exit 5"}, {"exit 5"}, 0, process, 5, "worker 0"},
        {{"vanished"}, {"stopped"}, 0, process, 5, "worker 0"},
        {{"left", kill}, {zero}, 0, process, 5, "worker 1"},
        // A server was lost, and its workers noticed it.
        {{"exit 5", "exit 5"}, {kill}, 0, process, 5, server},
        {{"stopped", "stopped"}, {"exit 3"}, 0, process, 3, server},
        // The weights became infinite or NaN.
        {{"exit 6", "exit 6"}, {"exit 5", "stopped"}, 0, process, 6, "worker"},
        {{"exit 6", "exit 5"}, {kill}, 0, process, 6, "worker 0"},
        // The others continue without a worker that was killed.
        {{kill, "exit 6"}, {zero}, 0, process, 6, "worker 1"},
        {{kill, "exit 6", "exit 6"}, {}, 0, process, 6, "worker"},
        {{"kill 15", "exit 3"}, {kill}, 0, process, 3, "worker 1"},
        {{"kill 15", "exit 143"}, {}, 0, process, 5, "worker 0"},
        // Another program ended the job, or the launcher could not be reached.
        {{"ended", "ended"}, {"ended"}, 0, outside, 143},
        {{"unheard", "ended"}, {"unheard"}, 0, outside, 5},
        {{}, {}, 0, done, 0},
    };
    for (const Row& r : rows) check(r, true);
  }
  SUBCASE("fixed members") {
    const Row rows[] = {
        {{zero, zero}, {zero}, 0, done, 0},
        {{zero, "exit 3"}, {zero}, 0, process, 3, "worker 1"},
        {{zero, kill}, {}, 0, process, 5, "worker 1"},
        {{"exit 5", kill}, {"exit 5"}, 0, process, 5, "worker 1"},
        {{"exit 5", "exit 5"}, {"exit 3"}, 0, process, 3, server},
        {{"exit 143", "exit 143"}, {zero}, 0, process, 143, "worker"},
        {{"exit 143", "exit 3"}, {zero}, 0, process, 3, "worker 1"},
        {{"exit 130", "exit 130"}, {"exit 130", zero}, SIGINT, interrupted, 130},
        {{zero, "stopped"}, {"stopped"}, SIGTERM, interrupted, 143},
        {{"exit 130", "exit 3"}, {}, SIGINT, process, 3, "worker 1"},
        {{"orphaned", "vanished"}, {}, 0, process, 5, "worker 1"},
        {{"ended", zero}, {"ended"}, 0, outside, 143},
    };
    for (const Row& r : rows) check(r, false);
  }
}

TEST_CASE("failures that the launcher detected") {
  JobEnd job = job_of({{"exit 130", "exit 5"}, {}, SIGINT, Cause::done, 0}, true);
  job.problem = 5;
  CHECK((judge(job).cause == Cause::problem && judge(job).code == 5));
  job.problem = 0;
  CHECK(judge(job).cause == Cause::interrupted);
  // If a host does not answer, other processes lose their peers because of it.
  job = job_of({{"exit 5", "exit 5"}, {}, 0, Cause::done, 0}, false);
  CHECK(judge(job).cause == Cause::process);
  job.lost_host = true;
  CHECK((judge(job).cause == Cause::lost_host && judge(job).code == 5));
  job.endings[0] = ending("worker 0", "exit 3");
  CHECK((judge(job).cause == Cause::process && judge(job).code == 3));
  // The exit code of mpirun counts if no process has failed.
  job = job_of({{"exit 0", "exit 0"}, {}, 0, Cause::done, 0}, false);
  job.mpirun = 5;
  CHECK((judge(job).cause == Cause::mpirun && judge(job).code == 5));
  job.interrupted = SIGTERM;
  CHECK((judge(job).cause == Cause::interrupted && judge(job).code == 143));
  job = job_of({{"work", "work"}, {}, 0, Cause::done, 0}, true);
  job.mpirun = 5;
  CHECK((judge(job).cause == Cause::done && judge(job).code == 0));
}

TEST_CASE("the loss of a silent process does not count if a worker has done the work of an elastic job") {
  // The last server was silent for too long, and the other worker ended because of that.
  JobEnd job = job_of({{"work", "exit 5"}, {}, 0, Cause::done, 0}, true);
  job.loss = 5;
  CHECK((judge(job).cause == Cause::done && judge(job).code == 0));
  // A result could not be saved.
  job.endings[1] = ending("worker 1", "exit 3");
  CHECK((judge(job).cause == Cause::process && judge(job).code == 3));
  job.endings[0] = ending("worker 0", "left");
  CHECK((judge(job).cause == Cause::problem && judge(job).code == 5));
}

TEST_CASE("the exit code of a job is consistent for every combination of two workers, two servers and a signal") {
  const std::vector<std::string> workers{"work",    "left",     "exit 130", "exit 143", "exit 3",  "exit 5",
                                         "exit 6",  "kill 9",   "kill 11",  "kill 2",   "kill 15", "stopped",
                                         "unheard", "orphaned", "vanished", "ended"};
  const std::vector<std::string> servers{"exit 0", "exit 3", "exit 5", "kill 9", "kill 15", "stopped", "exit 143"};
  const auto any = [](const std::vector<std::string>& all, std::initializer_list<const char*> of) {
    return std::any_of(all.begin(), all.end(),
                       [&](const std::string& s) { return std::find(of.begin(), of.end(), s) != of.end(); });
  };
  int seen = 0;
  for (const auto& a : workers)
    for (const auto& b : workers)
      for (const auto& s : servers)
        for (const auto& t : servers)
          for (const int signal : {0, SIGINT, SIGTERM, SIGHUP}) {
            const std::vector<std::string> w{a, b};
            const Row row{w, {s, t}, signal, Cause::done, 0};
            JobEnd job = job_of(row, true);
            const JobResult v = judge(job);
            CAPTURE(a + ", " + b + "; " + s + ", " + t + "; " + std::to_string(signal));
            ++seen;
            // The cause and the code must match.
            CHECK((v.code == 0) == (v.cause == Cause::done));
            const std::string blamed = v.blamed == nullptr ? "" : v.blamed->name;
            CHECK(!blamed.empty() == (v.cause == Cause::process || v.cause == Cause::outside));
            // Of equal failures the first report counts. Here each kind of process has one failure.
            std::reverse(job.endings.begin(), job.endings.end());
            if (a == b && s == t) CHECK(judge(job).code == v.code);
            // Servers count only if no worker explains the end.
            const bool workers_say = any(w, {"work", "exit 130", "exit 143", "exit 3", "exit 6", "kill 9", "kill 11"});
            if (workers_say) {
              JobEnd alone = job;
              std::erase_if(alone.endings, [](const ProcessExit& e) { return e.is_server(); });
              std::reverse(alone.endings.begin(), alone.endings.end());
              CHECK(judge(alone).code == v.code);
              CHECK(!blamed.starts_with("server"));
            }
            const bool own_failure = any(w, {"exit 3", "exit 6"});
            const bool crashed = any(w, {"kill 9", "kill 11"});
            if (any(w, {"work"}) && !own_failure) CHECK(v.code == 0);
            if (any(w, {"work"}) && own_failure) CHECK((v.code == 3 || v.code == 6));
            const bool stopped = any(w, {"exit 130", "exit 143"});
            if (!any(w, {"work"}) && stopped && !own_failure && !crashed) {
              if (signal != 0) CHECK(v.code == (signal == SIGINT ? 130 : 143));
              if (signal == 0 && !any(w, {"kill 2", "kill 15"})) CHECK((v.code == 130 || v.code == 143));
            }
            if (!any(w, {"work"}) && crashed && !own_failure) CHECK((v.code == 5 || v.code == 1));
          }
  CHECK(seen == 16 * 16 * 7 * 7 * 4);
}
