// SPDX-License-Identifier: MIT
// Compiles the kernels of this backend once per program. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_EIGEN
#include <tutti/backends/eigen/eigen.hpp>
