// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/trainer/options.hpp"

// The batch of a job by what --batch-size counts, and the GPUs of its processes.
namespace tutti::trainer::detail {

// The GPUs of --gpus: numbers with commas between.
std::vector<int> gpu_numbers(const std::string& text);

// --gpus with an empty list: the processor, whatever there is.
inline bool wants_no_gpu(const RunOptions& o) { return o.gpus && o.gpus->empty(); }

// Turns the batch of a worker or of the whole job into that of all ranks together.
void check_batch_of(RunOptions& o, std::int64_t world);

void check_batch(RunOptions& o, std::int64_t world);

}  // namespace tutti::trainer::detail
