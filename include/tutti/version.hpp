// SPDX-License-Identifier: MIT
#pragma once

// The one place where the version is written; CMake and pkg-config read it from here.
#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

namespace tutti {

inline constexpr const char* version = "0.1.0";

}  // namespace tutti
