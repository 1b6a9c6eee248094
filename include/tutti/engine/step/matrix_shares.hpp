// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/optim/update.hpp>
#include <tutti/optim/update_rules.hpp>

namespace tutti {

// The shares of a job's ranks in the orthogonalisation of Muon's matrices, each of which one rank computes for all.
// They depend only on the rules and on the number of ranks, so all ranks have the same.
class MatrixShares {
 public:
  // A matrix is shared out if that saves at least so many operations for each byte that a rank sends: about those of
  // two cores in the time in which 10 Gbit/s transfer a byte. For 5 steps these are matrices with 27 to 40 numbers or
  // more on the shorter side.
  static constexpr double least_operations_per_byte = 100;
  // Nothing is shared out if that saves fewer operations of a step: the start of an exchange takes as long.
  static constexpr double least_operations = 2e7;

  MatrixShares() = default;
  TUTTI_CORE_FUNCTION MatrixShares(const UpdateRules& rules, int ranks);

  // Returns the number of operations to orthogonalise a matrix.
  [[nodiscard]] TUTTI_CORE_FUNCTION static double operations(const MuonUpdate& o, std::size_t rows, std::size_t cols);

  // Returns the rank that orthogonalises the matrix of a run of the rules; -1: each rank for itself.
  [[nodiscard]] int owner(std::size_t run) const { return run < owners_.size() ? owners_[run] : -1; }
  // Returns the place of the result in the memory of all results, in elements.
  [[nodiscard]] std::size_t place(std::size_t run) const { return places_[run]; }
  // Returns the number of elements of this memory, the same for any number of ranks, and a multiple of 16.
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
  // Returns whether any matrix is shared out.
  [[nodiscard]] bool any() const noexcept { return any_; }

 private:
  std::vector<int> owners_;
  std::vector<std::size_t> places_;
  std::size_t elements_ = 0;
  bool any_ = false;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION double MatrixShares::operations(const MuonUpdate& o, std::size_t rows, std::size_t cols) {
  const auto r = static_cast<double>(std::min(rows, cols)), c = static_cast<double>(std::max(rows, cols));
  return o.steps * (4 * r * r * c + 2 * r * r * r);
}

TUTTI_CORE_FUNCTION MatrixShares::MatrixShares(const UpdateRules& rules, int ranks) {
  owners_.assign(rules.runs.size(), -1);
  places_.resize(rules.runs.size());
  const auto* const muon = std::get_if<MuonUpdate>(&rules.op);
  if (muon == nullptr) return;
  const auto cost = [&](std::size_t i) { return operations(*muon, rules.runs[i].rows, rules.runs[i].cols); };
  std::vector<std::size_t> shared;
  double all = 0;
  for (std::size_t i = 0; i < rules.runs.size(); ++i) {
    const std::size_t count = rules.runs[i].rows * rules.runs[i].cols;
    // A sum over ranks sends each of the 4 bytes of a number twice, less the share of a rank.
    if (count == 0 || cost(i) < least_operations_per_byte * 8 * static_cast<double>(count)) continue;
    places_[i] = elements_;
    elements_ += (count + 15) / 16 * 16;
    all += cost(i);
    shared.push_back(i);
  }
  // The largest matrix first, each to the rank with the least work.
  std::stable_sort(shared.begin(), shared.end(), [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  std::vector<double> load(static_cast<std::size_t>(std::max(ranks, 1)));
  std::vector<int> owners(owners_);
  for (const std::size_t i : shared) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += cost(i);
    owners[i] = static_cast<int>(least - load.begin());
  }
  const double most = *std::max_element(load.begin(), load.end());
  any_ = ranks > 1 && all - most >= least_operations;
  if (any_) owners_ = std::move(owners);
}
#endif

}  // namespace tutti
