// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti {

// What the random numbers of a batch depend on, as in batch_rng(), and the place of its first row among the rows of the
// logical rank (a micro-batch begins later).
struct BatchKey {
  std::uint64_t seed = 1, step = 0, logical_rank = 0;
  std::int64_t first_row = 0;
};

namespace op {

// x -> y: each element, or each image if `rows`, is 0 with the probability `rate`, otherwise x / (1 - rate). The
// gradient is the same op on dy. Only training drops: inference() sets the rate to 0, with which y is x. Srivastava et
// al. 2014; of images it is stochastic depth, Huang et al. 2016.
//
// Layer k of a net (the number of dropouts recorded before it) has as its key the k-th next64(), from 0, of
// batch_rng(seed, Purpose::dropout, step, logical rank), and row r of the logical rank's batch takes its numbers from
// Rng(key, Purpose::dropout, 0, r): one for the image, or one for each element in the order height, width, channels.
// A number from uniform() under the rate drops.
struct Dropout {
  static constexpr OpInfo info{.name = "dropout"};
  float rate = 0.5F;
  bool rows = false;
  std::uint32_t layer = 0;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const;
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(*this, {dy}, {dx});
  }

  // Returns the random numbers of a row. row: in this batch, from 0.
  [[nodiscard]] Rng numbers_of(const BatchKey& b, std::int64_t row) const;
  // Returns the factor of the next element, or of the image.
  [[nodiscard]] float next_factor(Rng& numbers) const { return numbers.uniform() < rate ? 0.0F : 1 / (1 - rate); }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION OpOutputs Dropout::outputs(const OpInputs& in) const {
  if (!(rate >= 0 && rate < 1)) fail<UsageError>(in.layer(), "a rate of 0 or more and under 1", rate);
  return one_output(in, in.activation(0));
}
TUTTI_CORE_FUNCTION Rng Dropout::numbers_of(const BatchKey& b, std::int64_t row) const {
  Rng keys = batch_rng(b.seed, Purpose::dropout, b.step, b.logical_rank);
  for (std::uint32_t k = 0; k < layer; ++k) (void)keys.next64();
  return {keys.next64(), Purpose::dropout, 0, static_cast<std::uint64_t>(b.first_row + row)};
}
#endif

}  // namespace op
}  // namespace tutti
