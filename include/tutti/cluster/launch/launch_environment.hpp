// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include <tutti/cluster/launch/slurm.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti {

// What a process learns from its launcher. The launcher is tutti-launch (TUTTI_*), Open MPI's mpirun
// (OMPI_COMM_WORLD_*), mpirun of another MPI (PMI_*), or srun of Slurm with its PMIx (SLURM_*, PMIX_*); the first of
// these that is found counts. Without a launcher the process is a job of one process.
struct LaunchEnvironment {
  int rank = 0, size = 1;  // among the job's processes of this role
  int local_rank = 0, local_size = 1;
  int workers = 1, servers = 0;
  std::string role = "worker";  // or "server", "scheduler"
  std::string role_variable;    // the variable that gave the role
  std::string host;             // this host's name in the hosts file
  std::string job;              // 16 hexadecimal digits
  std::string secret;           // a secret that only the ranks of the job know
  std::string root;             // host:port at which rank 0 may listen
  int root_ports = 1;           // number of ports at which rank 0 may listen, from that port on
  std::string report;           // file of this process's progress, see progress_report.hpp
  bool elastic = false;         // workers join and leave: `rank` is a number, and `size` is not the number of ranks
  bool new_worker = false;      // this process was added after the job had begun
  int epoch_begin = 0;          // the epoch of the job at that time
  // For jobs in which each generation starts all its processes anew. generation: its number, from 1 on (0 in other
  // jobs). founders: number of processes that began the job. keep: the file in which rank 0 stores data for later
  // generations. kept: the file that earlier generations have left.
  int generation = 0, founders = 0;
  std::string keep, kept;
  bool servers_restart = false;  // a server that crashes or is killed is started again
  bool launched = false;         // a launcher started this process as one of several
  // For a job with servers whose processes are started one by one by scripts, as MXNet's are. scheduler: host:port of
  // its scheduler, which numbers the processes. node_host: this process's address for other processes, if it is set.
  std::string scheduler, node_host;
  bool numbered = true;  // false: rank is not known yet
  bool mpi = false;      // mpirun started it, alone or for tutti-launch, or srun did: MPI finds the other ranks
  bool srun = false;     // srun started it
  std::optional<SlurmStep> step;  // the step of srun in which this process runs, whatever launcher started it
  int torch_size = 1;             // processes that torchrun or another launcher of PyTorch's jobs started

  [[nodiscard]] bool is_server() const noexcept { return role == "server"; }
  [[nodiscard]] bool is_scheduler() const noexcept { return role == "scheduler"; }
  [[nodiscard]] std::string starter_of_mpi() const { return srun ? "srun" : "mpirun"; }
};

