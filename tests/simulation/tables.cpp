// SPDX-License-Identifier: MIT
// Simulates jobs with parameter servers: the real servers, tables, workers' threads and strategies, over connections
// that pause, break and are cut. With ps the servers sum; with ps_async they own the weights, save them on a disk, and
// are started again.
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>

#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "random.hpp"
#include "server_ends.hpp"
#include "simulation.hpp"
#include "table_servers.hpp"

namespace tutti::simulation {
namespace {

using WorkerEnd = ServerMesh::WorkerEnd;

class Tables : private TableServers {
 public:
  explicit Tables(Simulation& simulation) : TableServers(simulation) {}
  void run() {
    for (int i = 0; i < mesh_.servers(); ++i) start(true, i, 0);
    for (int i = 0; i < workers_; ++i) start(false, i, 0);
    const bool returns =
        async_ && staleness_ && mesh_.servers() > 1 && workers_ > 1 && Random(simulation_.options.seed, 500).one_in(2);
    if (returns) {
      steps_ = std::max(steps_, 12);
      s_.start_thread(s_.process(), [this] { return_before_others(); });
    }
    struct Planned {
      std::size_t number;
      Nanos at;
    };
    std::vector<Planned> faults;
    const bool crowded = plan_.one_in(3);
    const Nanos begin = plan_.between(0, 2 * second);
    for (std::size_t i = 0, n = returns ? 0 : plan_.below(7); i < n; ++i)
      faults.push_back({i, crowded ? begin + plan_.between(0, 200 * ms) : plan_.between(0, 3 * second)});
    std::stable_sort(faults.begin(), faults.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    Nanos latest = never;
    for (std::size_t next = 0; !is_over();) {
      s_.sleep(20 * ms);
      for (; next < faults.size() && faults[next].at <= s_.now(); ++next) {
        Random r(simulation_.options.seed, 1000 + faults[next].number);
        if (!simulation_.options.without.contains(faults[next].number)) happen(faults[next].number, r);
      }
      for (std::size_t i = 0; i < starts_.size(); ++i)
        if (std::max(starts_[i].again_at, stopped_until_) <= s_.now()) {
          starts_[i].again_at = never;
          // A server ends in order when the other workers have done the work.
          if (!work_is_over() && !server_has_ended()) start(starts_[i].server, starts_[i].number, starts_[i].run + 1);
        } else if (std::max(starts_[i].late_at, stopped_until_) <= s_.now()) {
          starts_[i].late_at = never;
          if (work_is_over() || server_has_ended()) continue;
          start(false, starts_[i].number, starts_[i].run + 1);
          starts_.back().late = true;
        }
      latest = std::max(quiet_at_, faults.empty() ? 0 : faults.back().at) + simulation_.options.bound;
      if (s_.now() > latest) s_.fail("the job does not end after the last fault: " + s_.threads_text());
    }
    check_end();
  }

 private:
  void start(bool server, int number, int run) {
    Start& of = starts_.emplace_back();
    of.server = server;
    of.number = number;
    of.run = run;
    of.process = &s_.start_process(
        (server ? "server" : "worker") + std::to_string(number) + (run == 0 ? "" : " again " + std::to_string(run)),
        [this, &of] { return process(of); });
    of.process->clocks.drift(s_.noise());
    if (server && run > 0 && Random(simulation_.options.seed, 400 + i_of(of)).one_in(3))
      s_.start_thread(s_.process(), [this, &of] { kill_when_greeted(of); });
  }
  [[nodiscard]] static std::uint64_t i_of(const Start& of) {
    return static_cast<std::uint64_t>(10 * of.number + of.run);
  }
  // Kills a server that was started again while a worker connects to it again.
  void kill_when_greeted(Start& of) {
    const auto number = static_cast<std::size_t>(210 + of.number);
    if (simulation_.options.without.contains(number)) return;
    const auto greeted = [&] {
      const auto& links = mesh_.links();
      return std::any_of(links.begin(), links.end(), [&](const auto& l) { return l.owners[1] == of.process; });
    };
    for (int i = 0; i < 10'000 && !greeted(); ++i) s_.sleep(200'000);
    s_.sleep(s_.noise().between(0, 6 * ms));
    if (!of.process->runs() || work_is_over()) return;
    s_.note("fault " + std::to_string(number) + ": SIGKILL of " + of.process->name);
    kill_server(of);
  }
  // Lets a worker come back to a server that was started again and has not heard of the other workers since. This
  // server does not know how far they are: the worker begins there with a clock that is too low.
  void return_before_others() {
    Random r(simulation_.options.seed, 501);
    Start& server = starts_[r.below(static_cast<std::uint64_t>(mesh_.servers()))];
    Start& worker = starts_[static_cast<std::size_t>(mesh_.servers()) + r.below(static_cast<std::uint64_t>(workers_))];
    s_.sleep(r.between(100 * ms, 500 * ms));
    if (simulation_.options.without.contains(220) || !worker.process->runs()) return;
    s_.note("fault 220: SIGKILL of " + worker.process->name + ", and soon of " + server.process->name);
    worker.hit = true;
    s_.kill(*worker.process, SIGKILL);
    s_.sleep(r.between(50 * ms, 500 * ms));
    if (!server.process->runs() || work_is_over()) return;
    kill_server(server);
    worker.again_at = server.again_at + r.between(50 * ms, 200 * ms);
    const Nanos until = worker.again_at + r.between(50 * ms, 600 * ms);
    quiet_at_ = std::max(quiet_at_, until);
    for (Start& x : starts_)
      if (!x.server && x.process->runs()) x.process->pause_until(until);
  }
  [[nodiscard]] int process(Start& of) {
    return code_of([&] {
      of.server ? serve(of) : async_ ? train_async(of) : train(of);
      return 0;
    });
  }

  // ---- workers ----
  [[nodiscard]] ps::WorkerOptions options(const Start& of) {
    // The address of a server is known after it has begun to listen.
    for (int i = 0; i < 2000 && !mesh_.all_listen(async_); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ps::WorkerOptions o;
    o.rank = of.number;
    o.workers = workers_;
    o.servers = mesh_.servers();
    o.deadline = std::chrono::seconds(deadline_);
    o.patience = std::chrono::seconds(25);
    o.big_array = big_array_;
    o.in_flight = in_flight_;
    o.servers_return = async_;
    o.late = of.run > 0;
    return o;
  }
  // Trains with ps, and checks each sum.
  void train(const Start& of) {
    ParameterServer<WorkerEnd> strategy(std::make_unique<WorkerEnd>(mesh_, of.number), options(of));
    strategy.attach(layout_, facts());
    std::vector<float> state(20, static_cast<float>(of.number + 7)), data(layout_.count);
    StateSpan span{"state", DType::f32, {20}, std::as_writable_bytes(std::span(state))};
    strategy.synchronise({&span, 1});
    if (state != std::vector<float>(20, 7.F)) s_.fail(of.name() + " does not have the state of rank 0");
    Random& r = s_.noise();
    for (int step = 1; step <= steps_; ++step) {
      strategy.begin_step(step, false);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(of.number, step, i);
      std::vector<Work> all;
      for (const auto& [begin, end] : bucket_list()) {
        compute(r);
        all.push_back(strategy.reduce({Piece::Kind::gradients, all.size(), DType::f32,
                                       std::as_writable_bytes(std::span(data).subspan(begin, end - begin))}));
      }
      for (Work& w : all) w.wait();
      for (std::size_t i = 0; i < data.size(); ++i) {
        float sum = 0;
        for (int w = 0; w < workers_; ++w) sum += value(w, step, i);
        if (data[i] != sum) s_.fail(of.name() + " has a wrong sum in step " + std::to_string(step));
      }
      strategy.finish();
      if (step == 2 && of.number == second_) start_second(of);
      if (step % 3 != 0) continue;
      std::array<double, 1> one{1};
      strategy.sum(one);
      if (one[0] != workers_) s_.fail(of.name() + " has a wrong sum of metrics");
    }
  }
  // Starts a second process with the rank of one that works. The servers refuse it, and the job goes on.
  void start_second(const Start& of) {
    others_.push_back(&s_.start_process("second " + of.process->name, [this, &of] {
      try {
        ParameterServer<WorkerEnd> strategy(std::make_unique<WorkerEnd>(mesh_, of.number), options(of));
        s_.fail("a second " + of.name() + " is admitted");
      } catch (const CommunicationError& e) {
        s_.note("second " + of.name() + ": " + e.what());
      }
      return 0;
    }));
  }
  [[nodiscard]] static float value(int rank, int step, std::size_t i) {
    return static_cast<float>((rank + 1) * (step * 31 + static_cast<int>(i % 97)));
  }
  // Trains with ps_async, and checks that each part of the weights is of one version.
  void train_async(Start& of) {
    AsyncParameterServer<WorkerEnd> strategy(std::make_unique<WorkerEnd>(mesh_, of.number), options(of));
    strategy.attach(layout_, facts());
    std::vector<float> weights(layout_.count, 0.F), gradients(layout_.count);
    StateSpan span{
        "weights", DType::f32, {static_cast<std::int64_t>(layout_.count)}, std::as_writable_bytes(std::span(weights))};
    strategy.synchronise({&span, 1});
    check_versions(of, weights, 0, weights.size(), -1);
    for (int step = 1; step <= steps_; ++step) {
      strategy.begin_step(step, false);
      for (std::size_t i = 0; i < gradients.size(); i += block) {
        const std::array<int, 4> id{of.number, of.run, step, static_cast<int>(i / block)};
        std::copy(id.begin(), id.end(), gradients.begin() + static_cast<std::ptrdiff_t>(i));
      }
      std::vector<Work> all;
      for (const auto& [begin, end] : bucket_list()) {
        compute(s_.noise());
        all.push_back(strategy.exchange({all.size(), begin, DType::f32,
                                         std::as_bytes(std::span(gradients).subspan(begin, end - begin)),
                                         std::as_writable_bytes(std::span(weights).subspan(begin, end - begin))}));
      }
      for (Work& w : all) w.wait();
      for (const auto& [begin, end] : bucket_list()) check_versions(of, weights, begin, end, step);
      finished_[{of.number, of.run}] = step;
      strategy.finish();
    }
    (void)strategy.others_at_work();
  }
  // Checks that the elements of a bucket on one server have the same version. step: the worker's last push.
  void check_versions(const Start& of, const std::vector<float>& w, std::size_t begin, std::size_t end, int step) {
    for (const ps::ServerRange& range : ps::ranges_of(layout_, mesh_.servers(), big_array_)) {
      const std::size_t first = std::max(begin, range.begin), last = std::min(end, range.end);
      for (std::size_t i = first; i < last && step >= 0; i += block) {
        if (!std::equal(&w[first], &w[first] + 4, &w[i]))
          s_.fail(of.name() + " has weights of two versions after step " + std::to_string(step));
        if (w[i] < 1) s_.fail(of.name() + " has weights without its push");
      }
    }
  }
  void compute(Random& r) { std::this_thread::sleep_for(std::chrono::nanoseconds(r.between(100'000, 60 * ms))); }

  // ---- faults ----
  void happen(std::size_t number, Random& r) {
    std::vector<Start*> running;
    for (Start& x : starts_)
      if (x.process->runs()) running.push_back(&x);
    if (running.empty()) return;
    const auto pick = [&] { return running[r.below(running.size())]; };
    Start& one = *pick();
    const std::string name = "fault " + std::to_string(number) + ": ";
    const Nanos most = deadline_ * second / 8;
    const Nanos time = r.one_in(8) ? r.between(2 * most, 20 * most) : r.between(ms, most);
    const std::string span = lasting(time);
    const auto lasts = [&](std::vector<Start*> hit) {
      quiet_at_ = std::max(quiet_at_, s_.now() + time);
      stood_ += time;
      // Several short faults may together take longer than the deadline.
      if (time > most || stood_ > deadline_ * second / 2) any_ = true;
      for (Start* h : hit) h->hit = h->hit || time > most;
    };
    switch (r.below(10)) {
      case 0:
      case 1:
      case 2: {
        const bool silent = !(one.server && async_) && r.one_in(4);
        s_.note(name + (silent ? "the machine loses its power: " : "SIGKILL of ") + one.process->name);
        if (silent) {
          simulation_.silent.insert(one.process);
          for (auto& l : mesh_.links())
            for (const std::size_t side : {0U, 1U})
              if (l.owners[side] == one.process) l.breaks[1 - side] = s_.now() + keep_alive;
          quiet_at_ = std::max(quiet_at_, s_.now() + keep_alive);
        }
        one.hit = true;
        if (!async_) any_ = true;
        if (async_ && (one.server || r.one_in(2))) one.again_at = s_.now() + r.between(10 * ms, 2 * second);
        // Nobody waits for this worker, and then it comes back.
        if (async_ && one.again_at == never && r.one_in(2)) one.late_at = s_.now() + r.between(second, 4 * second);
        killed_.push_back(&one);
        if (r.one_in(2)) mesh_.lose_unsent(*one.process);
        return s_.kill(*one.process, SIGKILL);
      }
      case 3:
      case 4:
        lasts({&one});
        return simulation_.stop(*one.process, time, name);
      case 5: {
        const bool suspended = r.one_in(2);
        s_.note(name + "all processes are " + (suspended ? "suspended" : "stopped") + span);
        quiet_at_ = std::max(quiet_at_, s_.now() + time);
        stopped_until_ = std::max(stopped_until_, s_.now() + time);
        for (Start* x : running) {
          x->process->pause_until(s_.now() + time);
          if (suspended) x->process->clocks.suspend(time);
        }
        return;
      }
      case 6:
      case 7: {
        Start& other = *pick();
        const std::uint64_t ways = r.below(3);
        s_.note(name + one.process->name + " and " + other.process->name + " are cut, ways " + std::to_string(ways) +
                span);
        lasts({&one, &other});
        if (ways != 1) simulation_.network.cut(*one.process, *other.process, time);
        if (ways != 2) simulation_.network.cut(*other.process, *one.process, time);
        return;
      }
      case 8:
        for (auto& l : mesh_.links()) {
          const bool open = l.sockets[0] >= 0 && l.owners[0]->runs() && l.owners[1]->runs();
          if (!open || !r.one_in(2)) continue;
          s_.note(name + "the connection of " + l.owners[0]->name + " to " + l.owners[1]->name + " breaks");
          for (Nanos& at : l.breaks) at = s_.now() + r.between(0, 300 * ms);
          for (Process* p : l.owners) s_.wake_all(p);
          quiet_at_ = std::max(quiet_at_, s_.now() + deadline_ * second);
          for (Start& x : starts_) x.hit = x.hit || x.process == l.owners[0] || x.process == l.owners[1];
          if (!async_) any_ = true;
          return;
        }
        return;
      default:
        simulation_.jump(*one.process, r, name);
    }
  }

  // ---- the end ----
  [[nodiscard]] bool is_over() const {
    return work_is_over() && std::none_of(others_.begin(), others_.end(), [](const auto* p) { return p->runs(); }) &&
           std::none_of(starts_.begin(), starts_.end(), [](const Start& x) { return x.process->runs(); });
  }
  void check_end() {
    bool lost_state = false;  // a server had not saved its state, so the job cannot go on
    const bool names = !async_ && killed_.size() == 1 && quiet_at_ == 0;
    bool workers_failed = false;
    for (const Start& x : starts_) {
      workers_failed =
          workers_failed || (!x.server && (x.process->state == Process::State::killed || x.process->code != 0));
      lost_state =
          lost_state || (x.server && x.run > 0 && x.process->error.find("no saved state") != std::string::npos);
    }
    for (const Start& x : starts_) {
      const Process& p = *x.process;
      if (p.state == Process::State::killed || p.code == 0) continue;
      // The servers may end before they have admitted it, because the others have done the work.
      if (x.late && p.error.find("all servers within") != std::string::npos && server_has_ended()) continue;
      if (by_scripts_ && workers_failed && x.server && p.error.find("no worker") != std::string::npos) continue;
      if (!any_ && !x.hit && !lost_state) s_.fail(p.name + " failed without a fault: " + p.error);
      if (p.code != static_cast<int>(ExitCode::communication))
        s_.fail(p.name + " exited with " + std::to_string(p.code) + ": " + p.error);
      if (names && !x.server && p.error.find(killed_[0]->name()) == std::string::npos)
        s_.fail(p.name + " does not name " + killed_[0]->name() + ": " + p.error);
    }
    if (async_) check_pushes();
  }
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> bucket_list() const {
    std::vector<std::pair<std::size_t, std::size_t>> list;
    for (auto at = buckets_.begin(); std::next(at) != buckets_.end(); ++at) list.emplace_back(*at, *std::next(at));
    return list;
  }

  std::vector<const Start*> killed_;
  std::vector<const Process*> others_;  // processes that do not belong to the job
  bool any_ = false;                    // a fault explains the end of any process; a pause of all processes does not
  Nanos quiet_at_ = 0, stood_ = 0;
  Nanos stopped_until_ = 0;  // what starts processes is stopped, too
};

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  return run_schedules(argc, argv, [](Simulation& s) { Tables(s).run(); });
}
