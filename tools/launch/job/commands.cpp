// SPDX-License-Identifier: MIT
#include "tools/launch/job/commands.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/quote.hpp"

namespace tutti::launch {

std::vector<CommandResult> run_commands(std::vector<Start> starts, std::size_t parallel, double timeout,
                                        const SignalQueue& signals) {
  struct Running {
    std::size_t index;
    pid_t pid;
    std::array<io::Descriptor, 2> pipes;
    Clock::time_point began;
  };
  std::vector<CommandResult> results(starts.size());
  std::vector<Running> running;
  std::size_t next = 0;
  while (next < starts.size() || !running.empty()) {
    while (next < starts.size() && running.size() < parallel) {
      Pipe out = make_pipe(), err = make_pipe();
      starts[next].out = out.write.get();
      starts[next].err = err.write.get();
      const Started started = start_process(starts[next]);
      if (started.error == 0)
        running.push_back({next, started.pid, {std::move(out.read), std::move(err.read)}, Clock::now()});
      else
        results[next].err = starts[next].argv[0] + ": " + error_text(started.error);
      ++next;
    }
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    for (const Running& r : running)
      for (const auto& p : r.pipes) fds.push_back({p.get(), POLLIN, 0});
    (void)::poll(fds.data(), fds.size(), 50);
    int interrupted = 0;
    while (const int s = signals.next())
      if (s != SIGCHLD) interrupted = s;
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running& r = running[i];
      CommandResult& result = results[r.index];
      for (std::size_t p = 0; p < 2; ++p) {
        std::string bytes;
        if (fds[1 + 2 * i + p].revents == 0) continue;
        const ReadResult got = read_some(r.pipes[p].get(), bytes);
        if (got == ReadResult::end) r.pipes[p] = io::Descriptor();
        std::string& to = p == 0 ? result.out : result.err;
        if (got == ReadResult::bytes && to.size() < (std::size_t{1} << 20)) to += bytes;
      }
      const bool late = seconds_since(r.began) > timeout;
      if (late || interrupted != 0) ::kill(-r.pid, SIGKILL);
      if (!late && interrupted == 0 && (r.pipes[0].get() >= 0 || r.pipes[1].get() >= 0)) continue;
      int status = 0;
      while (::waitpid(r.pid, &status, 0) < 0 && errno == EINTR) {
      }
      result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      if (late) result.err = "no answer within " + std::to_string(static_cast<long>(timeout)) + " s";
      r.pid = -1;
    }
    std::erase_if(running, [](const Running& r) { return r.pid < 0; });
    if (interrupted != 0)
      throw Error("tutti-launch: interrupted before the job had begun", static_cast<ExitCode>(128 + interrupted));
  }
  return results;
}

namespace {

// Returns the last line that is not empty.
[[nodiscard]] std::string last_line(const std::string& text) {
  std::string last;
  LineSplitter lines;
  const auto keep = [&](std::string_view line) {
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (!line.empty()) last = line;
  };
  lines.feed(text, keep);
  lines.finish(keep);
  std::string shown;
  for (std::size_t at = 0; at < last.size() && at < 320; at += 80)
    shown += printable(std::string_view(last).substr(at, 80));
  return shown;
}

}  // namespace

Problem connection_problem(const Host& host, bool here, int code, const std::string& errors,
                           const std::string& program) {
  const std::string where = "host " + host.name;
  const std::string said = last_line(errors);
  if (!here && said.starts_with("srun: "))
    return {static_cast<int>(ExitCode::communication),
            error_message(where, "a step of the Slurm job on this node", said,
                          "'srun --overlap -w " + host.name + " hostname' must work from here")};
  if (!here && (code == 126 || code == 127))
    return {static_cast<int>(ExitCode::usage),
            error_message(where, "tutti-launch at " + program, said.empty() ? "none" : said,
                          "give its path there with --remote-launch, or copy the working folder with --sync-dst-dir")};
  if (here || code != 255)
    return {static_cast<int>(ExitCode::communication),
            error_message(where, "an answer of tutti-launch", said.empty() ? "exit code " + std::to_string(code) : said,
                          "install the same version of tutti on both hosts")};
  std::string hint = "'ssh " + host.name + "' must work from here without a prompt";
  if (said.find("Host key verification") != std::string::npos) hint = "add the host's key to known_hosts";
  if (said.find("Permission denied") != std::string::npos) hint = "the host must accept this user's key";
  return {static_cast<int>(ExitCode::communication),
          error_message(where, "a connection by ssh", said.empty() ? "none" : said, hint)};
}

SshSettings ssh_settings(const Options& o) {
  return {o.ssh_config.empty() ? "" : std::filesystem::absolute(o.ssh_config).string(), o.connect_timeout,
          o.host_timeout, false, o.slurm_job};
}

std::string remote_program(const Options& o) {
  if (!o.remote_program.empty()) return o.remote_program;
  const std::filesystem::path own = own_program();
  if (!o.sync_dir.empty()) {
    const auto inside = own.lexically_relative(std::filesystem::current_path());
    if (!inside.empty() && *inside.begin() != "..") return (std::filesystem::path(o.sync_dir) / inside).string();
  }
  return own.string();
}

