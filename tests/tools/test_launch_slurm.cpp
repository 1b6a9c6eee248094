// SPDX-License-Identifier: MIT
// Tests tutti-launch within a job of Slurm: the hosts that it uses, and how it reaches them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/slurm.hpp"
#include "tools/launch/host/ssh.hpp"
#include "tools/launch/job/plan.hpp"

using namespace tutti;
using namespace tutti::launch;
using test::contains;
using test::message_of;

namespace {

using VariableMap = std::map<std::string, std::string>;

auto getter(const VariableMap& variables) {
  return [&variables](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  };
}

// Sets environment variables during its lifetime.
class Environment {
 public:
  explicit Environment(VariableMap v) : variables_(std::move(v)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  VariableMap variables_;
};

const VariableMap job{{"SLURM_JOB_ID", "12"}, {"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", "2(x2),1"}};

}  // namespace

TEST_CASE("the nodes of a job are its hosts") {
  const auto hosts = [](VariableMap more) {
    more.insert(job.begin(), job.end());
    return slurm_hosts(getter(more));
  };
  CHECK(slurm_hosts(getter({})).empty());
  CHECK(slurm_hosts(getter({{"SLURM_JOB_NODELIST", "a"}})).empty());
  CHECK(hosts({}) == std::vector<Host>{{"n1", 0, 2}, {"n2", 0, 2}, {"n3", 0, 1}});
  CHECK(hosts({{"SLURM_TASKS_PER_NODE", ""}}) == std::vector<Host>{{"n1"}, {"n2"}, {"n3"}});
  // In a shell that srun has started, the hosts are the nodes of the step.
  CHECK(hosts({{"SLURM_TASKS_PER_NODE", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}) ==
        std::vector<Host>{{"n1"}, {"n2"}, {"n3"}});
  for (const std::pair<std::string, std::string>& wrong :
       std::vector<std::pair<std::string, std::string>>{{"SLURM_TASKS_PER_NODE", "1"},
                                                        {"SLURM_TASKS_PER_NODE", "1(x4)"},
                                                        {"SLURM_JOB_ID", "1;ls"},
                                                        {"SLURM_JOB_ID", "-1"},
                                                        {"SLURM_JOB_ID", "12345678901"},
                                                        {"SLURM_JOB_NODELIST", "--help"}}) {
    CAPTURE(wrong.first);
    CAPTURE(wrong.second);
    CHECK_THROWS_AS((void)hosts({wrong}), UsageError);
  }
}

TEST_CASE("options have different defaults within a job of Slurm") {
  const Environment inside(job);
  const auto options = [](std::vector<std::string> words) {
    words.emplace_back("program");
    return parse_options(words);
  };
  const Options o = options({});
  CHECK(o.slurm_job == "12");
  CHECK(launcher_for(o, {}, 5) == "srun");
  auto hosts = hosts_of(o);
  CHECK((hosts.size() == 3 && count_workers(o, hosts) == 5));
  CHECK(options({"--launcher", "srun"}).slurm_job == "12");
  CHECK(options({"--launcher", "mpi"}).slurm_job == "12");
  CHECK((options({"--launcher", "ssh"}).slurm_job.empty() && options({"--launcher", "ssh"}).allocation.size() == 3));
  CHECK((options({"--launcher", "local", "-n", "2"}).allocation.empty()));
  // A hosts file has precedence over the nodes of the job.
  CHECK((options({"-H", "hosts"}).allocation.empty() && options({"-H", "hosts"}).slurm_job.empty()));

  const auto said = [&](const std::vector<std::string>& words) {
    return message_of<UsageError>([&] { (void)options(words); });
  };
  CHECK(contains(said({"--launcher", "srun", "-H", "hosts"}), "[--launcher srun]"));
  CHECK(contains(said({"--sync-dst-dir", "/tmp/x"}), "--launcher ssh"));
  CHECK(contains(said({"--launcher", "local"}), "-n N"));
  const Environment of_srun(VariableMap{{"SLURM_STEP_NUM_TASKS", "4"}});
  CHECK(contains(said({}), "call tutti-launch without srun"));
}

TEST_CASE("srun needs a job of Slurm") {
  CHECK(contains(message_of<UsageError>([] {
                   (void)parse_options({"--launcher", "srun", "-n", "1", "program"});
                 }),
                 "[--launcher srun]"));
}

TEST_CASE("srun gets only names of nodes and of jobs") {
  SshSettings s;
  s.slurm_job = "12";
  const auto words = ssh_arguments(s, {"n1"});
  CHECK(words.front() == "srun");
  CHECK(std::find(words.begin(), words.end(), "--jobid=12") != words.end());
  CHECK(std::find(words.begin(), words.end(), "--nodelist=n1") != words.end());
  CHECK((words.at(words.size() - 3) == "--" && words.back() == "-c"));
  for (const char* name : {"-n1", "a b", "a,b", "a[1-2]", "", "^/etc/passwd", "::1"}) {
    CAPTURE(name);
    CHECK_THROWS_AS((void)ssh_arguments(s, {name}), UsageError);
  }
}

TEST_CASE("a node is this host if Slurm's daemon names it") {
  CHECK_FALSE(is_here({"tutti-no-such-node"}));
  const Environment inside(VariableMap{{"SLURMD_NODENAME", "tutti-no-such-node"}});
  CHECK(is_here({"tutti-no-such-node"}));
}
