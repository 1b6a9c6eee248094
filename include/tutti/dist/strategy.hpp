// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// One word that every rank contributes to each step; all ranks see the union and decide the same.
namespace step_flag {
inline constexpr std::uint32_t stop = 1, membership = 2, not_finite = 4;
}

struct Membership {
  int rank = 0, size = 1;
  std::uint64_t generation = 0;  // grows with every change
};

// How several processes train one model. The trainer calls attach once, then in every step reduce for each bucket the
// moment its gradients are final, finish before the update, and sum for the metrics.
template <class S>
concept DistributedStrategy = requires(S& s, const S& cs, const ArenaLayout& layout, std::uint64_t fingerprint,
                                       std::span<StateSpan> state, const Bucket& bucket, std::span<std::byte> gradients,
                                       std::span<double> metrics, std::uint32_t flags) {
  { cs.rank() } -> std::same_as<int>;
  { cs.size() } -> std::same_as<int>;
  { cs.name() } -> std::convertible_to<std::string>;
  // Memory for the gradient arena, or an empty span: the backend's own.
  { s.allocate_gradients(layout) } -> std::same_as<std::span<std::byte>>;
  // Compares layout and options over all ranks.
  s.attach(layout, fingerprint);
  // Everyone takes the authority's state.
  s.synchronise(state);
  // Sums a bucket over all ranks, in place.
  { s.reduce(bucket, gradients) } -> std::same_as<Work>;
  // Ends the step's communication; returns the union of all ranks' flags.
  { s.finish(flags) } -> std::same_as<std::uint32_t>;
  s.sum(metrics);
  { cs.membership() } -> std::same_as<Membership>;
};

}  // namespace tutti
