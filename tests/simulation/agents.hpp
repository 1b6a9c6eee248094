// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/base64.hpp>

#include "interposed_processes.hpp"
#include "mesh.hpp"
#include "simulation.hpp"
#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::simulation {

// A worker of a job that tutti-launch runs.
struct Rank {
  std::string name, host;
  int number = 0, channel = -1, of_process = -1;
  bool joins = false, ended = false, signalled = false, stood = false, holds = false, did_work = false;
  std::string why = "own";
  const Programs::Program* agent = nullptr;
  Process* process = nullptr;
  Nanos kill_at = never;
};

// The programs that tutti-launch runs over ssh: agents, which start workers and pass on frames, and `--kill`. They
// replace tools/launch/agent, and have its messages and times.
class Agents {
 public:
  // before_start: called with the name of each process before it is started. host_timeout: seconds.
  Agents(Simulation& simulation, Meeting& meeting, Nanos host_timeout, std::function<int(Rank&)> work,
         std::function<void(const std::string&)> before_start)
      : simulation_(simulation),
        s_(simulation.scheduler),
        meeting_(meeting),
        host_timeout_(host_timeout),
        work_(std::move(work)),
        before_start_(std::move(before_start)) {}

  [[nodiscard]] std::deque<Rank>& ranks() noexcept { return ranks_; }
  [[nodiscard]] const std::deque<Rank>& ranks() const noexcept { return ranks_; }
  // Runs an agent. Returns its exit code.
  [[nodiscard]] int run(const Programs::Program& p) {
    Agent a{p};
    a.heard = s_.now();
    if (s_.noise().one_in(20)) s_.sleep(s_.noise().between(0, second));
    while (!read_order(a))
      if (!a.open) return 1;
    s_.process().name = "agent " + std::to_string(p.process->number) + " on " + a.order.host;
    say(a, "hello " + std::to_string(launch::protocol) + " simulation " + a.order.host);
    say(a, "ready");
    while (!(a.stopping || a.began) || !std::all_of(a.mine.begin(), a.mine.end(), [](auto* r) { return r->ended; })) {
      hear(a);
      if (!a.open || s_.now() - a.heard > host_timeout_ * second) stop(a, "unheard");
      if (s_.now() - a.said > 2 * second) say(a, "alive");
      for (Rank* r : a.mine) look_after(a, *r);
    }
    say(a, "bye");
    for (const int d : {p.in, p.out}) simulation_.network.close(d);
    return a.open ? 0 : static_cast<int>(ExitCode::communication);
  }
  // `tutti-launch --kill` on the hosts that the launcher has lost.
  [[nodiscard]] int end_left_over() {
    s_.sleep(s_.noise().between(ms, 300 * ms));
    for (const Rank& r : ranks_)
      if (r.agent->signal != 0 || !r.agent->process->runs()) s_.kill(*r.process, SIGKILL);
    return 0;
  }

