// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tutti/core/error.hpp>

// The options of bench/allreduce.
namespace tutti::bench {

struct Args {
  std::size_t min = 4, max = std::size_t{256} << 20, factor = 4, iterations = 0;
  int ranks = 2;
  std::string mode = "all";   // the name of a Way, or "all"
  std::string comm = "auto";  // mpi, threads, gloo or nccl
  bool osu = false;
};

inline constexpr const char* usage =
    "usage: allreduce [--min BYTES] [--max BYTES] [--factor N] [--iterations N] [--mode mpi|shm|plain|tree|all] "
    "[--ranks N] "
    "[--osu] [--comm gloo|nccl]\n"
    "Under tutti-launch -n N or mpirun: MPI_Allreduce in place (mpi) and the shared window of tutti (shm); else "
    "--ranks threads.\n"
    "--mode plain: tutti without shared memory; tree: as if the ranks were on two hosts; each with mpi.\n"
    "--comm gloo, under tutti-launch -n N: shared memory (shm), Gloo without it (plain) and with two pretended hosts\n"
    "(tree), or only the one of --mode.\n"
    "--comm nccl: gradients in the GPUs' memory over NCCL, one rank for each GPU: one process alone, or N under\n"
    "tutti-launch -n N. Each sum is copied to the host and verified, outside of the measured time.\n"
    "--iterations 0 runs fewer iterations for larger sizes. --osu prints the columns of the OSU micro-benchmarks.\n";

inline Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::fputs(usage, stdout);
      std::exit(0);
    }
    if (name == "--osu") {
      a.osu = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    const auto number = [&](unsigned long long low) {
      char* end = nullptr;
      const unsigned long long n = std::strtoull(value, &end, 10);
      if (*value < '0' || *value > '9' || *end != '\0' || n < low || n > (1ULL << 40))
        fail<UsageError>(name, "a number from " + std::to_string(low), std::string("'") + value + "'");
      return static_cast<std::size_t>(n);
    };
    if (name == "--min")
      a.min = number(4);
    else if (name == "--max")
      a.max = number(4);
    else if (name == "--factor")
      a.factor = number(2);
    else if (name == "--iterations")
      a.iterations = number(0);
    else if (name == "--ranks")
      a.ranks = static_cast<int>(std::min<std::size_t>(number(1), 1000));
    else if (name == "--mode")
      a.mode = value;
    else if (name == "--comm")
      a.comm = value;
    else
      fail<UsageError>("allreduce", "an option of --help", "'" + name + "'");
  }
  const auto modes = {"all", "mpi", "shm", "plain", "tree", "threads"};
  if (std::find(modes.begin(), modes.end(), a.mode) == modes.end())
    fail<UsageError>("--mode", "mpi, shm, plain, tree, threads or all", "'" + a.mode + "'");
  if (a.comm != "auto" && a.comm != "gloo" && a.comm != "nccl")
    fail<UsageError>("--comm", "auto, gloo or nccl", "'" + a.comm + "'");
  if (a.comm == "gloo" && (a.mode == "mpi" || a.mode == "threads"))
    fail<UsageError>("--mode", "shm, plain, tree or all with --comm gloo", "'" + a.mode + "'");
  a.max = std::max(a.min, a.max);
  return a;
}

}  // namespace tutti::bench
