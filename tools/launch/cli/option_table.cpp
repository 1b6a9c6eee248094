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
        "number of workers. If the command has --gpus 0,1,...: number of hosts, each of which gets a worker for each "
        "of these GPUs  [all slots, or all hosts]",
        group},
       {"-s,--num-servers", "N", integer(o.servers, 0, 1 << 20),
        "number of parameter servers. They have TUTTI_ROLE=server, and end after the workers  [the number of workers "
        "if the program says that it trains with parameter servers, otherwise 0]",
        group},
       {"--server-restarts", "N", integer(o.server_restarts, 0, 1 << 20),
        "restart a server that died, with the same number, at most N times in total  [0]", group, false},
       {"-H,--hostfile", "FILE", text(o.hosts_file),
        "file with the hosts, one on each line: [USER@]NAME[:PORT] [slots=N]. This host, if it is listed, comes first "
        "and has rank 0. The slots of the other hosts are filled in the order of the lines, and again from the first "
        "host if there are more workers than slots. \"localhost\" is this host. Without a file in a job of Slurm "
        "(sbatch, salloc): the nodes of the job, each with as many slots as it has tasks",
        group},
       {"--launcher", "WORD", one_of(o.launcher, {"local", "ssh", "srun", "mpi"}),
        "how processes are started: local, ssh, srun or mpi  [mpi if the program says that its ranks use MPI; "
        "otherwise ssh with a hosts file, srun for the nodes of a job of Slurm, local without either]",
        group},
       {"--job-name", "NAME", text(o.job_name), "name of the job in the log files  [the command's name]", group, false},
       {"--log-dir", "DIR", text(o.log_dir),
        "also write the output of each process to a file in this folder: ROLE-RANK.log", group}});
}

void add_environment(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "Environment of the processes";
  table.insert(table.end(),
               {{"--env", "NAME[=VALUE]", variables(o.everywhere, true),
                 "set a variable of all processes, or pass the launcher's value to them; repeatable. Processes on "
                 "this host inherit the launcher's environment",
                 group},
                {"--env-worker", "NAME=VALUE", variables(o.on_workers, false),
                 "set a variable of the workers; repeatable", group, false},
                {"--env-server", "NAME=VALUE", variables(o.on_servers, false),
                 "set a variable of the servers; repeatable", group, false},
                {"--encrypt", "WORD",
                 [&o](const std::string& option, const std::string& value) {
                   std::string word;
                   command_line::one_of(word, {"auto", "on", "off"})(option, value);
                   o.everywhere.emplace_back("TUTTI_ENCRYPT", word);
                 },
                 "encrypt the connections of gloo between hosts: on (exit code 4 if the build has no OpenSSL), off, or "
                 "auto (on if the build has OpenSSL). Sets TUTTI_ENCRYPT  [auto]",
                 group},
                {"--sync-dst-dir", "DIR", text(o.sync_dir),
                 "copy the working folder to DIR on each host (rsync), and run the command there", group}});
}