 private:
  struct Agent {
    const Programs::Program& program;
    launch::Order order{};
    std::string waiting{};
    std::vector<Rank*> mine{};
    bool began = false, stopping = false, open = true;
    Nanos heard = 0, said = 0;
  };
  void say(Agent& a, const std::string& line) {
    a.said = s_.now();
    const std::string text = std::string(1, launch::control_mark) + line + "\n";
    for (std::size_t at = 0; at < text.size(); at += 4096)
      if (auto* const s = simulation_.network.find(a.program.out)) simulation_.network.send(*s, text.substr(at, 4096));
  }
  // Appends what the launcher has sent, after 50 ms at most.
  void read(Agent& a) {
    std::vector<pollfd> list{{a.open ? a.program.in : -1, POLLIN, 0}};
    for (const Rank* r : a.mine) list.push_back({r->channel, POLLIN, 0});
    (void)::poll(list.data(), list.size(), 50);
    if (list[0].revents == 0) return;
    std::string bytes;
    a.heard = s_.now();
    if (launch::read_some(a.program.in, bytes) == launch::ReadResult::end) a.open = false;
    a.waiting += bytes;
  }
  [[nodiscard]] bool read_order(Agent& a) {
    read(a);
    const std::size_t line = a.waiting.find('\n');
    if (line == std::string::npos) return false;
    const std::size_t size = launch::frame_length(std::string_view(a.waiting).substr(0, line));
    if (a.waiting.size() < line + 1 + size) return false;
    a.order = launch::decode(std::string_view(a.waiting).substr(line + 1, size));
    a.waiting.erase(0, line + 1 + size);
    return true;
  }
  void hear(Agent& a) {
    read(a);
    for (std::size_t end = 0; (end = a.waiting.find('\n')) != std::string::npos; a.waiting.erase(0, end + 1)) {
      const auto words = launch::words_of(std::string_view(a.waiting).substr(0, end));
      if (words.empty()) continue;
      if (words[0] == "go" && !a.began && !a.stopping) {
        a.began = true;
        for (const launch::ProcessOrder& p : a.order.processes) begin(a, p);
      }
      if (words[0] == "stop") stop(a, "stopped");
      for (Rank* r : a.mine) {
        const bool meant = words.size() == 4 && !r->ended &&
                           r->name == words[words[0] == "signal" ? 2 : 1] + " " + words[words[0] == "signal" ? 3 : 2];
        if (meant && words[0] == "signal") words[1] == "9" ? s_.kill(*r->process, SIGKILL) : void(r->signalled = true);
        if (meant && words[0] == "control")
          if (const auto frame = io::from_base64(words[3]))
            (void)::send(r->channel, frame->data(), frame->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    }
  }
  void begin(Agent& a, const launch::ProcessOrder& p) {
    if (before_start_) before_start_(launch::process_name(p.role, p.rank));
    Rank& r = ranks_.emplace_back();
    r.name = launch::process_name(p.role, p.rank);
    r.host = a.order.host;
    r.number = p.rank;
    r.joins = a.order.joins;
    r.agent = &a.program;
    r.process =
        &s_.start_process("worker" + std::to_string(p.rank), [this, &r] { return code_of([&] { return work_(r); }); });
    r.process->clocks.drift(s_.noise());
    const auto [mine, its] = simulation_.network.connect(s_.process(), *r.process);
    r.channel = simulation_.network.claim(mine);
    r.of_process = simulation_.network.claim(its);
    meeting_.add(control::Role::worker, r.number, *r.process);
    a.mine.push_back(&r);
    say(a, "start " + r.name + " " + std::to_string(1000 + r.process->number));
  }
  void stop(Agent& a, const std::string& why) {
    if (std::exchange(a.stopping, true)) return;
    for (Rank* r : a.mine)
      if (!r->ended) {
        r->why = why;
        r->signalled = true;
        r->kill_at = s_.now() + 1400 * ms;
      }
  }
  // Passes on what a process has sent, and reports its end after that.
  void look_after(Agent& a, Rank& r) {
    if (r.ended) return;
    if (s_.now() >= r.kill_at) s_.kill(*r.process, SIGKILL);
    const bool over = !r.process->runs();
    std::string frame(control::longest_frame + 1, '\0');
    for (ssize_t n = 0; (n = ::recv(r.channel, frame.data(), frame.size(), MSG_DONTWAIT)) > 0;)
      say(a, "control " + r.name + " " + io::to_base64(std::string_view(frame).substr(0, static_cast<std::size_t>(n))));
    // A message may be on its way until the end of the connection has arrived.
    std::array<pollfd, 1> end{{{r.channel, POLLIN, 0}}};
    if (!over || ::poll(end.data(), 1, 0) == 0) return;
    if (const auto* const s = simulation_.network.find(r.channel); s != nullptr && !s->arriving.empty()) return;
    r.ended = true;
    (void)::close(std::exchange(r.channel, -1));
    const bool by_signal = r.process->state == Process::State::killed;
    say(a, "end " + r.name + " " + launch::End{by_signal, r.process->code, r.why}.line());
  }

  Simulation& simulation_;
  Scheduler& s_;
  Meeting& meeting_;
  Nanos host_timeout_;
  std::function<int(Rank&)> work_;
  std::function<void(const std::string&)> before_start_;
  std::deque<Rank> ranks_;
};

}  // namespace tutti::simulation
