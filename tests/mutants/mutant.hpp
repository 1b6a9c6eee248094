// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

// What run.py writes into a header asks here which mutant is on: one program holds all of them, and each run of it
// turns one on.
//   TUTTI_MUTANT=N                     this one; without it none
//   TUTTI_MUTANTS_REACHED=FILE         writes the numbers of those that were asked for, one a line
//   -D TUTTI_MUTANT_OF_CONSTANTS=N     this one where the compiler computes
#ifndef TUTTI_MUTANT_OF_CONSTANTS
#define TUTTI_MUTANT_OF_CONSTANTS 0
#endif

namespace tutti_mutants {

inline int chosen = 0;
inline std::array<unsigned char, 1 << 14> reached{};

[[nodiscard]] constexpr bool on(int number) noexcept {
  if (std::is_constant_evaluated()) return number == TUTTI_MUTANT_OF_CONSTANTS;
  reached[static_cast<unsigned>(number)] = 1;
  return number == chosen || number == TUTTI_MUTANT_OF_CONSTANTS;
}

inline void write_reached() {
  const char* const path = std::getenv("TUTTI_MUTANTS_REACHED");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  for (unsigned i = 0; i < reached.size(); ++i)
    if (reached[i] != 0) std::fprintf(file, "%u\n", i);
  std::fclose(file);
}

// Before everything else of the program is made.
[[gnu::constructor(101)]] inline void choose() {
  if (const char* const number = std::getenv("TUTTI_MUTANT")) chosen = std::atoi(number);
  if (std::getenv("TUTTI_MUTANTS_REACHED") != nullptr) std::atexit(write_reached);
}

}  // namespace tutti_mutants
