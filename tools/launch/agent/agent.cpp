// SPDX-License-Identifier: MIT
#include "tools/launch/agent/agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/version.hpp>

namespace tutti::launch {

void LauncherLink::check_silence() {
  heard_ += stood_still(looked_);
  timed_out_ = timed_out_ || seconds_since(heard_) > timeout_;
  if (timed_out_) open_ = false;
  say_alive();
}

void LauncherLink::tell_alive() {
  say_alive();
  pollfd fd{STDOUT_FILENO, POLLOUT, 0};
  if (out.size() > 0 && ::poll(&fd, 1, 0) > 0) out.send();
}

void LauncherLink::say_alive() {
  if (seconds_since(said_) <= std::min(2.0, timeout_ / 4)) return;
  said_ = Clock::now();
  say("alive");
}

int Agent::run() {
  SignalQueue signals{SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  // Descendants that outlive their parents become children of this process, so that end_adopted() can end them.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (wrapper_) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  parent_ = ::getppid();
  folder_ = make_job_folder(order_.job);
  for (const ProcessOrder& p : order_.processes) processes_.emplace_back(order_, p, folder_);
  if (wrapper_) {
    record_mpi_session(folder_);
    go();
  } else {
    link_.say("hello " + std::to_string(protocol) + " " + version + " " + own_node());
    check_order();
  }
  while (!finished()) turn(signals);
  return finish();
}

void Agent::check_order() {
  std::error_code error;
  if (!fs::is_directory(order_.folder, error)) return refuse("the folder " + order_.folder + ", which does not exist");
  if (program_of(order_).empty())
    return refuse("the program " + order_.command[0] + ", which does not exist or cannot be run");
  link_.say("ready");
}

void Agent::refuse(const std::string& what) {
  link_.say("refuse " + what);
  refused_ = true;
}

void Agent::go() {
  if (began_ || stopping_) return;
  began_ = true;
  for (RankProcess& p : processes_)
    if (!start(p)) return stop("stopped");
}

bool Agent::start(RankProcess& p) {
  std::string problem;
  try {
    const Started started = p.start(!wrapper_);
    if (started.error != 0) problem = started.what + ": " + error_text(started.error);
  } catch (const Error& e) {
    problem = e.what();
  }
  if (problem.empty()) {
    link_.say("start " + p.name() + " " + std::to_string(p.pid()));
    return true;
  }
  refuse(problem);
  if (wrapper_) link_.err.put("tutti-launch on " + order_.host + ": " + problem + "\n");
  return false;
}

void Agent::stop(const std::string& why) {
  if (stopping_) return;
  stopping_ = true;
  // If a generation failed, the next one waits for the end of these ranks, so they get less time.
  const std::chrono::milliseconds rank_grace(order_.generation > 0 ? 150 : 700);
  kill_at_ = Clock::now() + (wrapper_ ? rank_grace : stop_grace);
  for (RankProcess& p : processes_) p.stop(why);
}

void Agent::obey(const std::vector<std::string>& words) {
  if (words.empty()) return;
  if (words[0] == "go") go();
  if (words[0] == "stop") {
    told_ = true;
    stop("stopped");
  }
  if (words[0] == "signal" && (words.size() == 2 || words.size() == 4))
    for (const RankProcess& p : processes_)
      if (words.size() == 2 || p.name() == words[2] + " " + words[3]) p.signal(std::atoi(words[1].c_str()));
  if (words[0] == "again" && words.size() == 3 && !stopping_)
    for (RankProcess& p : processes_)
      if (p.end() && p.name() == words[1] + " " + words[2]) again_.emplace_back(&p, Clock::now());
  if (words[0] == "hold") held_ = true;
  if (words[0] == "flow") held_ = false;
  if (words[0] == "control" && words.size() == 4)
    for (RankProcess& p : processes_)
      if (p.running() && p.name() == words[1] + " " + words[2])
        if (auto frame = io::from_base64(words[3])) p.control().put(*std::move(frame));
}

bool Agent::parent_gone() const {
  const auto status = process_status(parent_);
  return ::getppid() != parent_ || !status || status->state == 'Z' || status->state == 'X';
}

void Agent::on_signal(int number) {
  if (number == SIGUSR1 || number == SIGUSR2)
    for (const RankProcess& p : processes_) p.signal(number);
  if (number == SIGTERM || number == SIGINT || number == SIGHUP)
    stop(!wrapper_ ? "ended" : parent_gone() ? "orphaned" : "stopped");
}

bool Agent::finished() const {
  const bool none = std::none_of(processes_.begin(), processes_.end(),
                                 [](const RankProcess& p) { return p.running() || !p.drained(); });
  if (!none) return false;
  if ((!began_ || order_.keeps) && !stopping_ && !refused_ && link_.open()) return false;
  // Sends the queued output first, unless the connection is closed.
  const bool sent = (link_.out.size() == 0 && link_.err.size() == 0) || (!wrapper_ && !link_.open());
  return sent;
}

void Agent::turn(const SignalQueue& signals) {
  std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
  std::vector<std::pair<RankProcess*, std::size_t>> pipes;
  fds.push_back({wrapper_ || !link_.open() ? -1 : STDIN_FILENO, POLLIN, 0});
  for (OutputQueue* q : {&link_.out, &link_.err}) fds.push_back({q->size() > 0 ? q->fd() : -1, POLLOUT, 0});
  for (RankProcess& p : processes_)
    for (const std::size_t stream : {0U, 1U}) {
      const OutputQueue& q = stream == 0 ? link_.out : link_.err;
      // Does not read while the output queue is full, so that the process blocks as on a full pipe.
      if (p.pipe(stream) < 0 || held_ || q.size() > (std::size_t{1} << 18)) continue;
      pipes.emplace_back(&p, stream);
      fds.push_back({p.pipe(stream), POLLIN, 0});
    }
  const std::size_t channels = fds.size();
  for (RankProcess& p : processes_) fds.push_back(p.control().wanted(link_.out.size() > (std::size_t{4} << 20)));
  (void)::poll(fds.data(), fds.size(), 50);
  while (const int number = (fds[0].revents & POLLIN) != 0 ? signals.next() : 0) on_signal(number);
  if (fds[1].revents != 0)
    link_.hear([&](const auto& words) { obey(words); });
  else if (!wrapper_)
    link_.check_silence();
  for (std::size_t q = 0; q < 2; ++q)
    if (fds[2 + q].revents != 0) (q == 0 ? link_.out : link_.err).send();
  for (std::size_t i = 0; i < pipes.size(); ++i)
    if (fds[4 + i].revents != 0) pipes[i].first->read_pipe(pipes[i].second, queue(pipes[i].second));
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if ((fds[channels + i].revents & ~POLLOUT) != 0) hand_on(processes_[i]);
    processes_[i].control().send();
  }
  look_after_processes(signals);
}

void Agent::look_after_processes(const SignalQueue& signals) {
  if (!wrapper_ && !link_.open()) stop("unheard");
  if (wrapper_ && parent_gone()) stop("orphaned");
  if (stopping_ && Clock::now() >= kill_at_)
    for (const RankProcess& p : processes_) p.signal(SIGKILL);
  const bool relay = seconds_since(relayed_) > 0.15;
  if (relay) relayed_ = Clock::now();
  for (RankProcess& p : processes_) {
    const bool ended = p.over();
    if (ended) {
      // The signal that ended the process may have been sent to this agent just before.
      while (const int number = signals.next()) on_signal(number);
      // The parent-death signal is sent when the parent's first thread ends, a little before the parent has ended.
      if (wrapper_ && parent_gone()) p.blame_parent();
      p.reap();
      // Frames that the process sent before its end must arrive before the "end" line.
      hand_on(p);
      p.control().close();
    }
    if (!wrapper_ && (relay || ended))
      if (const std::string news = p.progress_news(); !news.empty()) link_.say(news);
    if (ended) {
      link_.say("end " + p.name() + " " + p.end()->line());
      if (wrapper_) p.write_end();
    }
  }
  // Starts a process again after its output has been read. Its descendants may hold the pipes open, so this waits 0.5 s
  // at most.
  std::erase_if(again_, [&](const auto& a) {
    const auto [p, since] = a;
    if (stopping_) return true;
    if (!p->drained() && seconds_since(since) < 0.5) return false;
    p->close_pipes(link_.out, link_.err);
    if (!start(*p)) stop("stopped");
    return true;
  });
  // A descendant that left the process group may still hold a pipe, which would then never close.
  if (began_ && std::none_of(processes_.begin(), processes_.end(), [](const RankProcess& p) { return p.running(); }))
    end_adopted();
}

void Agent::end_adopted() {
  for (int round = 0; round < 100; ++round) {
    const auto adopted = processes_where([](pid_t, const ProcessStatus& s) { return s.parent == ::getpid(); });
    for (const pid_t pid : adopted) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (adopted.empty()) return;
    ::usleep(5000);
  }
}

void Agent::clean_behind_daemon() {
  if (::fork() != 0) return;
  ::setsid();
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  end_mpi_session(folder_);
  remove_job_folder(folder_);
  ::_exit(0);
}

int Agent::finish() {
  end_adopted();
  int code = refused_ ? static_cast<int>(ExitCode::usage) : 0;
  if (!wrapper_ && link_.timed_out()) code = static_cast<int>(ExitCode::communication);
  const bool orphan = wrapper_ && !io::path_exists(order_file(folder_));
  for (const RankProcess& p : processes_) {
    if (wrapper_ && p.end()) code = p.end()->by_signal ? 128 + p.end()->code : p.end()->code;
    // The guard reads the .end file and then removes the files, unless the guard itself has ended.
    if (!wrapper_ || orphan) p.remove_files();
  }
  if (orphan) clean_behind_daemon();
  if (!wrapper_) {
    if (!told_) remove_files_of_lost_launcher(folder_, std::chrono::milliseconds(500));
    remove_job_folder(folder_);
    link_.say("bye");
    for (const auto end = Clock::now() + std::chrono::seconds(5); link_.out.size() > 0 && Clock::now() < end;) {
      pollfd fd{STDOUT_FILENO, POLLOUT, 0};
      if (::poll(&fd, 1, 100) > 0) link_.out.send();
      if (!link_.open()) break;
    }
  }
  return code;
}

}  // namespace tutti::launch
