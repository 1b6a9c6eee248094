// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/trainer/options.hpp"

// Computes the batch of a job from --batch-size, --batch-of and the GPUs of the processes.
namespace tutti::trainer::detail {

// Returns the GPUs of --gpus, which are numbers separated by commas.
std::vector<int> gpu_numbers(const std::string& text);

// Returns whether --gpus has an empty list: the run uses the processor even if there are GPUs.
inline bool wants_no_gpu(const RunOptions& o) { return o.gpus && o.gpus->empty(); }

// Converts the batch of a rank, of a worker or of the whole job to the batch of all ranks together.
void check_batch_of(RunOptions& o, std::int64_t world);

void check_batch(RunOptions& o, std::int64_t world);

// Returns a note if an epoch has so few updates that a net learns little, with a batch that makes them more; otherwise
// an empty text. o: checked. images: number of training images.
[[nodiscard]] std::string few_updates(const RunOptions& o, std::int64_t images);

}  // namespace tutti::trainer::detail
