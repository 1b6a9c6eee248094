// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

class MistakeSum;  // train/mistakes.hpp

// A metric of the user: a sum over the rows of a batch, from which evaluate() computes the mean over all rows of all
// ranks. logits: [rows, classes]. A row with the label -1 is unreadable and does not count.
using BatchMetric = std::function<double(std::span<const float> logits, std::span<const std::int32_t> labels)>;

// Runs one pass over a data set with the current weights (or their EMA), over all ranks. The deadline of a reduction
// applies to each batch, not to the pass. mistakes: collects the results of this rank.
TUTTI_CORE_FUNCTION EvaluationReport evaluate(Trainer& trainer, BatchSource& source, const BatchMetric& metric = {},
                                              MistakeSum* mistakes = nullptr);

}  // namespace tutti
