// SPDX-License-Identifier: MIT
#include "tools/launch/agent/rank_process.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>

namespace tutti::launch {

fs::path program_of(const Order& order) {
  const char* own = std::getenv("PATH");
  std::string path = own == nullptr ? "/bin:/usr/bin" : own;
  for (const auto& [name, value] : order.everywhere)
    if (name == "PATH") path = value;
  return find_program(order.command.at(0), path, order.folder);
}

std::vector<std::string> environment_of(const Order& order, const ProcessOrder& p, const std::string& report,
                                        const std::string& control) {
  const bool server = p.role == "server";
  Variables set = order.everywhere;
  for (const auto& v : server ? order.on_servers : order.on_workers) set.push_back(v);
  const std::string workers = std::to_string(order.workers);
  // In an elastic job the numbers of workers may be larger than the number of workers.
  const bool ranked = order.generation > 0;  // each mpirun numbers its ranks from 0
  const std::string size = server   ? std::to_string(order.servers)
                           : ranked ? workers
                                    : std::to_string(std::max(order.workers, p.rank + 1));
  for (const auto& [name, value] : Variables{{"TUTTI_RANK", std::to_string(ranked ? p.mpi_rank : p.rank)},
                                             {"TUTTI_SIZE", size},
                                             {"TUTTI_LOCAL_RANK", std::to_string(p.local_rank)},
                                             {"TUTTI_LOCAL_SIZE", std::to_string(p.local_size)},
                                             {"TUTTI_HOST", order.host},
                                             {"TUTTI_JOB", order.job},
                                             {"TUTTI_ROOT", host_and_port(order.root_host, order.root_port)},
                                             {"TUTTI_ROOT_PORTS", std::to_string(order.root_ports)},
                                             {"TUTTI_SECRET", order.secret},
                                             {"TUTTI_REPORT", report},
                                             {"TUTTI_CONTROL", control},
                                             {"TUTTI_ROLE", p.role},
                                             {"TUTTI_SERVERS_RESTART", order.keeps ? "1" : "0"},
                                             {"DMLC_ROLE", p.role},
                                             {"DMLC_NUM_WORKER", workers},
                                             {"DMLC_NUM_SERVER", std::to_string(order.servers)},
                                             {"DMLC_PS_ROOT_URI", order.root_host},
                                             {"DMLC_PS_ROOT_PORT", std::to_string(order.ps_port)}})
    set.emplace_back(name, value);
  if (order.elastic) set.insert(set.end(), {{"TUTTI_ELASTIC", "1"}, {"ELASTIC_TRAINING_ENABLED", "1"}});
  if (ranked)
    set.insert(set.end(), {{"TUTTI_GENERATION", std::to_string(order.generation)},
                           {"TUTTI_FOUNDERS", std::to_string(order.founders)},
                           {"TUTTI_KEEP", fs::path(report).replace_extension(".kept").string()},
                           {"TUTTI_KEPT", order.kept}});
  else if (order.joins)
    set.insert(set.end(), {{"NEW_WORKER", "1"}, {"EPOCH_BEGIN", std::to_string(order.epoch)}});
  // Removes variables of another job: the launcher may itself run inside a job.
  const auto of_another = [](std::string_view name) {
    return name == "TUTTI_ELASTIC" || name == "ELASTIC_TRAINING_ENABLED" || name == "NEW_WORKER" ||
           name == "EPOCH_BEGIN" || name == "TUTTI_GENERATION" || name == "TUTTI_FOUNDERS" || name == "TUTTI_KEEP" ||
           name == "TUTTI_KEPT";
  };
  std::vector<std::string> entries;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!of_another(name) && std::none_of(set.begin(), set.end(), [&](const auto& v) { return v.first == name; }))
      entries.emplace_back(entry);
  }
  // If a name occurs twice, the last value counts.
  for (auto v = set.begin(); v != set.end(); ++v)
    if (std::none_of(v + 1, set.end(), [&](const auto& later) { return later.first == v->first; }))
      entries.push_back(v->first + "=" + v->second);
  return entries;
}

RankProcess::RankProcess(const Order& order, const ProcessOrder& process, fs::path folder)
    : order_(order), process_(process), folder_(std::move(folder)) {
  prefix_ = (process.role == "server" ? "[s" : "[") + std::to_string(process.rank) + "] ";
  record_.job = order.job;
  record_.role = process.role;
  record_.rank = process.rank;
  record_.host = order.host;
  record_.node = own_node();
}

