// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/elastic.hpp>

#include "agents.hpp"
#include "elastic_loop.hpp"
#include "interposed_hosts.hpp"
#include "interposed_processes.hpp"
#include "mesh.hpp"
#include "random.hpp"
#include "simulation.hpp"
#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/launcher.hpp"

namespace tutti::simulation {

// An elastic job that the real tutti-launch runs: its loop, its arbiter, what it makes of the hosts file and of the
// ends of processes, and its exit code. The agents are modelled, with the messages of wire.hpp. The workers are those
// of members.cpp, without its checks, with the real channel and strategy.
class ElasticLaunch {
 public:
  explicit ElasticLaunch(Simulation& simulation)
      : simulation_(simulation),
        s_(simulation.scheduler),
        plan_(simulation.options.seed, 8),
        files_(simulation.network),
        meeting_(simulation.network),
        programs_(simulation.scheduler, simulation.network,
                  [this](Programs::Program& p, bool with_input) {
                    return with_input ? agents_.run(p) : agents_.end_left_over();
                  }),
        agents_(
            simulation, meeting_, host_timeout, [this](Rank& me) { return work(me); },
            [this](const std::string& name) {
              // All members have the same weights: a member that starts now would fail, too.
              if (const Nanos at = not_finite_since(); at != never && s_.now() > at + host_timeout * second)
                s_.fail(name + " is started after weights were not finite");
            }) {
    std::filesystem::create_directory("elastic");
    on_message = [this](std::string_view text) {
      for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        s_.note("says: " + without_folder(std::string(text.substr(at, end - at))));
      }
    };
    not_finite_step_ = plan_.one_in(3) ? 1 + static_cast<std::int64_t>(plan_.below(steps - 1)) : 0;
    s_.on_end = [this, end = s_.on_end](Process& p) {
      programs_.close_queue(p);
      end(p);
    };
  }

  void run() {
    std::string hosts;
    for (std::uint64_t i = 1, n = 1 + plan_.below(3); i <= n; ++i)
      hosts += "h" + std::to_string(i) + (plan_.one_in(3) ? " slots=2\n" : "\n");
    std::ofstream("hosts") << hosts;
    Process& launcher = s_.start_process("launcher", [this] { return launch(); });
    Nanos latest = 0;
    for (std::size_t i = 0, n = plan_.below(6); i < n; ++i) {
      s_.sleep(plan_.between(0, 2 * second));
      Random r(simulation_.options.seed, 1000 + i);
      if (!launcher.runs() || simulation_.options.without.contains(i)) continue;
      disturb(launcher, "fault " + std::to_string(i) + ": ", r);
      latest = s_.now();
    }
    latest = std::max(latest, quiet_at_) + simulation_.options.bound;
    const auto await_end = [&](const Process& p, const std::string& of) {
      while (p.runs()) {
        if (s_.now() > latest) s_.fail(of + " has not ended after the last fault: " + s_.threads_text());
        s_.sleep(20 * ms);
      }
    };
    await_end(launcher, "the launcher");
    latest = std::max(s_.now(), quiet_at_) + (2 * host_timeout + 10) * second;
    for (const auto& p : programs_.all()) await_end(*p.process, "a program of the launcher");
    for (const Rank& rank : agents_.ranks()) await_end(*rank.process, rank.process->name);
    check(launcher);
  }

 private:
  static constexpr std::int64_t steps = 30, host_timeout = 10;  // seconds

  [[nodiscard]] int launch() {
    int code = 0;
    const int error = code_of([&] {
      code = launch::Launcher(launch::parse_options({"--elastic", "--elastic-dir", "elastic", "--elastic-at", "step",
                                                     "--launcher", "ssh", "-H", "hosts", "--root-port", "20000",
                                                     "--rank-timeout", "2", "--host-timeout",
                                                     std::to_string(host_timeout), "--min-timeout", "20", "/bin/true"}))
                 .run();
      return 0;
    });
    return error != 0 ? error : code;
  }

  // ---- a worker ----
  class Loop : public ElasticLoop<Rank> {
   public:
    Loop(const ElasticLaunch& launch, Rank& me, Elastic<MeshFactory>& strategy)
        : ElasticLoop(me, strategy, steps, 0), launch_(launch) {}

   protected:
    void take_over() override { me_.holds = me_.stood = true; }
    void compute(std::int64_t step) override {
      Random& noise = launch_.s_.noise();
      std::this_thread::sleep_for(std::chrono::nanoseconds(noise.between(ms, 60 * ms)));
      // One of the ranks may notice it before the others, which then repeat the step without it.
      if (step == launch_.not_finite_step_ && noise.one_in(2))
        throw NotFiniteError("[step] expected finite weights, got others");
    }
    void finish() override { me_.did_work = true; }

