// SPDX-License-Identifier: MIT
#include "tools/launch/cli/option_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/command_line/values.hpp"
#include "tools/launch/agent/rank_process.hpp"

namespace tutti::launch::detail {

namespace {

using command_line::Option;
using command_line::Set;

bool is_variable_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// Reads NAME=VALUE. Also accepts NAME:VALUE, which older scripts use, and NAME if `alone` is true.
std::pair<std::string, std::string> variable(const std::string& option, const std::string& text, bool alone) {
  const std::size_t at = text.find_first_of("=:");
  const std::string name = text.substr(0, at);
  if (!is_variable_name(name))
    fail<UsageError>(option, alone ? "NAME or NAME=VALUE" : "NAME=VALUE", "'" + printable(text) + "'");
  if (is_launcher_variable(name)) fail<UsageError>(option, "a variable that the launcher does not set itself", name);
  if (at != std::string::npos) return {name, text.substr(at + 1)};
  const char* value = alone ? std::getenv(name.c_str()) : nullptr;
  if (value == nullptr)
    fail<UsageError>(option, alone ? "a variable that is set here" : "NAME=VALUE",
                     name + (alone ? ", which is not set" : ""));
  return {name, value};
}

Set seconds(double& to, double low) {
  return [&to, low](const std::string& option, const std::string& value) {
    to = command_line::number(option, value, low, 1e6, low > 0 ? "seconds, more than 0" : "seconds, 0 or more");
  };
}

Set variables(Variables& to, bool alone) {
  return [&to, alone](const std::string& option, const std::string& value) {
    to.push_back(variable(option, value, alone));
  };
}

void add_start(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "What to start";
  table.insert(
      table.end(),
      {{"-n,--num-workers", "N", integer(o.workers, 1, 1 << 20),
        "workers: processes; hosts if the command has --gpus 0,1,..., each of which gets a process for each of these "
        "GPUs  [all slots, or hosts]",
        group},
       {"-s,--num-servers", "N", integer(o.servers, 0, 1 << 20),
        "servers; each has TUTTI_ROLE=server, and they end with the workers  [as many as workers if the program says "
        "that it trains with parameter servers, else 0]",
        group},
       {"--server-restarts", "N", integer(o.server_restarts, 0, 1 << 20),
        "restart a server that died, under its number; at most this often in total  [0]", group, false},
       {"-H,--hostfile", "FILE", text(o.hosts_file),
        "hosts, one on each line: [USER@]NAME[:PORT] [slots=N]. This host, if it is listed, comes first and has rank "
        "0; the "
        "others are filled in this order, starting over after the last one. \"localhost\" is this host. Without a "
        "file, "
        "inside a job of Slurm (sbatch, salloc): the nodes of the job, each with as many slots as it has tasks",
        group},
       {"--launcher", "WORD", one_of(o.launcher, {"local", "ssh", "srun", "mpi"}),
        "local, ssh, srun or mpi  [what the program needs: mpi if it says that its ranks use MPI; otherwise ssh with "
        "a "
        "hosts file, srun for the nodes of a job of Slurm, local without either]",
        group},
       {"--job-name", "NAME", text(o.job_name), "name in log files  [the command's]", group, false},
       {"--log-dir", "DIR", text(o.log_dir), "one log file for each process, ROLE-RANK.log, in this folder", group}});
}

void add_environment(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "Environment of the processes";
  table.insert(
      table.end(),
      {{"--env", "NAME[=VALUE]", variables(o.everywhere, true),
        "set a variable everywhere, or pass on the launcher's own; repeatable. Processes on this host inherit the "
        "launcher's environment",
        group},
       {"--env-worker", "NAME=VALUE", variables(o.on_workers, false), "set a variable of workers; repeatable", group,
        false},
       {"--env-server", "NAME=VALUE", variables(o.on_servers, false), "set a variable of servers; repeatable", group,
        false},
       {"--sync-dst-dir", "DIR", text(o.sync_dir),
        "copy the working folder to DIR of each host first (rsync), and run there", group}});
}

void add_hosts(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "How to reach hosts";
  const Set mpi = [&o](const std::string&, const std::string& value) { o.mpi_arguments.push_back(value); };
  table.insert(
      table.end(),
      {{"--ssh-config", "FILE", text(o.ssh_config), "for ssh -F", group, false},
       {"--remote-launch", "PATH", text(o.remote_program),
        "this program on the other hosts  [the path that it has here]", group, false},
       {"--root-port", "N", integer(o.root_port, 1, 65534),
        "port of rank 0's host to which the ranks connect; N+1 is for parameter servers  [free ones]", group, false},
       {"--mpi-arg", "ARGUMENT", mpi, "one more argument for mpirun; repeatable", group, false}});
}

void add_elastic(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "Workers that join and leave";
  ElasticOptions& e = o.elastic;
  const auto add = [&](const char* name, const char* value, const Set& set, const char* help, bool common = false) {
    // check_elastic() refuses these options without --elastic.
    const Set notes = [&e, name, set](const std::string& option, const std::string& text) {
      set(option, text);
      if (e.first_given.empty()) e.first_given = name;
    };
    table.push_back({name, value, notes, help, group, common});
  };
  table.push_back(
      {"--elastic", "", flag(e.on),
       "the job continues while workers join and leave: hosts that are added to the file host_worker, which has -H's "
       "form, "
       "join; hosts that are deleted there leave, and so does a worker that gets SIGTERM. A worker that dies is "
       "restarted with a new number while the others continue. host_worker_log lists the changes: SEQ ADDED|REMOVED "
       "HOST TIME_NS",
       group});
  table.push_back({"--elastic-training-enabled", "WORD",
                   [&e](const std::string& option, const std::string& value) { e.on = truth(option, value); },
                   "True is --elastic, False is not", group, false});
  add("--elastic-dir", "DIR", text(e.folder),
      "the folder of both files  [this program's if it can be written and is no bin folder, else the working one]",
      true);
  add(
      "--elastic-at", "WORD",
      [&e](const std::string& option, const std::string& value) {
        std::string word;
        one_of(word, {"epoch", "step"})(option, value);
        e.at_epoch = word == "epoch";
        e.at_given = true;
      },
      "epoch: hosts leave at the end of an epoch, and those that the same edit adds join an epoch later; step: both at "
      "once  [epoch; step if no worker waits for another one, with ps_async]");
  add("--min-workers", "N", integer(e.min_workers, 1, 1 << 20), "with fewer workers, the job waits  [1]", true);
  add("--max-workers", "N", integer(e.max_workers, 1, 1 << 20),
      "more workers are not started  [as many as the file lists]", true);
  add("--min-timeout", "S", seconds(e.min_timeout, 0),
      "seconds of waiting for workers, after which the job ends with 5  [600]");
  add("--restart-budget", "N", integer(e.restart_budget, 0, 1 << 20),
      "how often workers of a host are restarted after they died, each time later, until the host is listed again  "
      "[10]");
  add(
      "--prepare-script", "FILE",
      [&e](const std::string&, const std::string& value) { e.prepare = read_script(value); },
      "runs on a host that joins before its worker; the worker does not start if it fails");
  add("--accept-new-hosts", "", flag(e.accept_new_hosts), "accept joining hosts that are not in ssh's known_hosts");
  table.push_back(
      {"--launch-worker", "", flag(e.launch_worker),
       "with --host: adds HOST, with slots=N for -n N, to the hosts file of the job in --elastic-dir. If "
       "WORKER_LAUNCH_TEMPLATE_ID and ELASTIC_WORKER_TAG are set, the elastic manager edits that file as instances of "
       "this launch template start and end",
       group, false});
  table.push_back({"--host", "HOST", text(e.host), "with --launch-worker: the host to add", group, false});
}

void add_times(std::vector<Option>& table, Options& o) {
  const std::string group = "Times in seconds";
  constexpr double least = 0.05;
  table.insert(table.end(), {{"--connect-timeout", "S", seconds(o.connect_timeout, least),
                              "until a host has answered  [10]", group, false},
                             {"--host-timeout", "S", seconds(o.host_timeout, least),
                              "without a message from a host until it counts as lost  [30]", group, false},
                             {"--rank-timeout", "S", seconds(o.rank_timeout, 1),
                              "without a sign of life from a process that has opened its channel, as the training "
                              "programs do if they use it, "
                              "until it is lost  [10]",
                              group, false},
                             {"--stall-warning", "S", seconds(o.stall_warning, least),
                              "without progress of a rank until a warning names it  [30]", group, false},
                             {"--stall-deadline", "S", seconds(o.stall_deadline, 0),
                              "without progress of a rank until the job is ended; 0: never  [600]", group},
                             {"--stop-timeout", "S", seconds(o.stop_timeout, 0),
                              "from SIGINT or SIGTERM, which the processes get, to their end  [60]", group, false}});
}

}  // namespace

std::vector<Option> option_table(Options& o) {
  std::vector<Option> table;
  add_start(table, o);
  add_environment(table, o);
  add_hosts(table, o);
  add_elastic(table, o);
  add_times(table, o);
  const std::string group = "Ending a job";
  table.push_back({"--kill", "", command_line::flag(o.kill),
                   "end the recorded processes of this host, or of the hosts of -H", group});
  table.push_back({"--job", "ID", command_line::text(o.kill_job), "of this job only", group});
  return table;
}

command_line::Form form() {
  return {.program = "tutti-launch",
          .title = "Starts the processes of a job, watches them, and ends all of them when one fails.",
          .usage = R"(tutti-launch [OPTIONS] [--] COMMAND [ARGUMENTS]
       tutti-launch --kill [-H FILE] [--job ID])",
          .notes =
              R"(Options come before the command, and may be written with - or _. A process finds TUTTI_RANK, _SIZE,
_LOCAL_RANK, _LOCAL_SIZE, _HOST, _JOB, _ROOT (host:port for a rendezvous), _ROOT_PORTS (the number of ports from
that one on), _SECRET (which no line shows: a process that knows it belongs to the job), _REPORT, _ROLE, and
DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT; with --elastic also
TUTTI_ELASTIC=1, and if it joins NEW_WORKER=1 and EPOCH_BEGIN. Each line of its output appears with
its rank: [0], servers [s0].
Exit codes: that of the process that failed first; 5 if it was killed, stalled, or its host was
lost; 1 if it crashed; 2 usage, or a program that is missing; 130 and 143 after SIGINT and SIGTERM.)",
          .hint = "--help-all lists all options",
          .runs_command = true};
}

}  // namespace tutti::launch::detail