Started RankProcess::start(bool with_control) {
  remove_process_files(folder_, record_);
  const fs::path slot = folder_ / (record_.stem() + ".progress");
  slot_ = with_job_folder(order_.job, [&](const fs::path&) { return ProgressFile::create(slot, order_.job); });
  open_log();
  Pipe out = make_pipe(), err = make_pipe();
  Start s;
  s.argv = order_.command;
  ProcessSocket control;
  if (with_control) control = control_.open();
  s.environment = environment_of(order_, process_, slot.string(), control.number());
  s.keep = control.get();
  s.folder = order_.folder;
  s.out = out.write.get();
  s.err = err.write.get();
  s.own_session = true;
  s.ignore_user_signals = order_.generation > 0;
  s.signal_at_parents_death = SIGKILL;
  // Writes the record before the program runs: the program may end its agent.
  s.before_exec = [&](pid_t pid) {
    record_.pid = pid;
    record_.agent = ::getpid();
    const auto mine = process_status(record_.agent), its = process_status(pid);
    record_.agent_start = mine ? mine->start : 0;
    record_.start = its ? its->start : 0;
    write_record(folder_, record_);
  };
  Started started = start_process(s);
  if (started.error != 0) return started;
  streams_[0].pipe = std::move(out.read);
  streams_[1].pipe = std::move(err.read);
  running_ = true;
  end_.reset();
  why_ = "own";
  log("# rank " + std::to_string(process_.rank) + ", " + process_.role + " of job " + order_.job + " (" +
      order_.job_name + ") on " + order_.host + ", process " + std::to_string(record_.pid) + ", " + now() + "\n");
  return started;
}

void RankProcess::stop(const std::string& why) {
  if (!running_) return;
  if (why_ == "own") why_ = why;
  ::kill(-record_.pid, SIGTERM);
  ::kill(-record_.pid, SIGCONT);
}

bool RankProcess::over() const {
  siginfo_t info{};
  return running_ && ::waitid(P_PID, static_cast<id_t>(record_.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

void RankProcess::reap() {
  // Kills the group before reaping: until then the system cannot give its number to another process or group.
  ::kill(-record_.pid, SIGKILL);
  int status = 0;
  while (::waitpid(record_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  End e;
  e.by_signal = WIFSIGNALED(status);
  e.code = e.by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  e.why = why_;
  end_ = e;
}

void RankProcess::read_pipe(std::size_t stream, OutputQueue& to) {
  Stream& s = streams_[stream];
  std::string bytes;
  switch (read_some(s.pipe.get(), bytes)) {
    case ReadResult::bytes:
      log(bytes);
      s.lines.feed(bytes, [&](std::string_view line) { put(to, line); });
      break;
    case ReadResult::end:
      close_pipe(stream, to);
      break;
    case ReadResult::nothing:
      break;
  }
}

void RankProcess::close_pipe(std::size_t stream, OutputQueue& to) {
  streams_[stream].lines.finish([&](std::string_view line) { put(to, line); });
  streams_[stream].pipe = io::Descriptor();
}

std::string RankProcess::progress_news() {
  const auto progress = slot_ ? slot_->read() : std::nullopt;
  if (!progress) return "";
  const auto status = running_ ? process_status(record_.pid) : std::nullopt;
  const char state = status ? status->state == 'T' || status->state == 't' ? 'T' : 'R' : '-';
  std::string line = progress_line(record_.role, record_.rank, *progress, state);
  if (line == last_news_) return "";
  last_news_ = line;
  return line;
}

std::string RankProcess::progress_line(const std::string& role, int rank, const RankProgress& p, char state) {
  return "progress " + role + " " + std::to_string(rank) + " " + std::to_string(p.step) + " " +
         std::to_string(p.bucket) + " " + std::to_string(static_cast<int>(p.phase)) + " " + state;
}

std::string RankProcess::now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

void RankProcess::open_log() {
  if (order_.log_dir.empty()) return;
  fs::path path(order_.log_dir);
  if (path.is_relative()) path = fs::path(order_.folder) / path;
  io::make_directories(path);
  log_ = io::Descriptor::open(path / (record_.stem() + ".log"), O_WRONLY | O_CREAT | O_APPEND, "open");
}

void RankProcess::log(std::string_view bytes) {
  while (log_.get() >= 0 && !bytes.empty()) {
    const ssize_t n = ::write(log_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      lost_log_ = "the log file of " + name() + " on " + order_.host + " ends here: " + error_text(errno);
      log_ = io::Descriptor();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void RankProcess::put(OutputQueue& to, std::string_view line) {
  to.put(prefix_);
  to.put(line);
  to.put("\n");
  if (lost_log_.empty()) return;
  to.put(prefix_ + std::exchange(lost_log_, "") + "\n");
}

}  // namespace tutti::launch
