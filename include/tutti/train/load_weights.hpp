// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/interchange/load_weights_options.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

struct LoadedWeights {  // the result of load_weights()
  std::size_t loaded = 0;
  std::vector<std::string> skipped;  // tensors that kept their values
};

// Loads the parameters and running statistics of a safetensors file (torchvision's names) into a trainer, and into the
// average of its weights if it has one. path: the file; a checkpoint's folder; or a run's folder, of which the best
// checkpoint is used, or the newest one if there is no best. Converts f32, f64 and bf16. The optimizer's state and the
// counters stay unchanged, except for the number of batches that batch norms have seen (num_batches_tracked, which may
// be missing). The file must have each tensor with its shape, except those that may be missing, and no other tensor.
// Otherwise a DataError names all differences, and no tensor changes. Either each rank reads the file, or one of them
// before Trainer::synchronise().
TUTTI_CORE_FUNCTION LoadedWeights load_weights(Trainer& trainer, const std::string& path,
                                               const LoadWeightsOptions& o = {});

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/trainer/load_weights_definitions.hpp>
#endif
