// SPDX-License-Identifier: MIT
#include "tools/launch/cli/options.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/core/printable.hpp>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/cli/gpus_of_command.hpp"
#include "tools/launch/host/job_state.hpp"

namespace tutti::launch {

namespace detail {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

int integer(const std::string& option, const std::string& text, int low, int high) {
  const auto value = tutti::detail::number_between(text, low, high);
  if (!value)
    fail<UsageError>(option, "an integer from " + std::to_string(low) + " to " + std::to_string(high),
                     "'" + printable(text) + "'");
  return *value;
}

double seconds(const std::string& option, const std::string& text, double low) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low && value <= 1e6))
    fail<UsageError>(option, low > 0 ? "seconds, more than 0" : "seconds, 0 or more", "'" + printable(text) + "'");
  return value;
}

}  // namespace detail

namespace detail {

namespace {

bool is_variable_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

}  // namespace

}  // namespace detail

namespace detail {

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

std::vector<Option> option_table(Options& o) {
  const auto text = [](std::string& to) {
    return [&to](const std::string& option, const std::string& v) {
      if (v.empty()) fail<UsageError>(option, "a value", "an empty one");
      to = v;
    };
  };
  const auto time = [](double& to, double low) {
    return [&to, low](const std::string& option, const std::string& v) { to = seconds(option, v, low); };
  };
  const auto flag = [](bool& to) { return [&to](const std::string&, const std::string&) { to = true; }; };
  const auto variables = [](Variables& to, bool alone) {
    return [&to, alone](const std::string& option, const std::string& v) { to.push_back(variable(option, v, alone)); };
  };
  constexpr double least = 0.05;
  return {
      {"--num-workers", true, [&o](const auto& n, const auto& v) { o.workers = integer(n, v, 1, 1 << 20); }},
      {"--num-servers", true, [&o](const auto& n, const auto& v) { o.servers = integer(n, v, 0, 1 << 20); }},
      {"--server-restarts", true,
       [&o](const auto& n, const auto& v) { o.server_restarts = integer(n, v, 0, 1 << 20); }},
      {"--hostfile", true, text(o.hosts_file)},
      {"--hosts", true, text(o.hosts_file)},
      {"--launcher", true,
       [&o](const std::string& n, const std::string& v) {
         if (v != "local" && v != "ssh" && v != "srun" && v != "mpi")
           fail<UsageError>(n, "local, ssh, srun or mpi", "'" + printable(v) + "'");
         o.launcher = v;
       }},
      {"--job-name", true, text(o.job_name)},
      {"--log-dir", true, text(o.log_dir)},
      {"--env", true, variables(o.everywhere, true)},
      {"--env-worker", true, variables(o.on_workers, false)},
      {"--env-server", true, variables(o.on_servers, false)},
      {"--sync-dst-dir", true, text(o.sync_dir)},
      {"--ssh-config", true, text(o.ssh_config)},
      {"--remote-launch", true, text(o.remote_program)},
      {"--root-port", true, [&o](const auto& n, const auto& v) { o.root_port = integer(n, v, 1, 65534); }},
      {"--mpi-arg", true, [&o](const auto&, const auto& v) { o.mpi_arguments.push_back(v); }},
      {"--elastic", false, flag(o.elastic.on)},
      {"--elastic-training-enabled", true, [&o](const auto& n, const auto& v) { o.elastic.on = truth(n, v); }},
      {"--elastic-dir", true, text(o.elastic.folder)},
      {"--elastic-at", true,
       [&o](const std::string& n, const std::string& v) {
         if (v != "epoch" && v != "step") fail<UsageError>(n, "epoch or step", "'" + printable(v) + "'");
         o.elastic.at_epoch = v == "epoch";
         o.elastic.at_given = true;
       }},
      {"--min-workers", true,
       [&o](const auto& n, const auto& v) { o.elastic.min_workers = integer(n, v, 1, 1 << 20); }},
      {"--max-workers", true,
       [&o](const auto& n, const auto& v) { o.elastic.max_workers = integer(n, v, 1, 1 << 20); }},
      {"--min-timeout", true, time(o.elastic.min_timeout, 0)},
      {"--restart-budget", true,
       [&o](const auto& n, const auto& v) { o.elastic.restart_budget = integer(n, v, 0, 1 << 20); }},
      {"--prepare-script", true, [&o](const auto&, const auto& v) { o.elastic.prepare = read_script(v); }},
      {"--accept-new-hosts", false, flag(o.elastic.accept_new_hosts)},
      {"--launch-worker", false, flag(o.elastic.launch_worker)},
      {"--host", true, text(o.elastic.host)},
      {"--connect-timeout", true, time(o.connect_timeout, least)},
      {"--host-timeout", true, time(o.host_timeout, least)},
      {"--rank-timeout", true, time(o.rank_timeout, 1)},
      {"--stall-warning", true, time(o.stall_warning, least)},
      {"--stall-deadline", true, time(o.stall_deadline, 0)},
      {"--stop-timeout", true, time(o.stop_timeout, 0)},
      {"--kill", false, flag(o.kill)},
      {"--job", true, text(o.kill_job)},
      {"--help", false, flag(o.help)},
      {"--version", false, flag(o.version)},
  };
}

}  // namespace detail

