// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/graph/graph.hpp>

// What the benchmark programs share.
namespace tutti::bench {

struct Options {
  int threads = 0;                   // of --threads N; one per core without it
  std::string convolution = "auto";  // of --convolution WORD, as BackendOptions has it
};

// What a program's rates are compared with: measured at its start and part of the context.
enum class Limit { none, multiply_adds, memory };

// The main function: reads --threads N, --convolution WORD and the flags of Google Benchmark, prints backends,
// instruction set, threads and the machine's limit as context, calls `add` to register benchmarks and runs those that
// the filter names. Returns an exit code: 2 for flags that nobody knows and a filter that matches nothing, 1 after an
// error in a benchmark.
int run(int argc, char** argv, Limit limit, const std::function<void(const Options&)>& add);

// A benchmark's error: reported, and the program's exit code is 1.
void report_failure(const std::string& name, const char* what);

// One pass of an op: its node in the net, and what it does with all rows.
struct Pass {
  std::string_view direction;  // "forward", ...
  std::function<NodeId(const Graph&)> node;
  double flops = 0;     // counters GFLOP/s and %peak
  double elements = 0;  // of activations, read or written: counters GB/s and %bandwidth
};

// An op in a net, with its passes: one step of the net times them all.
struct OpBenchmark {
  std::string name;
  std::function<Graph()> model;
  std::int64_t rows = 1;
  std::vector<Pass> passes;
};

// Registers <name>/<precision>/<backend>/<direction> for each precision, backend and pass; for the reference backend
// only where all passes are small. The time is the op's share of the step, see Net::seconds; counter steps: how many
// steps it is the mean of. Rows of the cuda backend are there where there is a GPU; their time is the GPU's.
void add_op(const OpBenchmark& op, const Options& options);

}  // namespace tutti::bench
