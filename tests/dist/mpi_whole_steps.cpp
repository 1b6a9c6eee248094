// SPDX-License-Identifier: MIT
// A training step that the last rank breaks at one piece: mpi_whole_steps PIECE (broken_step.hpp). Every rank looks at
// what is left of it; the processes end without the end of MPI.
#include <tutti/backends/mpi/mpi.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/cpu.hpp>

#include "broken_step.hpp"

using namespace tutti;
using namespace std::chrono_literals;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const int piece = std::atoi(argv[1]);
    // Ranks of another host notice by the clock alone.
    MpiCommunicator c({.deadline = 1s, .ranks_per_host = 2});
    Cpu backend({1});
    testing::Breaking whole(c, 0, 0), breaking(c, 4, piece);
    const std::string before = testing::break_a_step(backend, whole, 1, false);
    const int pieces = whole.pieces();
    testing::Breaking other(c, 0, 0);
    const std::string said = !before.empty()            ? before
                             : c.rank() == c.size() - 1 ? testing::break_a_step(backend, breaking, 1, piece < pieces)
                                                        : testing::break_a_step(backend, other, 1, piece < pieces);
    std::printf("rank %d: %s\n", c.rank(), said.empty() ? "whole" : said.c_str());
    if (c.rank() == 0) std::printf("%d pieces\n", pieces);
    std::fflush(stdout);
    c.interrupt();
    std::this_thread::sleep_for(2500ms);  // the first process to end ends the others
    return 75;
  } catch (const Error& e) {
    std::fprintf(stderr, "mpi_whole_steps: %s\n", e.what());
    return e.exit_code();
  }
}
