// SPDX-License-Identifier: MIT
// Measures each kind of fused batch norm (+ add) (+ ReLU) in the ResNets, forward and backward, and those of ResNet-50
// with 128 channels and more once again on batches of 128 MB or more ("large/..."). Prints the GB/s that its passes
// read and write, and its time in percent of that of loops on all threads that read and write as many arrays. A value
// above 100 % means that data was still in a cache.
#include <cstdint>
#include <string>
#include <vector>

#include "common/net.hpp"
#include "common/program.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

namespace {

void add(const testing::NormCase& c, const bench::Options& options) {
  const testing::OpCase net = testing::op_case(c);
  const int add = c.residual ? 1 : 0, masked = c.residual && c.relu ? 1 : 0;
  bench::OpBenchmark o;
  o.name = "batch_norm/" + c.name + "/b" + std::to_string(c.rows);
  o.model = [net] { return net.graph(); };
  o.rows = c.rows;
  // Forward: the statistics read x. Then the op reads x and the added tensor, and writes y. Backward: the sums read dy
  // and x. Then the op reads dy and x, and writes dx. With an added tensor, the first pass also writes the masked
  // gradient, for which it reads the mask from y, and the second pass reads it.
  const auto one = static_cast<double>(c.rows * c.channels * c.height * c.width);
  o.passes = {{"forward",
               [](const Graph& g) { return bench::find_node<op::BatchNorm>(g, "bn"); },
               0,
               {{1, 0}, {1 + add, 1}},
               one},
              {"backward",
               [](const Graph& g) { return bench::find_node<op::BatchNormBackward>(g, "bn"); },
               0,
               {{2 + masked, add}, {2, 1}},
               one}};
  bench::add_op(o, options);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::memory, [](const bench::Options& options) {
    std::vector<testing::NormCase> large;
    for (const testing::ResnetCase& resnet : testing::resnet_cases())
      for (const testing::NormCase& c : testing::batch_norms_of(resnet)) {
        add(c, options);
        if (resnet.name != "resnet50" || c.channels < 128) continue;
        constexpr std::int64_t bytes = 128 << 20;
        const std::int64_t image = c.channels * c.height * c.width * 2;  // of bf16
        large.push_back(c);
        large.back().name = "large/" + c.name;
        large.back().rows = (bytes + image - 1) / image;
      }
    for (const testing::NormCase& c : large) add(c, options);
  });
}
