// SPDX-License-Identifier: MIT
// The one file of a project that compiles tutti, if the project does not link tutti::compiled.
// [implementation]
#define TUTTI_IMPLEMENTATION
#include <tutti/tutti.hpp>
#if defined(TUTTI_HAS_ONEDNN)
#include <tutti/backends/onednn/onednn.hpp>
#elif defined(TUTTI_HAS_EIGEN)
#include <tutti/backends/eigen/eigen.hpp>
#endif
// [/implementation]