   private:
    const ElasticLaunch& launch_;
  };
  [[nodiscard]] int work(Rank& me) {
    ElasticOptions o;
    o.start.rank = me.number;
    o.start.host = me.host;
    o.start.new_worker = me.joins;
    Elastic<MeshFactory> strategy(
        std::make_shared<ControlChannel>(std::make_unique<control::SocketLink>(io::Descriptor(me.of_process))), o,
        MeshFactory{&meeting_});
    return Loop(*this, me, strategy).run();
  }

  // ---- faults ----
  void disturb(Process& launcher, const std::string& name, Random& r) {
    std::vector<Rank*> running;
    std::vector<Programs::Program*> agents;
    for (Rank& x : agents_.ranks())
      if (x.process->runs()) running.push_back(&x);
    for (auto& p : programs_.all())
      if (p.process->runs() && p.in >= 0) agents.push_back(&p);
    const auto kind = r.below(9);
    const Nanos time = r.one_in(4) ? r.between(second, 15 * second) : r.between(ms, second);
    if (kind <= 2) return edit(name, r);
    if (kind == 3) {
      s_.note(name + "the launcher gets SIGTERM");
      interrupted_ = true;
      return programs_.send_to_queue(launcher, SIGTERM);
    }
    if (running.empty() || agents.empty()) return;
    Rank& one = *running[r.below(running.size())];
    Programs::Program& agent = *agents[r.below(agents.size())];
    if (kind == 4) {
      simulation_.kill(*one.process, name);
    } else if (kind == 5) {
      s_.note(name + one.process->name + " is told to leave");
      one.signalled = true;
    } else if (kind == 6) {
      s_.note(name + "SIGKILL of " + agent.process->name);
      broken_ = true;
      // Its processes end with it.
      for (Rank& x : agents_.ranks())
        if (x.agent == &agent) s_.kill(*x.process, SIGKILL);
      s_.kill(*agent.process, SIGKILL);
    } else {
      Process& p = kind == 7 ? *one.process : *agent.process;
      broken_ = broken_ || time > second;
      quiet_at_ = std::max(quiet_at_, s_.now() + time);
      simulation_.stop(p, time, name);
    }
  }
  void edit(const std::string& name, Random& r) {
    const std::filesystem::path file = std::filesystem::current_path() / "elastic" / "host_worker";
    if (!std::filesystem::exists(file)) return;
    std::string text;
    for (int i = 1; i <= 4; ++i)
      if (r.one_in(2)) text += "h" + std::to_string(i) + (r.one_in(4) ? " slots=2\n" : "\n");
    if (text.empty()) text = "h1\n";
    s_.note(name + "the hosts file is edited");
    launch::replace_hosts_file(file, text);
    files_.moved(file);
  }

  // ---- the end ----
  // Returns when the first member ended because its weights were not finite.
  [[nodiscard]] Nanos not_finite_since() const {
    Nanos at = never;
    for (const Rank& r : agents_.ranks()) {
      const bool by_itself = r.stood && r.why == "own" && r.process->state == Process::State::exited;
      if (by_itself && r.process->code == static_cast<int>(ExitCode::not_finite))
        at = std::min(at, r.process->ended_at);
    }
    return at;
  }
  void check(const Process& launcher) {
    const auto& ranks = agents_.ranks();
    const bool any = std::any_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.did_work; });
    // A rank that is killed after its work may have told no one.
    const bool done = std::any_of(ranks.begin(), ranks.end(), [](const Rank& r) {
      return r.did_work && r.process->state == Process::State::exited && r.process->code == 0;
    });
    const int code = launcher.code;
    const std::string ends = "the launcher exits with " + std::to_string(code);
    const bool not_finite = not_finite_since() != never;
    if (!any && code == 0) s_.fail("no worker has done the work, and the launcher exits with 0");
    if (not_finite && !broken_ && !interrupted_ && code != static_cast<int>(ExitCode::not_finite))
      s_.fail("weights were not finite, and " + ends);
    if (done && !not_finite && !broken_ && !interrupted_ && code != 0) s_.fail("the work was done, and " + ends);
  }

  Simulation& simulation_;
  Scheduler& s_;
  Random plan_;
  WatchedFiles files_;
  Meeting meeting_;
  Programs programs_;
  Agents agents_;
  std::int64_t not_finite_step_ = 0;
  Nanos quiet_at_ = 0;
  bool interrupted_ = false, broken_ = false;
};

}  // namespace tutti::simulation
