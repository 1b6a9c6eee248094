// SPDX-License-Identifier: MIT
#pragma once

// Separate compilation. By default tutti is header-only, and every translation unit compiles everything that it uses.
// If TUTTI_SEPARATE_COMPILATION is defined, large functions are only declared, and there are two ways to compile them
// once. A program computes the same in all cases.
//   - The CMake target tutti::compiled compiles src/core.cpp, which defines TUTTI_SOURCE_CORE, and for each backend
//     src/<name>.cpp, which defines TUTTI_SOURCE_<NAME>.
//   - Without it, one file of the project defines TUTTI_IMPLEMENTATION and includes <tutti/tutti.hpp> and the headers
//     of the backends.
//
// TUTTI_CORE_FUNCTION replaces `inline` for a function whose definition lies between `#if TUTTI_CORE_DEFINITIONS` and
// `#endif`. Translation units without definitions do not even read this text. A virtual function has the macro also at
// the declaration in its class: otherwise it is a key function, and every translation unit of a header-only program
// emits the class's table of virtual functions and all functions that these call.
//
// TUTTI_CORE_INSTANCE(template R f<float>(A)): an explicit instantiation of a template that belongs to src/core.cpp.
// Only functions that are defined outside a class benefit: a compiler may inline other functions anywhere.
#if defined(TUTTI_IMPLEMENTATION) && !defined(TUTTI_SEPARATE_COMPILATION)
#define TUTTI_SEPARATE_COMPILATION
#endif
#if defined(TUTTI_IMPLEMENTATION) && !defined(TUTTI_SOURCE_CORE)
#define TUTTI_SOURCE_CORE
#endif

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
