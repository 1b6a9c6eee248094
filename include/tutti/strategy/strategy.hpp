// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/tensor/arena.hpp>

namespace tutti {

// A named piece of the training state: weights, optimizer state, running statistics, counters.
struct StateSpan {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<std::byte> bytes;
};

struct Membership {              // the members of the group, and this process's rank
  int rank = 0, size = 1;        // rank -1: the process is in no group, see ElasticMembership::joining()
  std::uint64_t generation = 0;  // grows with each change of the members
};

// Data that ranks sum in a step: a bucket of gradients, with the step's flags before the first one, or the running
// statistics.
struct Piece {
  enum class Kind : std::uint8_t { gradients, statistics };
  Kind kind = Kind::gradients;
  std::size_t index = 0;  // position among the pieces of its kind, in the order of the step
  DType dtype = DType::f32;
  std::span<std::byte> bytes;
  std::size_t flags = 0;  // bytes at the beginning of `bytes` that are the step's flags; gradients follow
};

// A worker's push to the owner of the weights: a bucket of gradients, and the destination of the resulting weights.
struct Push {
  std::size_t index = 0;  // index of the bucket, in the order of the step
  std::size_t begin = 0;  // first element of the bucket in the layout of attach()
  DType dtype = DType::f32;
  // Gradients of the sum of this worker's losses, divided by the rows of all workers and multiplied by the loss scale.
  std::span<const std::byte> gradients;
  std::span<std::byte> weights;  // receives the weights: as many bytes as `gradients`
};

// The optional parts of a strategy. If a member is true, the strategy must have the functions that its comment names.
// Otherwise it must not have them.
struct StrategyTraits {
  bool reads_device_memory = false;  // pieces may be in a device's memory
  bool follows_steps = false;        // begin_step() and settled()
  bool watches_ranks = false;        // deadline() and wait_until()
  bool owns_weights = false;         // exchange(), pull(), progress(), others_at_work() and came_late()
  bool changes_members = false;      // members()
};

template <class S>
concept FollowsSteps = requires(S& s, std::int64_t step, bool runs_ahead) {
  // Called before the job's next step; steps count from 1. runs_ahead: a device runs the step; finish() is called when
  // the step has been started, and settled() when it has ended.
  s.begin_step(step, runs_ahead);
  s.settled();
};
template <class S>
concept WatchesRanks = requires(S& s, const S& cs, const std::function<bool()>& done, const std::string& what) {
  // Returns how long the strategy waits for a rank before the rank counts as lost.
  { cs.deadline() } -> std::same_as<std::chrono::milliseconds>;
  // Waits until done() returns true, and throws if a rank is lost meanwhile.
  s.wait_until(done, what);
};

// The members of the strategy change while it exists.
template <class S>
concept ChangesMembers = requires(S& s) {
  { s.members() } -> std::convertible_to<ElasticMembership*>;
};

// Another process, for example a server, owns the weights and the optimizer's state. It updates them at each push, so
// workers do not wait for each other. reduce() is not called, and sum() leaves a worker's numbers unchanged.
// synchronise() gets the arenas: "weights", the optimizer's ("momentum.weights", ...) and the workers' other state.
template <class S>
concept OwnsWeights = requires(S& s, const S& cs, const Push& push, std::span<StateSpan> state) {
  // The Work is done when the push was applied and the weights have arrived. Until then it uses the memory of both.
  { s.exchange(push) } -> std::same_as<Work>;
  // Fetches the current weights and optimizer state with these names.
  s.pull(state);
  // Returns the number of other workers that are still training, without lost ones.
  { s.others_at_work() } -> std::same_as<std::int64_t>;
  // Returns whether other workers trained before this worker arrived, for example because this worker was restarted. It
  // then joins them.
  { cs.came_late() } -> std::same_as<bool>;
  // Returns the number of applied steps of all workers together, as far as this worker knows. Never decreases.
  { cs.progress() } -> std::same_as<std::int64_t>;
};

// How several processes train one model. In each generation the trainer calls attach once, and then synchronise: once,
// or twice if the strategy reads the memory of devices (Backend::choices). In every step it calls reduce for each piece
// as soon as the piece is final, finish after the update, and sum for the metrics.
// In a strategy of one rank, all of these functions may be empty.
template <class S>
concept DistributedStrategy = requires(S& s, const S& cs, const ArenaLayout& layout, const JobFacts& facts,
                                       std::span<StateSpan> state, const Piece& piece, std::span<double> metrics,
                                       std::size_t bytes, const std::string& reason, ExitCode code) {
  { S::traits } -> std::convertible_to<StrategyTraits>;
  { cs.membership() } -> std::same_as<Membership>;
  { cs.name() } -> std::convertible_to<std::string>;
  // Returns memory for the gradient arena, initially zero and valid for one generation, or an empty span if the backend
  // is to use its own memory.
  { s.allocate(bytes) } -> std::same_as<std::span<std::byte>>;
  // Compares facts that must be equal on all ranks. If they differ, throws the same UsageError on all ranks.
  s.attach(layout, facts);
  // All ranks take the authority's state.
  s.synchronise(state);
  // Sums a piece over all ranks, in place.
  { s.reduce(piece) } -> std::same_as<Work>;
  // The update of the step is complete.
  s.finish();
  s.sum(metrics);
  // Ends all ranks, because this one cannot continue. The job exits with this code if the launcher allows the strategy
  // to choose. Does not throw; may not return.
  s.abort(reason, code);
}
&&S::traits.follows_steps == FollowsSteps<S>&& S::traits.watches_ranks == WatchesRanks<S>&& S::traits.owns_weights ==
    OwnsWeights<S>&& S::traits.changes_members == ChangesMembers<S>;

}  // namespace tutti
