// SPDX-License-Identifier: MIT
// Measures each kind of fused batch norm (+ add) (+ ReLU) in the ResNets, forward and backward. Prints the GB/s that
// its passes read and write, also in percent of the memory bandwidth of this machine (the addition of two large
// arrays). A value above 100 % means that data was still in a cache.
#include <string>

#include "common/net.hpp"
#include "common/program.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::memory, [](const bench::Options& options) {
    for (const testing::ResnetCase& resnet : testing::resnet_cases())
      for (const testing::NormCase& c : testing::batch_norms_of(resnet)) {
        const testing::OpCase net = testing::op_case(c);
        const auto one = static_cast<double>(c.rows * c.channels * c.height * c.width);
        bench::OpBenchmark o;
        o.name = "batch_norm/" + c.name + "/b" + std::to_string(c.rows);
        o.model = [net] { return net.graph(); };
        o.rows = c.rows;
        // Forward: the statistics read x. Then the op reads x and the added tensor, and writes y. Backward: the sums
        // read dy and x. Then the op reads dy and x, and writes dx. With an added tensor, the first pass also writes
        // the masked gradient, and the second pass reads it and reads the mask from y.
        const double forward = one * (1 + 2 + (c.residual ? 1 : 0));
        const double backward = one * (2 + 3 + (c.residual ? 1 : 0) + (c.residual && c.relu ? 1 : 0));
        o.passes = {
            {"forward", [](const Graph& g) { return bench::find_node<op::BatchNorm>(g, "bn"); }, 0, forward},
            {"backward", [](const Graph& g) { return bench::find_node<op::BatchNormBackward>(g, "bn"); }, 0, backward}};
        bench::add_op(o, options);
      }
  });
}
