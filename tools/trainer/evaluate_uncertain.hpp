// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include <tutti/train/evaluate_views.hpp>

// Evaluates several views of the images of which a net is least certain, as Hiverge 2025 for CIFAR-10.
namespace tutti::trainer {

// Like evaluate_views(), but only for this share of each rank's images: those with the smallest largest probability.
// The logits of the other images are those of the image itself. Reads the images twice.
[[nodiscard]] EvaluationReport evaluate_uncertain(Trainer& trainer, BatchSource& source,
                                                  const std::vector<TestView>& views, double share);

}  // namespace tutti::trainer
