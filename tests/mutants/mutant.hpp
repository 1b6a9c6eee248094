// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

// Code that run.py writes into a header calls on() to find out which mutant is on. One program contains all mutants,
// and each run turns one of them on.
//   TUTTI_MUTANT=N                     turns mutant N on; default: no mutant
//   TUTTI_MUTANTS_REACHED=FILE         writes the numbers of the mutants that were reached, one per line
//   -D TUTTI_MUTANT_OF_CONSTANTS=N     turns mutant N on in expressions that the compiler computes
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

// Runs before all other initialisation of the program.
[[gnu::constructor(101)]] inline void choose() {
  if (const char* const number = std::getenv("TUTTI_MUTANT")) chosen = std::atoi(number);
  if (std::getenv("TUTTI_MUTANTS_REACHED") != nullptr) std::atexit(write_reached);
}

}  // namespace tutti_mutants
