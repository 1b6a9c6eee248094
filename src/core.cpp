// SPDX-License-Identifier: MIT
// Compiles, once per program: passes over graphs, the models, tutti's own kernels, the executor, the trainer and the
// training loop. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_CORE
#include <tutti/tutti.hpp>
