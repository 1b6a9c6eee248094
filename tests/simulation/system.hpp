// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>

// Returns the C library's function of this name, for the code that replaces it (interposed_threads.hpp,
// interposed_files.hpp). The look-up happens once for each place.
#define TUTTI_SYSTEM(function)                                                                        \
  ([] {                                                                                               \
    static const auto found = reinterpret_cast<decltype(&::function)>(::dlsym(RTLD_NEXT, #function)); \
    return found;                                                                                     \
  }())
