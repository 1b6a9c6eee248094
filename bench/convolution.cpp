// SPDX-License-Identifier: MIT
// Measures each convolution in the ResNets, forward and both gradients. Prints GFLOP/s, also in percent of the
// multiply-add peak of this machine. As is usual, taps in the padding count.
#include <string>

#include "common/net.hpp"
#include "common/program.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::multiply_adds, [](const bench::Options& options) {
    for (const testing::ConvCase& c : testing::resnet_conv_cases()) {
      const auto add = [&](const testing::ConvCase& conv, std::int64_t batch) {
        // The images need no gradient.
        const bool stem = conv.channels == 3;
        testing::OpCase net = testing::op_case(conv);
        net.input_gradient = !stem;
        bench::OpBenchmark o;
        o.name = "convolution/" + conv.name + "/b" + std::to_string(batch);
        o.model = [net] { return net.graph(); };
        o.rows = batch;
        const double flops = conv.flops(batch);
        o.passes.push_back({"forward", [](const Graph& g) { return bench::find_node<op::Conv2d>(g, "conv"); }, flops});
        if (!stem)
          o.passes.push_back({"backward_data",
                              [](const Graph& g) { return bench::find_node<op::Conv2dBackwardData>(g, "conv"); },
                              flops});
        o.passes.push_back({"backward_weights",
                            [](const Graph& g) { return bench::find_node<op::Conv2dBackwardWeights>(g, "conv"); },
                            flops});
        bench::add_op(o, options);
      };
      add(c, c.batch);
      // These are small enough for the reference loops.
      if (c.batch > 2 && c.flops(2) <= 5e7) add(c, 2);
    }
  });
}