namespace detail {

template <class Get>
[[nodiscard]] std::string text_variable(const Get& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

// Reads an integer from `low` to `high`. Throws UsageError if the variable has another value.
template <class Get>
[[nodiscard]] std::optional<int> number_variable(const Get& get, const char* name, int low, int high) {
  const char* value = get(name);
  if (value == nullptr) return {};
  const auto number = number_between(value, low, high);
  if (!number)
    fail<UsageError>({"environment ", name}, {"an integer from ", low, " to ", high}, {"'", printable(value), "'"},
                     "the launcher of the job sets it");
  return number;
}

// The names of the variables in which one kind of launcher passes rank and size.
struct StarterNames {
  const char *rank, *size, *local_rank, *local_size;
};
inline constexpr StarterNames tutti_names{"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"};
inline constexpr StarterNames mpi_names[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};

// Returns rank and size from one kind of launcher; no value if it did not start this process.
template <class Get>
[[nodiscard]] std::optional<LaunchEnvironment> read_numbers(const Get& get, const StarterNames& names) {
  constexpr int most = 1 << 24;
  const auto size = number_variable(get, names.size, 1, most);
  const auto rank = number_variable(get, names.rank, 0, size.value_or(most) - 1);
  if (!size && !rank) return {};
  if (!size || !rank)
    fail<UsageError>({"environment ", (size ? names.rank : names.size)},
                     {"a number together with ",
                      (size ? names.size + (" " + std::to_string(*size)) : names.rank + (" " + std::to_string(*rank)))},
                     "no value", "'tutti-launch -n N' or 'mpirun -np N' starts N processes and sets both");
  LaunchEnvironment e;
  e.launched = true;
  e.size = *size;
  e.rank = *rank;
  e.local_size = number_variable(get, names.local_size, 1, e.size).value_or(1);
  e.local_rank = number_variable(get, names.local_rank, 0, e.local_size - 1).value_or(0);
  return e;
}

// Reads the role from TUTTI_ROLE, or else from DMLC_ROLE. The default is "worker".
template <class Get>
void read_role(const Get& get, LaunchEnvironment& e) {
  for (const char* name : {"TUTTI_ROLE", "DMLC_ROLE"}) {
    const std::string role = text_variable(get, name);
    if (role.empty()) continue;
    if (role != "worker" && role != "server" && role != "scheduler")
      fail<UsageError>({"environment ", name}, "worker, server or scheduler", {"'", printable(role), "'"});
    e.role = role;
    e.role_variable = name;
    return;
  }
}

// Reads DMLC_PS_ROOT_URI and _PORT, which give processes of a job with servers the address of its scheduler. A worker
// without servers ignores them.
template <class Get>
void read_scheduler(const Get& get, LaunchEnvironment& e) {
  const std::string host = text_variable(get, "DMLC_PS_ROOT_URI");
  if (host.empty() || (e.role == "worker" && e.servers == 0)) return;
  if (!is_host_name(host) && !is_ipv6_address(host))
    fail<UsageError>("environment DMLC_PS_ROOT_URI", "the scheduler's host name or address",
                     {"'", printable(host), "'"});
  const auto required = [&](const char* name, int low, int high) {
    if (const auto number = number_variable(get, name, low, high)) return *number;
    fail<UsageError>({"environment ", name}, {"a number together with DMLC_PS_ROOT_URI ", host}, "no value",
                     "set it to the same number for all processes of the job");
  };
  e.scheduler = host_and_port(host, required("DMLC_PS_ROOT_PORT", 1, 65535));
  e.workers = required("DMLC_NUM_WORKER", 1, 1 << 24);
  e.servers = required("DMLC_NUM_SERVER", 1, 1 << 24);
  e.size = e.is_server() ? e.servers : e.workers;
  e.numbered = e.is_scheduler();
  e.launched = true;
  e.node_host = text_variable(get, "DMLC_NODE_HOST");
  if (!e.node_host.empty() && !is_host_name(e.node_host) && !is_ipv6_address(e.node_host))
    fail<UsageError>("environment DMLC_NODE_HOST", "this host's name or address", {"'", printable(e.node_host), "'"});
}

// Returns WORLD_SIZE if a launcher of PyTorch's jobs has set it, such as torchrun --no-python, which also sets RANK and
// MASTER_ADDR. Otherwise returns 1: a shell may contain one of these variables from an earlier command.
template <class Get>
[[nodiscard]] int read_torch_size(const Get& get) {
  for (const char* name : {"RANK", "MASTER_ADDR"})
    if (text_variable(get, name).empty()) return 1;
  return number_between(text_variable(get, "WORLD_SIZE"), 1, 1 << 24).value_or(1);
}

}  // namespace detail

// Reads the variables through `get`, which answers like std::getenv. Throws UsageError that names an invalid variable.
template <class Get>
[[nodiscard]] LaunchEnvironment read_launch_environment(const Get& get) {
  const auto ours = detail::read_numbers(get, detail::tutti_names);
  auto mpi = detail::read_numbers(get, detail::mpi_names[0]);
  if (!mpi) mpi = detail::read_numbers(get, detail::mpi_names[1]);
  LaunchEnvironment e = ours ? *ours : mpi.value_or(LaunchEnvironment{});
  e.mpi = mpi.has_value();
  e.step = read_slurm_step(get);
  e.torch_size = detail::read_torch_size(get);
  detail::read_role(get, e);
  // Scripts set DMLC_ROLE, and they number their processes themselves.
  if (!ours && !mpi && e.step && e.step->pmix && e.role_variable != "DMLC_ROLE") {
    e.launched = e.mpi = e.srun = true;
    e.rank = e.step->rank;
    e.size = e.step->size;
    e.local_rank = e.step->local_rank;
    e.local_size = e.step->local_size;
  }
  e.workers = e.size;
  // mpirun -x passes these variables to ranks that find each other without MPI.
  e.job = detail::text_variable(get, "TUTTI_JOB");
  e.secret = detail::text_variable(get, "TUTTI_SECRET");
  e.root = detail::text_variable(get, "TUTTI_ROOT");
  e.root_ports = detail::number_variable(get, "TUTTI_ROOT_PORTS", 1, 100).value_or(1);
  // If only DMLC_NUM_WORKER is set, it is left over in a shell, and no launcher has started this process.
  if (ours || (!mpi && e.role_variable == "DMLC_ROLE")) {
    e.workers = detail::number_variable(get, "DMLC_NUM_WORKER", 0, 1 << 24).value_or(e.workers);
    e.servers = detail::number_variable(get, "DMLC_NUM_SERVER", 0, 1 << 24).value_or(0);
    if (!ours) detail::read_scheduler(get, e);
  }
  if (!ours) return e;
  // A job was started inside a process of another job: it is unknown whose numbers are valid.
  if (mpi && (mpi->rank != e.rank || mpi->size != e.size))
    fail<UsageError>("environment", {"TUTTI_RANK ", e.rank, " of ", e.size, " from mpirun as well"},
                     {"rank ", mpi->rank, " of ", mpi->size},
                     "start the job with tutti-launch --launcher mpi, or with mpirun, not with one inside the other");
  e.servers_restart = detail::number_variable(get, "TUTTI_SERVERS_RESTART", 0, 1).value_or(0) == 1;
  e.host = detail::text_variable(get, "TUTTI_HOST");
  e.report = detail::text_variable(get, "TUTTI_REPORT");
  e.elastic = detail::number_variable(get, "TUTTI_ELASTIC", 0, 1).value_or(0) == 1;
  if (!e.elastic) return e;
  e.new_worker = detail::number_variable(get, "NEW_WORKER", 0, 1).value_or(0) == 1;
  e.epoch_begin = detail::number_variable(get, "EPOCH_BEGIN", 0, 1 << 30).value_or(0);
  e.generation = detail::number_variable(get, "TUTTI_GENERATION", 1, 1 << 30).value_or(0);
  e.founders = detail::number_variable(get, "TUTTI_FOUNDERS", 1, 1 << 20).value_or(e.size);
  e.keep = detail::text_variable(get, "TUTTI_KEEP");
  e.kept = detail::text_variable(get, "TUTTI_KEPT");
  return e;
}
[[nodiscard]] inline LaunchEnvironment read_launch_environment() {  // of this process
  return read_launch_environment([](const char* name) { return std::getenv(name); });
}

// For programs in which all processes train. Throws UsageError for a server or a scheduler, because it does not train,
// and for workers without numbers, because each would train a separate net.
inline void require_worker(const LaunchEnvironment& e) {
  if (!e.launched && e.step && e.step->size > 1) {
    const std::string n = std::to_string(e.step->size);
    fail<UsageError>("environment SLURM_STEP_NUM_TASKS", {"PMIx, through which the ", n, " processes find each other"},
                     "srun without PMIx",
                     {"'srun --mpi=pmix -n ", n, "' and, within the allocation, 'mpirun -np ", n,
                      "' start ranks of MPI; within it 'tutti-launch -n ", n, "' starts ranks of any strategy"});
  }
  if (!e.launched && e.torch_size > 1) {
    const std::string n = std::to_string(e.torch_size);
    fail<UsageError>("environment WORLD_SIZE",
                     {"tutti-launch or mpirun to start the ", n, " processes: otherwise each trains a separate net"},
                     "torchrun or another launcher of PyTorch's jobs",
                     {"tutti-launch -n ", n, " starts as many; to train in one process, unset WORLD_SIZE"});
  }
  if (e.role != "worker")
    fail<UsageError>(
        {"environment ", e.role_variable},
        {"worker, because ", std::string(e.is_server() ? "of the strategies only ps and ps_async have servers"
                                                       : "workers and servers need no scheduler")},
        {"'", e.role, "'"},
        "tutti-launch -n N without -s starts N workers, which sum their gradients themselves; processes that "
        "are started one by one find the scheduler by DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT");
  if (!e.launched && e.workers > 1)
    fail<UsageError>("environment DMLC_NUM_WORKER", {"tutti-launch or mpirun to start the ", e.workers, " workers"},
                     "DMLC_ROLE of another launcher, which gives them no numbers",
                     {"tutti-launch -n ", e.workers, " starts as many; to train in one process, unset DMLC_ROLE"});
}

// Throws UsageError if the number of started processes differs from the size of the strategy: each process would train
// a separate net, with the batches and rates of all processes. The error names the command that works.
inline void require_launched_size(const LaunchEnvironment& e, const std::string& strategy, int size) {
  if (size == e.size) return;
  const std::string n = std::to_string(e.size);
  const bool one = e.size == 1;
  fail<UsageError>(
      {"--strategy ", strategy},
      one ? "one rank, because one process was started" : n + " ranks, because " + n + " processes were started",
      {size, (size == 1 ? " rank" : " ranks")},
      e.srun  ? "use an MPI that supports PMIx, or 'tutti-launch -n " + n + "' within the allocation"
      : e.mpi ? "use the mpirun of the MPI that the program is linked with"
              : "'tutti-launch -n " + n + " --launcher mpi' and 'mpirun -np " + n + "' start ranks of MPI");
}

}  // namespace tutti
