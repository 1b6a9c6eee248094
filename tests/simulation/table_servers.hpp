// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/train/server_snapshots.hpp>

#include "random.hpp"
#include "server_ends.hpp"
#include "simulation.hpp"

namespace tutti::simulation {

inline constexpr std::size_t block = 16;  // elements, a cache line
// The time after which an end learns that the other one lost its power.
inline constexpr Nanos keep_alive = 20 * second;

// A start of a worker or server.
struct Start {
  bool server = false;
  int number = 0, run = 0;  // run: how often the same worker or server was started before
  Process* process = nullptr;
  Nanos again_at = never;  // it is started again
  Nanos late_at = never;   // it is started again, although the job counts it as ended
  bool hit = false;        // a fault explains its end
  bool late = false;       // it was started at late_at
  [[nodiscard]] std::string name() const { return (server ? "server " : "rank ") + std::to_string(number); }
};

// A push of a block of gradients, which a server must apply once: worker, its run, step, block.
using PushId = std::tuple<int, int, int, int>;
using Pieces = std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::byte>>;
// What a server has applied: in the state that it has now, at any time, and in each state that it wanted to save.
struct Ledger {
  struct State {
    std::set<PushId> pushes{};
    std::map<std::int64_t, std::tuple<int, int, int>> steps{};  // worker, its run and step, by the server's count
  };
  State now{};
  std::set<PushId> ever{};
  std::map<Pieces, State> saved{};
};

// The plan of a job with parameter servers, and the servers of it: the real Server with the real snapshots. Its
// update of the weights writes down which pushes were applied. tables.cpp adds the workers and the faults.
class TableServers {
 protected:
  explicit TableServers(Simulation& simulation)
      : simulation_(simulation),
        s_(simulation.scheduler),
        plan_(simulation.options.seed, 4),
        async_(plan_.one_in(2)),
        workers_(1 + static_cast<int>(plan_.below(4))),
        steps_(4 + static_cast<int>(plan_.below(20))),
        deadline_(async_ ? plan_.between(25, 60) : plan_.between(5, 40)),
        mesh_(simulation.network, 1 + static_cast<int>(plan_.below(3))),
        ledgers_(static_cast<std::size_t>(mesh_.servers())) {
    const auto tensors = 1 + plan_.below(4);
    for (std::uint64_t i = 0; i < tensors; ++i)
      layout_.append("t" + std::to_string(i), Shape{static_cast<std::int64_t>(1 + plan_.below(block * 6))});
    big_array_ = plan_.one_in(2) ? ps::usual_big_array : 1 + plan_.below(block * 6);
    buckets_ = {0, layout_.count};
    for (std::uint64_t i = plan_.below(3); i > 0; --i) buckets_.insert(plan_.below(layout_.count / block) * block);
    if (async_ && plan_.one_in(3)) staleness_ = static_cast<std::int64_t>(plan_.below(3));
    mesh_.repeat(plan_.one_in(3) ? 1 + plan_.below(60) : 0);
    by_scripts_ = plan_.one_in(3);
    second_ = !async_ && plan_.one_in(4) ? static_cast<int>(plan_.below(8)) : -1;
    in_flight_ = layout_.bytes() + (plan_.one_in(2) ? plan_.below(4096) : ps::usual_in_flight);
    s_.note(std::string(async_ ? "ps_async" : "ps") + ", " + std::to_string(workers_) + " workers, " +
            std::to_string(mesh_.servers()) + " servers, deadline " + std::to_string(deadline_) + " s");
  }

  // ---- a server ----
  void serve(Start& of) {
    Ledger& ledger = ledgers_[static_cast<std::size_t>(of.number)];
    ledger.now = {};
    ps::ServerOptions o;
    o.index = of.number;
    o.servers = mesh_.servers();
    o.workers = workers_;
    o.patience = std::chrono::seconds(20);
    o.in_flight = in_flight_;
    o.staleness = staleness_;
    // Servers that scripts start end with the last worker, and those of the launcher also if it asks for it.
    if (!by_scripts_) o.stop_requested = [this] { return work_is_over(); };
    of.hit = of.hit || (by_scripts_ && of.run > 0);  // perhaps no worker comes back
    o.log = [this, &ledger](const std::string& line) { check_loss(ledger, line); };
    // The server may be killed right after it has saved its state.
    Random fate(simulation_.options.seed, 300 + static_cast<std::uint64_t>(10 * of.number + of.run));
    const auto number = static_cast<std::size_t>(200 + of.number);
    std::uint64_t saves = fate.one_in(4) && !simulation_.options.without.contains(number) ? 1 + fate.below(3) : 0;
    std::optional<ServerSnapshots> snapshots;
    std::optional<ps::ServerState> from;
    ps::WeightStore store(layout_, 0, facts(), [this, &ledger](const ServerPart& p) { apply(ledger, p); });
    if (async_) {
      snapshots.emplace(io::Path("servers") / ("server-" + std::to_string(of.number)), "job",
                        [this](const std::string& line) { s_.note(line); });
      from = snapshots->newest();
      if (of.run > 0 && !from) fail<CommunicationError>(of.name(), "its saved state", "no saved state");
      if (from) {
        const auto saved = ledger.saved.find(pieces_of(*from));
        if (saved == ledger.saved.end()) s_.fail(of.name() + " has loaded a state that it never had");
        ledger.now = saved->second;
        o.from = &*from;
        for (const Start& w : starts_)
          if (!w.server && !w.process->runs() && w.again_at == never && is_last(w)) o.ended.push_back(w.number);
      }
      o.store = &store;
      o.keep = [&](ps::ServerState&& state) {
        ledger.saved[pieces_of(state)] = ledger.now;
        snapshots->write(std::move(state));
        if (saves == 0 || --saves > 0 || work_is_over()) return;
        snapshots->wait();
        s_.note("fault " + std::to_string(number) + ": SIGKILL of " + of.process->name + " after it has saved");
        kill_server(of);
      };
      o.keep_every = std::chrono::milliseconds(plan_of(of).between(20, 400));
    }
    ps::Server<ServerMesh::ServerEnd> server(std::make_unique<ServerMesh::ServerEnd>(mesh_, of.number), o);
    server.run();
    if (server.counts().malformed + server.counts().too_much > 0) s_.fail(of.name() + " has refused a worker's frame");
  }
  [[nodiscard]] static Pieces pieces_of(const ps::ServerState& state) {
    Pieces all;
    for (const auto& p : state.pieces) all[{p.arena, p.begin}] = p.bytes;
    return all;
  }
  // Updates a server's weights: each block counts its pushes and keeps the last one.
  void apply(Ledger& ledger, const ServerPart& p) {
    const auto* g = static_cast<const float*>(p.gradients);
    auto* w = static_cast<float*>(p.weights);
    for (std::size_t i = 0; i < p.end - p.begin; i += block) {
      const PushId id(static_cast<int>(g[i]), static_cast<int>(g[i + 1]), static_cast<int>(g[i + 2]),
                      static_cast<int>(g[i + 3]));
      if (static_cast<std::size_t>(std::get<3>(id)) * block != p.begin + i) s_.fail("a push has gone to another part");
      if (!ledger.now.pushes.insert(id).second)
        s_.fail("a push of rank " + std::to_string(std::get<0>(id)) + " is applied twice");
      const std::tuple step(std::get<0>(id), std::get<1>(id), std::get<2>(id));
      if (ledger.now.steps.emplace(p.step, step).first->second != step)
        s_.fail("two steps have the number " + std::to_string(p.step));
      ledger.ever.insert(id);
      w[i] += 1;
      std::copy_n(g + i, 3, w + i + 1);
    }
  }

