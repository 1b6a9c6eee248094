// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/strategy/parameter_server/server/step_assigner.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>

namespace tutti::ps {

// The operations of single workers on the weights that a server owns. A repeated operation is answered twice and
// executed once; see small() for requests of steps. If a worker is too far ahead, its answer waits until the slowest
// worker has caught up. After a restart of the server, a worker counts as slow only once it has begun a step.
class OwnedOperations {
 public:
  struct Replies {  // functions that answer workers
    std::function<void(const Frame&, std::span<const std::byte>)> answer;
    std::function<void(const Frame&, const std::string& why)> refuse;
    std::function<void(std::uint32_t worker, std::uint64_t steps)> lost;  // no server state has these steps
  };
  // store: must outlive this object. staleness: see ServerOptions.
  OwnedOperations(WeightStore& store, std::optional<std::int64_t> staleness, std::size_t workers, Replies replies)
      : store_(store), staleness_(staleness), workers_(workers), reply_(std::move(replies)) {}

  // Call when a worker has connected, or connected again: its earlier operations do not count, and no worker waits for
  // its unfinished ones. If the session is the same, the worker has only restored its connection, or this server was
  // restarted: then the earlier operations do count.
  void begin(std::uint32_t worker, std::uint64_t session) {
    drop(worker);
    Worker& known = workers_[worker];
    if (known.session != session) known = new_worker(session, known.clock);
    known.there = true;
    if (!known.stale) correct_clocks(known);
  }
  // Accepts worker numbers below `workers`.
  void grow(std::size_t workers) { workers_.resize(std::max(workers_.size(), workers)); }
  // Call when a worker has ended or is lost.
  void leave(std::uint32_t worker) {
    drop(worker);
    workers_[worker].there = false;
    release();
  }

  // done: this worker has completed all rounds below it. at_work: number of other workers that have not ended. Returns
  // whether the operation is a repeated one.
  bool take(const Frame& f, std::span<const std::byte> data, std::uint64_t done, std::int64_t at_work) {
    Worker& w = workers_[f.worker];
    w.done.erase(w.done.begin(), w.done.lower_bound({done, 0}));
    const bool repeated = !w.done.insert({f.round, f.offset}).second;
    if (f.root == arena::steps || f.root == arena::began) {
      small(f, data);
      return repeated;
    }
    if (f.operation == Operation::store) {
      if (!repeated && !store(f, data)) return false;
      answer(f, {});
    } else if (f.root == arena::at_work) {
      answer(f, std::as_bytes(std::span(&at_work, 1)));
    } else {
      if (!repeated && f.operation == Operation::apply) apply(w, f, data);
      waiting_.push_back(f);
    }
    release();
    return repeated;
  }
  void save(ServerState& to) const {
    store_.save(to);
    for (const Worker& w : workers_)
      to.workers.push_back(
          {w.session, w.its_step, w.step, w.clock, w.first_clock, w.origin, {w.done.begin(), w.done.end()}});
  }
  // Call before workers connect.
  void restore(const ServerState& from) {
    if (from.workers.size() != workers_.size())
      fail<DataError>("saved state of a server", {workers_.size(), " workers"}, from.workers.size());
    store_.restore(from);
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const ServerState::Worker& w = from.workers[i];
      workers_[i].session = w.session;
      workers_[i].its_step = w.its_step;
      workers_[i].step = w.step;
      workers_[i].clock = w.clock;
      workers_[i].first_clock = w.first_clock;
      workers_[i].origin = w.origin;
      workers_[i].stale = true;
      workers_[i].done = {w.done.begin(), w.done.end()};
    }
  }
  // Returns why a frame cannot be executed, or an empty text.
  [[nodiscard]] std::string_view refusal(const Frame& f) const { return store_.refusal(f); }

 private:
  struct Worker {
    std::set<std::pair<std::uint64_t, std::uint64_t>> done{};  // operations, by round and offset
    // its_step, step: the worker's current step, in its own count and in the server's count of all workers' steps.
    // clock: the number of steps that it has begun here.
    std::uint64_t session = 0, its_step = 0;
    std::int64_t step = 0, clock = 0;
    // first_clock: the clock with which it began. origin: number of the worker from whose clock it was taken, in the
    // order in which such workers connected. A clock of an older origin is more reliable.
    std::int64_t first_clock = 0, origin = 0;
    bool there = false;
    bool stale = false;  // this server was restarted, and the worker has not begun a step since
  };

