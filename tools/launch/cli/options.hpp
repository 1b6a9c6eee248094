// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>

#include "tools/launch/cli/elastic_options.hpp"
#include "tools/launch/host/slurm.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

struct Options {
  std::optional<int> workers;
  std::optional<int> servers;  // absent: as many as workers where the program needs some
  bool servers_hold = false;   // as the program answers, see LaunchInfo
  int server_restarts = 0, root_port = 0;
  std::string hosts_file, launcher;  // launcher: empty where it is not said, see launcher_for
  std::string sync_dir, log_dir, job_name, ssh_config, remote_program;
  Variables everywhere, on_workers, on_servers;
  std::vector<std::string> mpi_arguments, command;
  double connect_timeout = 10, host_timeout = 30, rank_timeout = 10, stall_warning = 30, stall_deadline = 600,
         stop_timeout = 60;
  ElasticOptions elastic{};
  bool kill = false, help = false, version = false;
  std::string kill_job;
  std::vector<Host> allocation{};  // nodes of the Slurm job in which this runs, where they are the job's hosts
  std::string slurm_job{};         // its number, where srun reaches them
  std::optional<int> gpus;         // how many --gpus in the command names; absent: none, or no list of numbers
};

inline constexpr std::string_view help_text =
    R"(Starts the processes of a job, watches them, and ends them all when one fails.

Usage: tutti-launch [OPTIONS] [--] COMMAND [ARGUMENTS]
       tutti-launch --kill [-H FILE] [--job ID]

What to start
  -n, --num-workers N       workers: processes; hosts where the command has --gpus 0,1,..., of which
                            each then gets a process for each of these GPUs  [all slots, or hosts]
  -s, --num-servers N       servers, of which each has TUTTI_ROLE=server and which end with the workers
                            [as many as workers where the program says, asked beforehand, that it
                            trains with parameter servers; else none]
      --server-restarts N   start a server that died again under its number, so many times in all
                            [0]
  -H, --hostfile, --hosts FILE
                            hosts, one a line: [USER@]NAME[:PORT] [slots=N]. This host, if it is
                            among them, comes first and has rank 0; the others are filled in this
                            order, from the first again beyond the total. "localhost" is this host.
                            Without it, within a job of Slurm (sbatch, salloc): the nodes of the job,
                            each with as many slots as it has tasks
      --launcher WORD       local, ssh, srun or mpi  [what the program needs: mpi where it says, asked
                            beforehand, that its ranks meet over MPI; else ssh with a hosts file,
                            srun for the nodes of a job of Slurm, local without either]
      --job-name NAME       name in log files  [the command's]
      --log-dir DIR         one log file per process, ROLE-RANK.log, in this folder
What they find
      --env NAME[=VALUE]    set a variable everywhere, or pass on the launcher's own; repeatable.
                            Processes on this host have the launcher's environment anyway
      --env-worker NAME=VALUE, --env-server NAME=VALUE
      --sync-dst-dir DIR    copy the working folder to DIR of each host first (rsync), and run there
How to reach hosts
      --ssh-config FILE     for ssh -F
      --remote-launch PATH  this program on the other hosts  [the path that it has here]
      --root-port N         port of rank 0's host where the ranks meet; N+1 is for parameter servers
                            [free ones]
      --mpi-arg ARGUMENT    one more argument for mpirun; repeatable
Workers that come and go
      --elastic             the job goes on while workers come and go: hosts that are added to the file
                            host_worker, which has -H's form, join, hosts that are deleted there leave,
                            and so does a worker that gets SIGTERM. A worker that dies is started again,
                            under a new number, while the others go on. host_worker_log tells who came
                            and went: SEQ ADDED|REMOVED HOST TIME_NS. Also: --elastic-training-enabled
                            True
      --elastic-dir DIR     the folder of both files  [this program's if it can be written and is no bin
                            folder, else the working one]
      --elastic-at WORD     epoch: hosts leave at the end of an epoch, and those that the same edit adds
                            join an epoch later; step: both at once  [epoch; step where no worker waits
                            for another one, with ps_async]
      --min-workers N       with fewer the others wait  [1]
      --max-workers N       more are not started  [as many as the file says]
      --min-timeout S       so long, and then the job ends with 5  [600]
      --restart-budget N    how often workers of a host are started again after they died, later and
                            later, until it is listed anew  [10]
      --prepare-script FILE
                            runs on a host that joins before its worker; no worker where it fails
      --accept-new-hosts    hosts that join need not stand in ssh's known_hosts
      --launch-worker --host HOST
                            adds HOST, with slots=N for -n N, to the hosts file of the job in
                            --elastic-dir.
                            Where WORKER_LAUNCH_TEMPLATE_ID and ELASTIC_WORKER_TAG are set, the elastic
                            manager edits that file as instances of this launch template come and go
Times in seconds
      --connect-timeout S   until a host has answered  [10]
      --host-timeout S      without a word from a host until it counts as lost  [30]
      --rank-timeout S      without a sign of life from a process that has opened its channel, as
                            the training programs do where they use it, until it is lost  [10]
      --stall-warning S     without progress of a rank until a warning names it  [30]
      --stall-deadline S    without progress of a rank until the job is ended; 0: never  [600]
      --stop-timeout S      from SIGINT or SIGTERM, which the processes get, to their end  [60]
Ending a job
      --kill                end what is recorded as running on this host, or on the hosts of -H
      --job ID              of this job only
      --help, --version

Options come before the command, and may be written with - or _. A process finds TUTTI_RANK, _SIZE,
_LOCAL_RANK, _LOCAL_SIZE, _HOST, _JOB, _ROOT (host:port for a rendezvous), _ROOT_PORTS (so many from
that one on), _SECRET (which no line shows: who knows it is of the job), _REPORT, _ROLE, and
DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT; with --elastic also
TUTTI_ELASTIC=1, and where it joins NEW_WORKER=1 and EPOCH_BEGIN. Each line of its output appears with
its rank: [0], servers [s0].
Exit codes: that of the process that failed first; 5 where it was killed, stood still, or its host was
lost; 1 where it crashed; 2 usage, or a program that is missing; 130 and 143 after SIGINT and SIGTERM.
)";

namespace detail {

std::string with_dashes(std::string name);

int integer(const std::string& option, const std::string& text, int low, int high);

double seconds(const std::string& option, const std::string& text, double low);

// NAME=VALUE, as older scripts have it NAME:VALUE, or where it is allowed NAME alone.
std::pair<std::string, std::string> variable(const std::string& option, const std::string& text, bool alone);

struct Option {
  std::string_view name;
  bool takes_value;
  std::function<void(const std::string& option, const std::string& value)> set;
};

std::vector<Option> option_table(Options& o);

void check(Options& o, bool job_given);

}  // namespace detail

// How many servers there are beside so many workers, for a program that gave this answer, if any. UsageError names what
// works.
[[nodiscard]] int servers_for(const Options& o, const std::optional<LaunchInfo>& answer, int workers);

// The launcher for a program that gave this answer, if any, about so many workers. UsageError names what works.
[[nodiscard]] std::string launcher_for(const Options& o, const std::optional<LaunchInfo>& answer, std::size_t workers);

// Reads the command line. UsageError names the option that is wrong.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments);

}  // namespace tutti::launch
