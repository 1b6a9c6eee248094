// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include <tutti/engine/executor.hpp>

namespace tutti {

// The work of a rank in a step. With logical ranks it may have several of them, one after the other.
struct StepParts {
  std::span<const BatchView> views;         // micro-batches
  std::int64_t batches = 1;                 // that batch norm counts in this step
  std::span<const std::uint8_t> last_of{};  // for each view with logical ranks: 1 if it is the last one of its rank
  std::uint64_t first_rank = 0;             // the logical rank of the first view; without them, the rank

  // Returns whether a view is the last one of a logical rank.
  [[nodiscard]] bool ends_rank(std::size_t view) const { return !last_of.empty() && last_of[view] != 0; }
  // Returns the end of the views that belong to the same logical rank as `begin`. Without logical ranks they are all.
  [[nodiscard]] std::size_t end_of_rank(std::size_t begin) const {
    while (begin + 1 < views.size() && !ends_rank(begin)) ++begin;
    return begin + 1;
  }
  [[nodiscard]] std::int64_t rows(std::size_t begin, std::size_t end) const {
    std::int64_t all = 0;
    for (std::size_t i = begin; i < end; ++i) all += views[i].rows;
    return all;
  }
};

// A pass over the views of a rank. In a step with SAM the first pass gives only the perturbation of the weights, and
// the second one the gradients.
enum class Pass : std::uint8_t { whole, first, second };

// The place of a part in the step, in its pass and in its logical rank.
struct PartPlace {
  Pass pass = Pass::whole;
  bool begins_step = true, ends_step = true, begins_pass = true, ends_pass = true, ends_rank = false;

  PartPlace() = default;
  // view: of the pass over the views [begin, end).
  PartPlace(const StepParts& parts, Pass of, std::size_t view, std::size_t begin, std::size_t end)
      : pass(of),
        begins_step(view == 0 && of != Pass::second),
        ends_step(view + 1 == parts.views.size() && of != Pass::first),
        begins_pass(view == begin),
        ends_pass(view + 1 == end),
        ends_rank(of != Pass::first && parts.ends_rank(view)) {}
  [[nodiscard]] bool alone_in_pass() const { return begins_pass && ends_pass; }
  // Returns a number that differs for parts with other work before or after them.
  [[nodiscard]] std::uint64_t key() const {
    std::uint64_t k = static_cast<std::uint64_t>(pass);
    for (const bool b : {begins_step, ends_step, begins_pass, ends_pass}) k = 2 * k + (b ? 1 : 0);
    return k;
  }
};

}  // namespace tutti
