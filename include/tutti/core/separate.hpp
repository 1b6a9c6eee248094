// SPDX-License-Identifier: MIT
#pragma once

// Separate compilation. By default tutti is header-only, and every translation unit compiles all that it uses. With
// TUTTI_SEPARATE_COMPILATION defined, as the CMake target tutti::compiled does, what is large is only declared: it is
// compiled in the one translation unit that defines TUTTI_SOURCE_CORE (src/core.cpp), and for a backend in its own
// (src/<name>.cpp). Either way a program computes the same.
//
// TUTTI_CORE_FUNCTION stands where `inline` would before a function whose definition lies between
// `#if TUTTI_CORE_DEFINITIONS` and `#endif`: elsewhere not even its text is read.
//
// TUTTI_CORE_INSTANCE(template R f<float>(A)): an explicit instantiation of a template that belongs to src/core.cpp.
// Only functions that are defined outside a class profit: a compiler may look into inline ones wherever they are.
#if !defined(TUTTI_SEPARATE_COMPILATION)
#define TUTTI_CORE_INSTANCE(...) static_assert(true)
#define TUTTI_CORE_DEFINITIONS 1
#define TUTTI_CORE_FUNCTION inline
#elif defined(TUTTI_SOURCE_CORE)
#define TUTTI_CORE_INSTANCE(...) __VA_ARGS__
#define TUTTI_CORE_DEFINITIONS 1
#define TUTTI_CORE_FUNCTION
#else
#define TUTTI_CORE_INSTANCE(...) extern __VA_ARGS__
#define TUTTI_CORE_DEFINITIONS 0
#define TUTTI_CORE_FUNCTION
#endif