  // Kills a server of ps_async, which is started again.
  void kill_server(Start& of) {
    of.hit = true;
    of.again_at = s_.now() + s_.noise().between(10 * ms, 2 * second);
    if (s_.noise().one_in(2)) mesh_.lose_unsent(*of.process);
    s_.kill(*of.process, SIGKILL);
  }
  // Checks a line that says how many steps of a worker are lost: no more than the restored state lacks.
  void check_loss(const Ledger& ledger, const std::string& line) {
    s_.note(line);
    const std::size_t at = line.find(" has lost "), of = line.find(" of rank ");
    if (at == std::string::npos || of == std::string::npos) return;
    const int worker = std::stoi(line.substr(of + 9));
    std::set<std::pair<int, int>> lost;  // run and step
    for (const PushId& id : ledger.ever)
      if (std::get<0>(id) == worker && !ledger.now.pushes.contains(id)) lost.emplace(std::get<1>(id), std::get<2>(id));
    if (std::stoul(line.substr(at + 10)) > lost.size())
      s_.fail(line + "; the state lacks " + std::to_string(lost.size()));
  }
  // Each push that a worker has finished was applied, and is lost only with a server that was started again.
  void check_pushes() {
    for (const ps::ServerRange& range : ps::ranges_of(layout_, mesh_.servers(), big_array_)) {
      const Ledger& ledger = ledgers_[static_cast<std::size_t>(range.server)];
      const bool again = std::any_of(starts_.begin(), starts_.end(),
                                     [&](const Start& x) { return x.server && x.number == range.server && x.run > 0; });
      for (const auto& [who, steps] : finished_)
        for (int step = 1; step <= steps; ++step)
          for (std::size_t b = range.begin / block; b < range.end / block; ++b) {
            const PushId id(who.first, who.second, step, static_cast<int>(b));
            if (!(again ? ledger.ever : ledger.now.pushes).contains(id))
              s_.fail("step " + std::to_string(step) + " of rank " + std::to_string(who.first) + " was not applied");
          }
    }
  }
  [[nodiscard]] bool is_last(const Start& of) const {
    return std::none_of(starts_.begin(), starts_.end(), [&](const Start& x) {
      return x.server == of.server && x.number == of.number && x.run > of.run;
    });
  }
  // Returns whether no worker runs or will run.
  [[nodiscard]] bool work_is_over() const {
    return std::none_of(starts_.begin(), starts_.end(),
                        [](const Start& x) { return !x.server && (x.process->runs() || x.again_at != never); });
  }
  [[nodiscard]] bool server_has_ended() const {
    return std::any_of(starts_.begin(), starts_.end(), [](const Start& x) {
      return x.server && x.process->state == Process::State::exited && x.process->code == 0;
    });
  }
  [[nodiscard]] static JobFacts facts() {
    JobFacts f;
    f.add("model", "blocks");
    return f;
  }
  [[nodiscard]] Random plan_of(const Start& of) const {
    return Random(simulation_.options.seed, 100 + static_cast<std::uint64_t>(of.number));
  }

  Simulation& simulation_;
  Scheduler& s_;
  Random plan_;
  bool async_;
  int workers_, steps_;
  std::int64_t deadline_;  // seconds
  ServerMesh mesh_;
  std::vector<Ledger> ledgers_;
  ArenaLayout layout_;
  std::uint64_t big_array_ = 0;
  std::set<std::size_t> buckets_;  // first elements, and the end
  std::optional<std::int64_t> staleness_;
  std::size_t in_flight_ = 0;
  bool by_scripts_ = false;  // the servers have no launcher
  int second_ = -1;          // rank that is started a second time while it runs
  std::deque<Start> starts_;
  std::map<std::pair<int, int>, int> finished_;  // steps of each run of a worker
};

}  // namespace tutti::simulation
