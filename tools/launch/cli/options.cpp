// SPDX-License-Identifier: MIT
#include "tools/launch/cli/options.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/launch/cli/gpus_of_command.hpp"
#include "tools/launch/cli/option_table.hpp"
#include "tools/launch/host/job_state.hpp"

namespace tutti::launch {

namespace {

void check_mpi_arguments(const Options& o, const std::string& launcher) {
  if (launcher != "mpi" && !o.mpi_arguments.empty())
    fail<UsageError>("--mpi-arg", "--launcher mpi", "--launcher " + launcher);
}

void check(Options& o) {
  if (o.kill) {
    if (!o.command.empty()) fail<UsageError>("--kill", "no command", "'" + printable(o.command[0]) + "'");
    if (!o.kill_job.empty() && !is_job(o.kill_job))
      fail<UsageError>("--job", "the 16 digits that the launcher printed", "'" + printable(o.kill_job) + "'");
    return;
  }
  if (!o.kill_job.empty()) fail<UsageError>("--job", "--kill with it", "none");
  check_elastic(o.elastic);
  if (o.elastic.launch_worker != !o.elastic.host.empty())
    fail<UsageError>(o.elastic.launch_worker ? "--launch-worker" : "--host",
                     o.elastic.launch_worker ? "--host HOST with it" : "--launch-worker with it", "none");
  if (o.elastic.launch_worker) {
    if (!o.command.empty())
      fail<UsageError>("--launch-worker", "no command, because workers run the job's command",
                       "'" + printable(o.command[0]) + "'");
    return;
  }
  if (o.command.empty()) fail<UsageError>("command line", "a command to run", "none", "--help lists the options");
  if (o.command[0].empty()) fail<UsageError>("command line", "a command to run", "an empty word");
  if (o.launcher == "local" && !o.hosts_file.empty())
    fail<UsageError>("--launcher local", "no hosts file, because all processes start on this host", o.hosts_file);
  look_for_slurm(o);
  if (o.launcher == "ssh" && o.hosts_file.empty() && o.allocation.empty())
    fail<UsageError>("--launcher ssh", "a hosts file, -H FILE", "none");
  o.gpus = detail::gpus_of_command(o.command);
  if (o.hosts_file.empty() && o.allocation.empty() && !o.workers && !o.gpus)
    fail<UsageError>("command line", "the number of workers, -n N", "neither it nor a hosts file");
  if (o.launcher == "mpi" && o.servers.value_or(0) > 0)
    fail<UsageError>("--num-servers", "no servers with --launcher mpi, because mpirun starts only ranks",
                     std::to_string(*o.servers), "use --launcher local or ssh for servers");
  if (!o.launcher.empty()) check_mpi_arguments(o, o.launcher);
  if (o.servers == 0 && !o.on_servers.empty()) fail<UsageError>("--env-server", "servers, -s N", "none");
  if (!o.sync_dir.empty() && o.sync_dir.front() != '/')
    fail<UsageError>("--sync-dst-dir", "a path that begins with /", "'" + printable(o.sync_dir) + "'");
  if (o.stall_deadline > 0 && o.stall_deadline < o.stall_warning) o.stall_warning = o.stall_deadline / 2;
}

}  // namespace

int servers_for(const Options& o, const std::optional<LaunchInfo>& answer, int workers) {
  const std::string program = answer ? printable(o.command.at(0)) + " trains with strategy " + answer->strategy : "";
  if (answer && !answer->servers && o.servers.value_or(0) > 0)
    fail<UsageError>("--num-servers", "none, because " + program, std::to_string(*o.servers),
                     "leave -s out, or use --strategy ps to train with servers");
  const bool needed = answer && answer->servers;
  if (needed && o.launcher == "mpi")
    fail<UsageError>("--launcher", "local or ssh, because " + program, "mpi, which starts only ranks",
                     "leave --launcher out");
  if (needed && o.servers == 0)
    fail<UsageError>("--num-servers", "1 or more, because " + program, "0",
                     "leave -s out to get as many servers as workers");
  const int servers = o.servers.value_or(needed ? workers : 0);
  if (servers == 0 && !o.on_servers.empty()) fail<UsageError>("--env-server", "servers, -s N", "none");
  if (servers == 0 && o.server_restarts > 0) fail<UsageError>("--server-restarts", "servers, -s N", "none");
  if (needed && !answer->servers_restart && o.server_restarts > 0)
    fail<UsageError>("--server-restarts", "0, because " + program + ", because its servers save no state",
                     std::to_string(o.server_restarts), "use --resume to continue after a loss");
  return servers;
}

std::string launcher_for(const Options& o, const std::optional<LaunchInfo>& answer, std::size_t workers) {
  const std::string program = answer ? printable(o.command.at(0)) : "";
  const bool over_mpi = answer && answer->over_mpi && (workers > 1 || o.elastic.on);
  if (over_mpi && !o.launcher.empty() && o.launcher != "mpi")
    fail<UsageError>("--launcher", "mpi, because " + program + " trains with strategy " + answer->strategy, o.launcher,
                     "leave --launcher out; ssh is used for other hosts anyway");
  std::string launcher = o.launcher;
  if (launcher.empty())
    launcher = over_mpi ? "mpi" : !o.slurm_job.empty() ? "srun" : o.hosts_file.empty() ? "local" : "ssh";
  check_mpi_arguments(o, launcher);
  return launcher;
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options o;
  command_line::Line line = command_line::read(arguments, detail::option_table(o), detail::form());
  o.text = line.text;
  if (!o.text.empty()) return o;
  o.command = line.words;
  check(o);
  return o;
}

}  // namespace tutti::launch