namespace detail {

namespace {

void check_mpi_arguments(const Options& o, const std::string& launcher) {
  if (launcher != "mpi" && !o.mpi_arguments.empty())
    fail<UsageError>("--mpi-arg", "--launcher mpi", "--launcher " + launcher);
}

}  // namespace

}  // namespace detail

namespace detail {

void check(Options& o, bool job_given) {
  if (o.kill) {
    if (!o.command.empty()) fail<UsageError>("--kill", "no command", "'" + printable(o.command[0]) + "'");
    if (job_given && !is_job(o.kill_job))
      fail<UsageError>("--job", "the 16 digits that the launcher printed", "'" + printable(o.kill_job) + "'");
    return;
  }
  if (job_given) fail<UsageError>("--job", "--kill with it", "none");
  check_elastic(o.elastic);
  if (o.elastic.launch_worker != !o.elastic.host.empty())
    fail<UsageError>(o.elastic.launch_worker ? "--launch-worker" : "--host",
                     o.elastic.launch_worker ? "--host HOST with it" : "--launch-worker with it", "none");
  if (o.elastic.launch_worker) {
    if (!o.command.empty())
      fail<UsageError>("--launch-worker", "no command, because workers run that of the job",
                       "'" + printable(o.command[0]) + "'");
    return;
  }
  if (o.command.empty()) fail<UsageError>("command line", "a command to run", "none", "--help shows the options");
  if (o.command[0].empty()) fail<UsageError>("command line", "a command to run", "an empty word");
  if (o.launcher == "local" && !o.hosts_file.empty())
    fail<UsageError>("--launcher local", "no hosts file, because everything starts on this host", o.hosts_file);
  look_for_slurm(o);
  if (o.launcher == "ssh" && o.hosts_file.empty() && o.allocation.empty())
    fail<UsageError>("--launcher ssh", "a hosts file, -H FILE", "none");
  o.gpus = gpus_of_command(o.command);
  if (o.hosts_file.empty() && o.allocation.empty() && !o.workers && !o.gpus)
    fail<UsageError>("command line", "the number of workers, -n N", "neither it nor a hosts file");
  if (o.launcher == "mpi" && o.servers.value_or(0) > 0)
    fail<UsageError>("--num-servers", "none with --launcher mpi, because all that mpirun starts are ranks",
                     std::to_string(*o.servers), "servers need --launcher local or ssh");
  if (!o.launcher.empty()) check_mpi_arguments(o, o.launcher);
  if (o.servers == 0 && !o.on_servers.empty()) fail<UsageError>("--env-server", "servers, -s N", "none");
  if (!o.sync_dir.empty() && o.sync_dir.front() != '/')
    fail<UsageError>("--sync-dst-dir", "a path that begins with /", "'" + printable(o.sync_dir) + "'");
  if (o.stall_deadline > 0 && o.stall_deadline < o.stall_warning) o.stall_warning = o.stall_deadline / 2;
}

}  // namespace detail

