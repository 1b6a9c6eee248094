// SPDX-License-Identifier: MIT
// What separate compilation compiles once a program: the table of its backends and strategies. See
// <tutti/backends/make.hpp>.
#define TUTTI_SOURCE_MAKE
#include <tutti/backends/make.hpp>
