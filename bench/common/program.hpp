// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/graph/graph.hpp>

#include "machine.hpp"

// The common part of the benchmark programs.
namespace tutti::bench {

struct Options {
  int threads = 0;                   // --threads N; 0: one for each core
  std::string convolution = "auto";  // --convolution WORD, as in BackendOptions
};

// The limit to which a program compares its rates. It is measured at the start and printed in the context.
enum class Limit { none, multiply_adds, memory };

// The main function. Reads --threads N, --convolution WORD and the flags of Google Benchmark. Prints backends,
// instruction set, threads and the limit of the machine as context. Calls `add` to register benchmarks, and runs those
// that the filter selects. Returns an exit code: 2 for an unknown flag or a filter without a match, 1 after an error in
// a benchmark.
int run(int argc, char** argv, Limit limit, const std::function<void(const Options&)>& add);

// Reports an error of a benchmark. The exit code of the program becomes 1.
void report_failure(const std::string& name, const char* what);

// One pass of an op: its node in the net, and the work of all rows.
struct Pass {
  std::string_view direction;  // "forward", "backward" and so on
  std::function<NodeId(const Graph&)> node;
  double flops = 0;  // for the counters GFLOP/s and %peak
  // For the counters GB/s and %bandwidth: what each loop over the activations reads and writes, and their elements. The
  // limit of a loop is that of memory_bandwidth() for the same traffic.
  std::vector<Traffic> loops;
  double elements = 0;
};

// An op in a net, with its passes. One step of the net times all passes.
struct OpBenchmark {
  std::string name;
  std::function<Graph()> model;
  std::int64_t rows = 1;
  std::vector<Pass> passes;
};

// Registers <name>/<precision>/<backend>/<direction> for each precision, backend and pass; for the reference backend
// only if all passes are small. The time is the op's share of the step, see Net::seconds. The counter "steps" is the
// number of steps over which the time is averaged. If there is a GPU, the cuda backend has rows too, with GPU time.
void add_op(const OpBenchmark& op, const Options& options);

}  // namespace tutti::bench