int servers_for(const Options& o, const std::optional<LaunchInfo>& answer, int workers) {
  const std::string program = answer ? printable(o.command.at(0)) + " trains with strategy " + answer->strategy : "";
  if (answer && !answer->servers && o.servers.value_or(0) > 0)
    fail<UsageError>("--num-servers", "none, because " + program, std::to_string(*o.servers),
                     "without -s its workers sum their gradients; --strategy ps trains with servers");
  const bool needed = answer && answer->servers;
  if (needed && o.launcher == "mpi")
    fail<UsageError>("--launcher", "local or ssh, because " + program, "mpi, which starts nothing but ranks",
                     "leave --launcher out");
  if (needed && o.servers == 0)
    fail<UsageError>("--num-servers", "1 or more, because " + program, "0", "without -s there are as many as workers");
  const int servers = o.servers.value_or(needed ? workers : 0);
  if (servers == 0 && !o.on_servers.empty()) fail<UsageError>("--env-server", "servers, -s N", "none");
  if (servers == 0 && o.server_restarts > 0) fail<UsageError>("--server-restarts", "servers, -s N", "none");
  if (needed && !answer->servers_restart && o.server_restarts > 0)
    fail<UsageError>("--server-restarts", "0, because " + program + ", whose servers keep nothing",
                     std::to_string(o.server_restarts), "--resume goes on after a loss");
  return servers;
}

std::string launcher_for(const Options& o, const std::optional<LaunchInfo>& answer, std::size_t workers) {
  const std::string program = answer ? printable(o.command.at(0)) : "";
  const bool over_mpi = answer && answer->over_mpi && (workers > 1 || o.elastic.on);
  if (over_mpi && !o.launcher.empty() && o.launcher != "mpi")
    fail<UsageError>("--launcher", "mpi, because " + program + " trains with strategy " + answer->strategy, o.launcher,
                     "leave --launcher out; hosts are reached by ssh then as well");
  std::string launcher = o.launcher;
  if (launcher.empty())
    launcher = over_mpi ? "mpi" : !o.slurm_job.empty() ? "srun" : o.hosts_file.empty() ? "local" : "ssh";
  detail::check_mpi_arguments(o, launcher);
  return launcher;
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options o;
  const auto table = detail::option_table(o);
  bool job_given = false;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') break;
    std::string name = argument, value;
    bool has_value = false;
    if (argument.starts_with("--")) {
      const std::size_t equals = argument.find('=');
      has_value = equals != std::string::npos;
      name = detail::with_dashes(argument.substr(0, equals));
      if (has_value) value = argument.substr(equals + 1);
    } else {
      constexpr std::pair<char, const char*> letters[] = {
          {'n', "--num-workers"}, {'s', "--num-servers"}, {'H', "--hostfile"}, {'h', "--help"}};
      for (const auto& [letter, full] : letters)
        if (argument[1] == letter) name = full;
      has_value = argument.size() > 2;
      if (has_value) value = argument.substr(2);
    }
    const auto option = std::find_if(table.begin(), table.end(), [&](const auto& t) { return t.name == name; });
    if (option == table.end()) {
      std::vector<std::string> known;
      for (const auto& t : table) known.emplace_back(std::string(t.name).substr(2));
      const std::string nearest = name.size() > 2 ? nearest_word(std::string_view(name).substr(2), known) : "";
      fail<UsageError>("command line", "an option", "'" + printable(argument) + "', which is none",
                       (nearest.empty() ? "" : "did you mean --" + nearest + "; ") +
                           "the options of the command come after it; --help lists all");
    }
    if (has_value && !option->takes_value) fail<UsageError>(name, "no value", "'" + printable(value) + "'");
    if (option->takes_value && !has_value) {
      if (++i == arguments.size()) fail<UsageError>(name, "a value", "none");
      value = arguments[i];
    }
    option->set(name, value);
    job_given = job_given || name == "--job";
    constexpr std::string_view elastic[] = {"--elastic-dir",    "--elastic-at",      "--min-workers",
                                            "--max-workers",    "--min-timeout",     "--restart-budget",
                                            "--prepare-script", "--accept-new-hosts"};
    if (o.elastic.first_given.empty() && std::find(std::begin(elastic), std::end(elastic), name) != std::end(elastic))
      o.elastic.first_given = name;
    if (o.help || o.version) return o;
  }
  o.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  detail::check(o, job_given);
  return o;
}

}  // namespace tutti::launch
