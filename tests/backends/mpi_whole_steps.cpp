// SPDX-License-Identifier: MIT
// mpi_whole_steps PIECE FOLDER: the last rank breaks a training step at one piece (broken_step.hpp), and every rank
// checks the state after it. No process calls the end of MPI. All of them report before one ends, because mpirun then
// ends the others. The ranks signal each other by files in FOLDER, which is empty at the start.
#include <tutti/backends/mpi/mpi.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/cpu.hpp>

#include "strategy/broken_step.hpp"

using namespace tutti;
using namespace std::chrono_literals;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const int piece = std::atoi(argv[1]);
    // Ranks of another host notice the broken step only by the deadline.
    MpiCommunicator c({.deadline = 3s, .ranks_per_host = 2});
    CpuBackend backend({1});
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
    const std::filesystem::path folder = argv[2];
    std::ofstream(folder / std::to_string(c.rank())).put('.');
    const auto all = [&] {
      int there = 0;
      for (int r = 0; r < c.size(); ++r) there += std::filesystem::exists(folder / std::to_string(r)) ? 1 : 0;
      return there == c.size();
    };
    for (int i = 0; i < 300 && !all(); ++i) std::this_thread::sleep_for(100ms);
    std::this_thread::sleep_for(300ms);  // gives mpirun time to read the output
    return 75;
  } catch (const Error& e) {
    std::fprintf(stderr, "mpi_whole_steps: %s\n", e.what());
    return e.exit_code();
  }
}