void add_hosts(std::vector<Option>& table, Options& o) {
  using namespace command_line;
  const std::string group = "How to reach hosts";
  const Set mpi = [&o](const std::string&, const std::string& value) { o.mpi_arguments.push_back(value); };
  table.insert(
      table.end(),
      {{"--ssh-config", "FILE", text(o.ssh_config), "configuration file for ssh (ssh -F)", group, false},
       {"--remote-launch", "PATH", text(o.remote_program),
        "path of tutti-launch on the other hosts  [its path on this host]", group, false},
       {"--root-port", "N", integer(o.root_port, 1, 65534),
        "port on rank 0's host to which the ranks connect; parameter servers use port N+1  [free ports]", group, false},
       {"--mpi-arg", "ARGUMENT", mpi, "pass an argument to mpirun; repeatable", group, false}});
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
       "let workers join and leave while the job runs. Edit the file host_worker, which has the format of -H: hosts "
       "that you add join, and hosts that you delete leave. A worker that gets SIGTERM leaves too. A worker that dies "
       "is replaced by a worker with a new number, while the other workers continue. The file host_worker_log lists "
       "the changes: SEQ ADDED|REMOVED HOST TIME_NS",
       group});
  table.push_back({"--elastic-training-enabled", "WORD",
                   [&e](const std::string& option, const std::string& value) { e.on = truth(option, value); },
                   "True: the same as --elastic. False: the job is not elastic", group, false});
  add("--elastic-dir", "DIR", text(e.folder),
      "folder of host_worker and host_worker_log  [the folder of tutti-launch if it can be written and is no bin "
      "folder, otherwise the working folder]",
      true);
  add(
      "--elastic-at", "WORD",
      [&e](const std::string& option, const std::string& value) {
        std::string word;
        one_of(word, {"epoch", "step"})(option, value);
        e.at_epoch = word == "epoch";
        e.at_given = true;
      },
      "epoch: after an edit, hosts leave at the end of an epoch, and hosts that the same edit adds join an epoch "
      "later; step: hosts leave and join after the current step  [epoch; step with ps_async, whose workers do not "
      "wait for each other]");
  add("--min-workers", "N", integer(e.min_workers, 1, 1 << 20), "the job waits while it has fewer than N workers  [1]",
      true);
  add("--max-workers", "N", integer(e.max_workers, 1, 1 << 20), "start at most N workers  [as many as the file lists]",
      true);
  add("--min-timeout", "S", seconds(e.min_timeout, 0),
      "end the job with exit code 5 if it has waited for workers for S seconds  [600]");
  add("--restart-budget", "N", integer(e.restart_budget, 0, 1 << 20),
      "how often workers of a host are replaced after they died, each time after a longer pause. The count begins "
      "again if you remove the host from host_worker and list it again  [10]");
  add(
      "--prepare-script", "FILE",
      [&e](const std::string&, const std::string& value) { e.prepare = read_script(value); },
      "script that runs on each host that joins, before the worker starts; if it fails, the worker does not start");
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
  table.insert(
      table.end(),
      {{"--connect-timeout", "S", seconds(o.connect_timeout, least), "longest time until a host answers  [10]", group,
        false},
       {"--host-timeout", "S", seconds(o.host_timeout, least),
        "a host that sends no message for this time counts as lost  [30]", group, false},
       {"--rank-timeout", "S", seconds(o.rank_timeout, 1),
        "a process that has opened its channel to the launcher counts as lost if it sends no heartbeat for this time  "
        "[10]",
        group, false},
       {"--stall-warning", "S", seconds(o.stall_warning, least),
        "print a warning that names a rank that makes no progress for this time  [30]", group, false},
       {"--stall-deadline", "S", seconds(o.stall_deadline, 0),
        "end the job if a rank makes no progress for this time; 0: never  [600]", group},
       {"--stop-timeout", "S", seconds(o.stop_timeout, 0),
        "time that the processes have to end after SIGINT or SIGTERM, which the launcher forwards to them  [60]", group,
        false}});
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
  table.push_back(
      {"--kill", "", command_line::flag(o.kill), "end all recorded jobs of this host, or of the hosts of -H", group});
  table.push_back({"--job", "ID", command_line::text(o.kill_job), "with --kill: end only this job", group});
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
that one on), _SECRET (not shown in any output: a process that knows it belongs to the job), _REPORT, _ROLE, and
DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT; with --elastic also
TUTTI_ELASTIC=1, and if it joins NEW_WORKER=1 and EPOCH_BEGIN. Each line of its output appears with
its rank: [0], servers [s0].
Exit codes: that of the process that failed first; 5 if it was killed, stalled, or its host was
lost; 1 if it crashed; 2 usage, or a program that is missing; 130 and 143 after SIGINT and SIGTERM.)",
          .hint = "--help-all lists all options",
          .runs_command = true};
}

}  // namespace tutti::launch::detail
