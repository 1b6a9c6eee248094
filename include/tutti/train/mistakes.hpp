// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/separate.hpp>

namespace tutti {

class AnyStrategy;  // strategy/any_strategy.hpp

// An image that was taken for one of another class.
struct WrongImage {
  std::int64_t index = 0;            // in the data set
  std::int32_t label = 0, said = 0;  // the class it is of, and the likeliest by the net
  double loss = 0;                   // cross entropy, without label smoothing
  double sure = 0;                   // the net's probability of `said`, 0..1
};

// What an evaluation tells beside its rates. Whole job.
struct Mistakes {
  std::int64_t epoch = 0, step = 0;  // of the weights; epochs from 1
  bool averaged = false;             // with the averaged weights
  std::int64_t classes = 0, images = 0;
  // Images by label and by the likeliest class, [classes, classes]; empty where there are more than most_classes.
  std::vector<double> confusion;
  std::vector<WrongImage> worst;  // those of the greatest loss, this first
};

// Gathers them from the logits of batches.
class MistakeSum {
 public:
  static constexpr std::int64_t most_classes = 1024;
  static constexpr std::size_t most_worst = 24;

  TUTTI_CORE_FUNCTION explicit MistakeSum(std::int64_t classes);

  // logits: [rows, classes]; labels, indices: [rows]. Rows whose label is no class, or whose logits are not finite, do
  // not count.
  TUTTI_CORE_FUNCTION void add(std::span<const float> logits, std::span<const std::int32_t> labels,
                               std::span<const std::int64_t> indices);
  // Of all ranks, which all call it; of this one where somebody owns the weights. Begins anew.
  TUTTI_CORE_FUNCTION Mistakes take(AnyStrategy& strategy);

 private:
  void keep(const WrongImage& w);

  std::int64_t classes_;
  std::int64_t images_ = 0;
  std::vector<double> confusion_;
  std::vector<WrongImage> worst_;  // in the order of their losses, greatest first
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/mistakes_definitions.hpp>
#endif
