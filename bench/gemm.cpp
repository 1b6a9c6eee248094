// SPDX-License-Identifier: MIT
// Measures matrix products as the backends compute them in a fully connected layer: those in the ResNets, and square
// ones. Prints GFLOP/s, also in percent of the multiply-add peak.
#include <string>

#include "common/net.hpp"
#include "common/program.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

namespace {

struct Layer {
  const char* name;
  std::int64_t rows, in;
  int out;
};

constexpr Layer layers[] = {
    {"resnet20", 128, 64, 10}, {"resnet18", 64, 512, 10}, {"resnet50", 32, 2048, 1000}, {"square", 64, 64, 64},
    {"square", 256, 256, 256}, {"square", 512, 512, 512}, {"square", 1024, 1024, 1024},
};

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::multiply_adds, [](const bench::Options& options) {
    for (const Layer& l : layers) {
      bench::OpBenchmark o;
      o.name = std::string("gemm/") + l.name + "/" + std::to_string(l.rows) + "x" + std::to_string(l.in) + "->" +
               std::to_string(l.out);
      const testing::OpCase net = testing::linear_case(o.name, l.rows, l.in, l.out);
      o.model = [net] { return net.graph(); };
      o.rows = l.rows;
      const double flops = 2.0 * static_cast<double>(l.rows * l.in) * l.out;
      o.passes = {
          {"forward", [](const Graph& g) { return bench::find_node<op::Linear>(g, "fc"); }, flops},
          {"backward_data", [](const Graph& g) { return bench::find_node<op::LinearBackwardData>(g, "fc"); }, flops},
          {"backward_weights", [](const Graph& g) { return bench::find_node<op::LinearBackwardWeights>(g, "fc"); },
           flops}};
      bench::add_op(o, options);
    }
  });
}
