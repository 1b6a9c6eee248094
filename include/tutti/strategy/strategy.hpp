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

struct Membership {              // who is there, and which of them this is
  int rank = 0, size = 1;        // rank -1: of a process that is in no group, see ElasticMembership::joining()
  std::uint64_t generation = 0;  // grows with every change
};

// What ranks sum in a step: a bucket of gradients, with the step's flags ahead of the first, or the running statistics.
struct Piece {
  enum class Kind : std::uint8_t { gradients, statistics };
  Kind kind = Kind::gradients;
  std::size_t index = 0;  // of its kind, in the order of the step
  DType dtype = DType::f32;
  std::span<std::byte> bytes;
  std::size_t flags = 0;  // bytes of these in front that are the step's flags; gradients stand behind them
};

// What a worker pushes to whoever owns the weights: a bucket of gradients, and where it wants the weights behind it.
struct Push {
  std::size_t index = 0;  // of the bucket, in the order of the step
  std::size_t begin = 0;  // its first element in the layout of attach()
  DType dtype = DType::f32;
  // Of the sum of this worker's losses, divided by the rows of all workers and multiplied by the loss scale.
  std::span<const std::byte> gradients;
  std::span<std::byte> weights;  // as many bytes
};

// What of a strategy is optional. Each member names functions that the strategy has exactly where it is true.
struct StrategyTraits {
  bool reads_device_memory = false;  // pieces may lie in a device's memory
  bool follows_steps = false;        // begin_step() and settled()
  bool watches_ranks = false;        // deadline() and wait_until()
  bool owns_weights = false;         // exchange(), pull(), progress(), others_at_work() and came_late()
  bool changes_members = false;      // members()
};

template <class S>
concept FollowsSteps = requires(S& s, std::int64_t step, bool runs_ahead) {
  // The job's step that comes, from 1. runs_ahead: a device does it, and finish() comes when it has been told to,
  // settled() when it is over.
  s.begin_step(step, runs_ahead);
  s.settled();
};
template <class S>
concept WatchesRanks = requires(S& s, const S& cs, const std::function<bool()>& done, const std::string& what) {
  // How long it waits for a rank before it counts as lost.
  { cs.deadline() } -> std::same_as<std::chrono::milliseconds>;
  // Waits until done() says so, and meanwhile for ranks that are gone.
  s.wait_until(done, what);
};

// Its members come and go while it lives.
template <class S>
concept ChangesMembers = requires(S& s) {
  { s.members() } -> std::convertible_to<ElasticMembership*>;
};

// Somebody else, such as servers, owns the weights and the optimizer's state and changes them by each push at once, so
// workers wait for no other one: reduce() is not called, and sum() leaves a worker's numbers as they are. What
// synchronise() gets are the arenas: "weights", the optimizer's ("momentum.weights", ...) and what workers have beside.
template <class S>
concept OwnsWeights = requires(S& s, const S& cs, const Push& push, std::span<StateSpan> state) {
  // Done when the push was applied and the weights are there; the memory of both belongs to it until then.
  { s.exchange(push) } -> std::same_as<Work>;
  // Takes weights and optimizer state as they are now; of these names.
  s.pull(state);
  // Other workers whose training has not ended, lost ones left out.
  { s.others_at_work() } -> std::same_as<std::int64_t>;
  // Others trained before this worker came, such as one that was started again: its place is beside them.
  { cs.came_late() } -> std::same_as<bool>;
  // Steps of all workers together that were applied, as far as this one was told. Never falls.
  { cs.progress() } -> std::same_as<std::int64_t>;
};

// How several processes train one model. The trainer calls attach and synchronise once in each generation, then in
// every step reduce for each piece the moment it is final, finish after the update, and sum for the metrics. A strategy
// of one rank need not do any of it.
template <class S>
concept DistributedStrategy = requires(S& s, const S& cs, const ArenaLayout& layout, const JobFacts& facts,
                                       std::span<StateSpan> state, const Piece& piece, std::span<double> metrics,
                                       std::size_t bytes, const std::string& reason, ExitCode code) {
  { S::traits } -> std::convertible_to<StrategyTraits>;
  { cs.membership() } -> std::same_as<Membership>;
  { cs.name() } -> std::convertible_to<std::string>;
  // Memory for the gradient arena, zero at first, or an empty span: the backend's own. Valid for one generation.
  { s.allocate(bytes) } -> std::same_as<std::span<std::byte>>;
  // Compares what must be the same over all ranks; throws the same UsageError on all of them where it is not.
  s.attach(layout, facts);
  // Everyone takes the authority's state.
  s.synchronise(state);
  // Sums a piece over all ranks, in place.
  { s.reduce(piece) } -> std::same_as<Work>;
  // The step is over.
  s.finish();
  s.sum(metrics);
  // Ends all ranks, because this one cannot go on; the job's exit code is this one, where there is a say in it. Does
  // not throw; may not return.
  s.abort(reason, code);
}
&&S::traits.follows_steps == FollowsSteps<S>&& S::traits.watches_ranks == WatchesRanks<S>&& S::traits.owns_weights ==
    OwnsWeights<S>&& S::traits.changes_members == ChangesMembers<S>;

}  // namespace tutti
