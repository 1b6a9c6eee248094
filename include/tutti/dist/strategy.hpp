// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/dist/fingerprint.hpp>
#include <tutti/dist/work.hpp>
#include <tutti/tensor/arena.hpp>

namespace tutti {

// A named piece of the training state: weights, optimizer state, running statistics, counters.
struct StateSpan {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<std::byte> bytes;
};

// What every rank says in each step; all ranks see the union and decide the same. The word travels with the first
// bucket: all of it is known before the backward pass, and no weight needs to wait for the last bucket.
namespace step_flag {
inline constexpr std::uint32_t stop = 1, membership = 2, not_finite = 4, save = 8;
}

struct Membership {
  int rank = 0, size = 1;
  std::uint64_t generation = 0;  // grows with every change
};

// How several processes train one model. The trainer calls attach once, then in every step reduce for each bucket the
// moment its gradients are final, finish after the update, and sum for the metrics. A strategy of one rank need not do
// any of it. Where it has begin_step(step, runs_ahead) and settled(), it learns the number of the job's step, too, and
// when a step that a device does on its own is over (AllReduce).
template <class S>
concept DistributedStrategy = requires(S& s, const S& cs, const ArenaLayout& layout, const Fingerprint& fingerprint,
                                       std::span<StateSpan> state, const Bucket& bucket, std::span<std::byte> gradients,
                                       std::span<double> metrics, void* ready, std::size_t bytes,
                                       const std::string& reason, ExitCode code) {
  { cs.rank() } -> std::same_as<int>;
  { cs.size() } -> std::same_as<int>;
  { cs.name() } -> std::convertible_to<std::string>;
  // Memory for the gradient arena, zero at first, or an empty span: the backend's own.
  { s.allocate_gradients(bytes) } -> std::same_as<std::span<std::byte>>;
  // Compares what must be the same over all ranks; throws the same UsageError on all of them where it is not.
  s.attach(layout, fingerprint);
  // Everyone takes the authority's state.
  s.synchronise(state);
  // Sums a bucket over all ranks, in place. `ready`: an event of the backend that it must wait for, or null.
  { s.reduce(bucket, gradients, ready) } -> std::same_as<Work>;
  // The step is over.
  s.finish();
  s.sum(metrics);
  // Ends all ranks, because this one cannot go on; the job's exit code is this one, where there is a say in it. Does
  // not throw; may not return.
  s.abort(reason, code);
  { cs.membership() } -> std::same_as<Membership>;
};

template <class S>
void begin_step(S& s, std::int64_t step, bool runs_ahead) {
  if constexpr (requires { s.begin_step(step, runs_ahead); }) s.begin_step(step, runs_ahead);
}
template <class S>
void step_settled(S& s) {
  if constexpr (requires { s.settled(); }) s.settled();
}

}  // namespace tutti
