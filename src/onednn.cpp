// SPDX-License-Identifier: MIT
// Compiles the kernels of this backend once per program. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_ONEDNN
#include <tutti/backends/onednn/onednn.hpp>
