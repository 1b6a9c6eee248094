// SPDX-License-Identifier: MIT
// Compiles the table of backends and strategies once per program. See <tutti/backends/make.hpp>.
#define TUTTI_SOURCE_MAKE
#include <tutti/backends/make.hpp>