  // Returns a worker that begins with the clock of the slowest worker. If no worker with a reliable clock is there,
  // correct_clocks() raises its clock later. old_clock: the clock of the worker that it replaces.
  [[nodiscard]] Worker new_worker(std::uint64_t session, std::int64_t old_clock) const {
    Worker w;
    w.session = session;
    const Worker* from = nullptr;
    for (const Worker& other : workers_) {
      w.origin = std::max(w.origin, other.origin + 1);
      if (other.there && !other.stale &&
          (from == nullptr || std::pair(other.origin, other.clock) < std::pair(from->origin, from->clock)))
        from = &other;
    }
    if (from != nullptr) w.origin = from->origin;
    w.clock = w.first_clock = from != nullptr ? from->clock : slowest(true).value_or(old_clock);
    return w;
  }

  // Answers operations without weights at once. Executes repeated ones again, which assigns no second step: a worker
  // repeats a request only after begin(), which has taken back the worker's steps. The other operations have the same
  // effect once or twice.
  void small(const Frame& f, std::span<const std::byte> data) {
    std::int64_t word = 0;
    if (f.operation == Operation::store) {
      std::memcpy(&word, data.data(), std::min(data.size(), sizeof word));
      word < 0 ? assigner_.end_all() : assigner_.complete(f.worker, word);
      return answer(f, {});
    }
    word = f.root == arena::steps ? encode(assigner_.assign(f.worker, static_cast<std::int64_t>(f.step)))
           : f.step > 0           ? static_cast<std::int64_t>(store_.has_text())
                                  : static_cast<std::int64_t>(store_.sealed());
    answer(f, std::as_bytes(std::span(&word, 1)));
  }
  // Returns whether the worker was accepted.
  bool store(const Frame& f, std::span<const std::byte> data) {
    if (f.root != arena::facts) {
      store_.store(f, data);
      return true;
    }
    const std::string differs = store_.compare(data);
    if (!differs.empty()) reply_.refuse(f, differs);
    return differs.empty();
  }
  void apply(Worker& w, const Frame& f, std::span<const std::byte> gradients) {
    if (w.its_step != f.step) {
      if (std::exchange(w.stale, false)) {
        if (f.step > w.its_step + 1) {
          const std::uint64_t steps = f.step - w.its_step - 1;
          store_.skip(static_cast<std::int64_t>(steps));
          w.clock += static_cast<std::int64_t>(steps);
          if (reply_.lost) reply_.lost(f.worker, steps);
        }
        correct_clocks(w);
      }
      w.its_step = f.step;
      ++w.clock;
      w.step = store_.begin_step();
    }
    (void)store_.apply(f, gradients, w.step);
  }
  // Raises the clocks of newer origin, now that the true clock of `known` is known: they began at a clock that may be
  // too low. Otherwise `known` would wait for their workers here, and these workers for it on another server.
  void correct_clocks(const Worker& known) {
    for (Worker& w : workers_) {
      if (w.origin <= known.origin) continue;
      w.origin = known.origin;
      const std::int64_t first = std::max(w.first_clock, known.clock);
      w.clock += first - std::exchange(w.first_clock, first);  // keeps the steps that it has begun here
    }
  }
  void answer(Frame f, std::span<const std::byte> data) {
    f.kind = FrameKind::answer;
    f.packed = false;
    f.done = static_cast<std::uint64_t>(store_.steps());
    reply_.answer(f, data);
  }
  // Answers the operations that waited for weights, or for slower workers, and need not wait any more.
  void release() {
    const std::optional<std::int64_t> last = slowest(false);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const Frame f = waiting_[i];
      const bool too_fast =
          f.operation == Operation::apply && staleness_ && last && workers_[f.worker].clock > *last + *staleness_;
      if (too_fast || !store_.ready(f))
        waiting_[kept++] = f;
      else if (const std::string_view why = store_.refusal(f); !why.empty())
        reply_.refuse(f, std::string(why));
      else
        answer(f, store_.fetch(f));
    }
    waiting_.resize(kept);
  }
  void drop(std::uint32_t worker) {
    workers_[worker].there = false;
    assigner_.leave(worker);
    std::erase_if(waiting_, [&](const Frame& f) { return f.worker == worker; });
  }
  // Returns the clock of the slowest worker. stale: also counts those that have not begun a step since this server was
  // restarted, whose clocks may be too low. To wait for such a worker could be to wait for ever, because it may wait on
  // another server for the worker that waits here.
  [[nodiscard]] std::optional<std::int64_t> slowest(bool stale) const {
    std::optional<std::int64_t> clock;
    for (const Worker& w : workers_)
      if (w.there && (stale || !w.stale)) clock = std::min(clock.value_or(w.clock), w.clock);
    return clock;
  }

  WeightStore& store_;
  StepAssigner assigner_;
  std::optional<std::int64_t> staleness_;
  std::vector<Worker> workers_;
  Replies reply_;
  std::vector<Frame> waiting_;
};

}  // namespace tutti::ps
