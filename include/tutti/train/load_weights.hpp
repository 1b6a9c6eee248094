// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/interchange/load_weights_options.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

struct LoadedWeights {  // what it has found
  std::size_t loaded = 0;
  std::vector<std::string> skipped;  // tensors that kept what they held
};

// Puts the parameters and running statistics of a safetensors file (torchvision's names) into a trainer, and into the
// average of its weights where it keeps one. path: the file; a checkpoint's folder; or a run's folder, of which the
// best checkpoint is taken, else the newest. f32, f64 and bf16 are converted. The optimizer's state and the counters
// stay as they are, but for the number of batches that batch norms have seen (num_batches_tracked, which may be
// absent). Every tensor must be there with its shape, but those that may be missing, and no other: else a DataError
// names all that differ, and nothing is changed. Each rank may read the file, or one of them before
// Trainer::synchronise().
TUTTI_CORE_FUNCTION LoadedWeights load_weights(Trainer& trainer, const std::string& path,
                                               const LoadWeightsOptions& o = {});

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/load_weights_definitions.hpp>
#endif
