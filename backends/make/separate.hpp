// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/separate.hpp>

// Backends and strategies by name. With separate compilation only the file that defines TUTTI_SOURCE_MAKE or
// TUTTI_IMPLEMENTATION compiles them.
#if !defined(TUTTI_SEPARATE_COMPILATION) || defined(TUTTI_SOURCE_MAKE) || defined(TUTTI_IMPLEMENTATION)
#define TUTTI_MAKE_DEFINITIONS 1
#else
#define TUTTI_MAKE_DEFINITIONS 0
#endif