Start start_on(const Host& host, bool here, const Options& o, const std::vector<std::string>& mode, bool known_only) {
  Start start;
  if (here) {
    start.argv = {own_program()};
    start.argv.insert(start.argv.end(), mode.begin(), mode.end());
    return start;
  }
  SshSettings settings = ssh_settings(o);
  settings.known_only = known_only;
  start.argv = ssh_arguments(settings, host);
  std::string command = "exec " + shell_quoted(remote_program(o));
  for (const auto& word : mode) command += " " + shell_quoted(word);
  start.argv.push_back(command);
  start.environment = ssh_environment();
  return start;
}

Start copy_of_folder(const Host& host, bool here, const Options& o, const std::filesystem::path& job_folder) {
  Start start;
  // With --secluded-args, rsync sends the path as data, so that no remote shell interprets it.
  start.argv = {"rsync",    "-az",
                "--mkpath", "--secluded-args",
                "-e",       (job_folder / "rsh-agent").string(),
                "--",       std::filesystem::current_path().string() + "/"};
  const bool brackets = host.name.find(':') != std::string::npos;
  const std::string name = brackets ? "[" + host.name + "]" : host.name;
  start.argv.push_back((here ? "" : name + ":") + o.sync_dir + "/");
  start.environment = ssh_environment();
  return start;
}

Problem copy_problem(const Host& host, const Options& o, int code, const std::string& errors) {
  // rsync's last line only says that ssh failed. The first line contains the reason.
  const std::string first = last_line(errors.substr(0, errors.find('\n')));
  return {
      static_cast<int>(ExitCode::communication),
      error_message("host " + host.name, "a copy of " + std::filesystem::current_path().string() + " in " + o.sync_dir,
                    first.empty() ? "exit code " + std::to_string(code) + " of rsync" : first,
                    "rsync must be installed on both hosts (Debian: apt-get install rsync)")};
}

void sync_folder(const Plan& plan, const Options& o, const std::filesystem::path& job_folder,
                 const SignalQueue& signals) {
  const std::string from = std::filesystem::current_path().string();
  std::vector<Start> starts;
  std::vector<const Plan::Site*> sites;
  for (const Plan::Site& s : plan.sites) {
    if (s.here && std::filesystem::path(o.sync_dir).lexically_normal() == std::filesystem::path(from)) continue;
    starts.push_back(copy_of_folder(s.host, s.here, o, job_folder));
    sites.push_back(&s);
  }
  const auto results = run_commands(std::move(starts), 8, 3600, signals);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].code == 0) continue;
    throw CommunicationError(copy_problem(sites[i]->host, o, results[i].code, results[i].err).message);
  }
}

int kill_here(const std::string& job) {
  if (!job.empty() && !is_job(job)) fail<UsageError>("--kill-here", "a job", "'" + printable(job) + "'");
  int processes = 0;
  std::vector<Record> records;
  const auto folders = job_folders(job);
  for (const fs::path& folder : folders)
    for (Record& r : read_records(folder)) records.push_back(std::move(r));
  std::vector<Record> alive;
  for (const Record& r : records)
    if (signal_group(r, 0) || lives(r.agent, r.agent_start)) alive.push_back(r);
  end_recorded(alive, std::chrono::milliseconds(2000));
  for (const Record& r : alive) {
    std::string line =
        "ended " + process_name(r.role, r.rank) + " of job " + r.job + ", process " + std::to_string(r.pid);
    std::printf("%s\n", line.c_str());
    ++processes;
  }
  for (const fs::path& folder : folders) {
    for (const Record& r : read_records(folder)) remove_process_files(folder, r);
    std::error_code error;
    fs::remove(order_file(folder), error);
    end_mpi_session(folder);
    remove_files_of_lost_launcher(folder);
    remove_job_folder(folder);
  }
  if (processes == 0) std::printf("nothing was running\n");
  return 0;
}

std::vector<Problem> kill_on(const std::vector<Host>& hosts, const Options& o, const std::string& job, double timeout,
                             bool print, const SignalQueue& signals) {
  std::vector<Start> starts;
  std::vector<std::string> mode{"--kill-here"};
  if (!job.empty()) mode.push_back(job);
  starts.reserve(hosts.size());
  for (const Host& h : hosts) starts.push_back(start_on(h, is_here(h), o, mode));
  const auto results = run_commands(std::move(starts), 16, timeout, signals);
  std::vector<Problem> problems;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (results[i].code != 0)
      problems.push_back(connection_problem(hosts[i], is_here(hosts[i]), results[i].code < 0 ? 255 : results[i].code,
                                            results[i].err, remote_program(o)));
    if (!print || results[i].code != 0) continue;
    LineSplitter lines;
    lines.feed(results[i].out, [&](std::string_view line) {
      std::printf("%s: %s\n", hosts[i].name.c_str(), std::string(line).c_str());
    });
  }
  return problems;
}

std::vector<std::string> end_left_over(const std::vector<Host>& hosts, Options o, const std::string& job,
                                       const SignalQueue& signals) {
  if (hosts.empty()) return {};
  o.connect_timeout = 2;
  std::vector<std::string> said;
  try {
    for (const Problem& p : kill_on(hosts, o, job, 6, false, signals))
      said.push_back("could not search for remaining processes: " + p.message);
  } catch (const Error& e) {
    said.emplace_back(e.what());
  }
  return said;
}

}  // namespace tutti::launch
