// SPDX-License-Identifier: MIT
#pragma once

// Separate compilation. By default tutti is header-only, and every translation unit compiles everything that it uses.
// If TUTTI_SEPARATE_COMPILATION is defined, as the CMake target tutti::compiled does, large functions are only
// declared. They are compiled in the one translation unit that defines TUTTI_SOURCE_CORE (src/core.cpp), and for a
// backend in its own (src/<name>.cpp). A program computes the same in both cases.
//
// TUTTI_CORE_FUNCTION replaces `inline` for a function whose definition lies between `#if TUTTI_CORE_DEFINITIONS` and
// `#endif`. Other translation units do not even read its text.
//
// TUTTI_CORE_INSTANCE(template R f<float>(A)): an explicit instantiation of a template that belongs to src/core.cpp.
// Only functions that are defined outside a class benefit: a compiler may inline the others anywhere.
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
