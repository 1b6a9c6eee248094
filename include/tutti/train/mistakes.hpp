// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/separate.hpp>

namespace tutti {

class AnyStrategy;  // strategy/any_strategy.hpp

// An image that the net classified wrongly.
struct WrongImage {
  std::int64_t index = 0;            // position in the data set
  std::int32_t label = 0, said = 0;  // its true class, and the class with the highest probability
  double loss = 0;                   // cross entropy, without label smoothing
  double sure = 0;                   // the net's probability of `said`, 0..1
};

// Results of an evaluation in addition to its rates, over the whole job.
struct Mistakes {
  std::int64_t epoch = 0, step = 0;  // of the evaluated weights; epochs from 1
  bool averaged = false;             // the averaged weights were evaluated
  std::int64_t classes = 0, images = 0;
  // Number of images by label and by predicted class, [classes, classes]. Empty if there are more classes than
  // most_classes.
  std::vector<double> confusion;
  std::vector<WrongImage> worst;  // the images with the greatest loss, in descending order
};

// Collects Mistakes from the logits of batches.
class MistakeSum {
 public:
  static constexpr std::int64_t most_classes = 1024;
  static constexpr std::size_t most_worst = 24;

  TUTTI_CORE_FUNCTION explicit MistakeSum(std::int64_t classes);

  // logits: [rows, classes]; labels, indices: [rows]. Rows with a label that is no class, or with logits that are not
  // finite, do not count.
  TUTTI_CORE_FUNCTION void add(std::span<const float> logits, std::span<const std::int32_t> labels,
                               std::span<const std::int64_t> indices);
  // Returns the result over all ranks, all of which must call it. If servers own the weights, returns that of this
  // rank. Starts again.
  TUTTI_CORE_FUNCTION Mistakes take(AnyStrategy& strategy);

 private:
  void keep(const WrongImage& w);

  std::int64_t classes_;
  std::int64_t images_ = 0;
  std::vector<double> confusion_;
  std::vector<WrongImage> worst_;  // in descending order of their losses
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/evaluation/mistakes_definitions.hpp>
#endif
