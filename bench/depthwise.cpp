// SPDX-License-Identifier: MIT
// Measures depthwise convolutions as in MobileNetV2 and ConvNeXt-T, forward and both gradients. Prints the GB/s that
// they read and write, also in percent of the memory bandwidth of this machine (the addition of two large arrays). A
// value above 100 % means that data was still in a cache.
#include <string>
#include <vector>

#include "common/net.hpp"
#include "common/program.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

namespace {

struct Case {
  const char* net;
  std::int64_t channels, size;
  int kernel, stride;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, bench::Limit::memory, [](const bench::Options& options) {
    const std::vector<Case> cases{
        {"mobilenet_v2", 32, 112, 3, 1}, {"mobilenet_v2", 96, 112, 3, 2},  {"mobilenet_v2", 144, 56, 3, 1},
        {"mobilenet_v2", 192, 28, 3, 1}, {"mobilenet_v2", 384, 14, 3, 1},  {"mobilenet_v2", 960, 7, 3, 1},
        {"convnext_tiny", 96, 56, 7, 1}, {"convnext_tiny", 192, 28, 7, 1}, {"convnext_tiny", 384, 14, 7, 1}};
    for (const Case& c : cases) {
      testing::ConvCase conv = testing::square_conv("", 1, c.channels, c.size, c.channels, c.kernel, c.stride);
      conv.groups = static_cast<int>(c.channels);
      constexpr std::int64_t batch = 32;
      const testing::OpCase net = testing::op_case(conv);
      bench::OpBenchmark o;
      const std::string size = std::to_string(c.size);
      o.name = std::string("depthwise/") + c.net + "/" + size + "x" + size + "x" + std::to_string(c.channels) + "/k" +
               std::to_string(c.kernel) + "s" + std::to_string(c.stride) + "/b" + std::to_string(batch);
      o.model = [net] { return net.graph(); };
      o.rows = batch;
      // Each pass reads or writes the input and the output once. Here: half their elements.
      const double values =
          0.5 * static_cast<double>(batch * c.channels) *
          static_cast<double>(c.size * c.size + conv.window.out_h(c.size) * conv.window.out_w(c.size));
      o.passes = {
          {"forward", [](const Graph& g) { return bench::find_node<op::Conv2d>(g, "conv"); }, 0, {{1, 1}}, values},
          {"backward_data",
           [](const Graph& g) { return bench::find_node<op::Conv2dBackwardData>(g, "conv"); },
           0,
           {{1, 1}},
           values},
          {"backward_weights",
           [](const Graph& g) { return bench::find_node<op::Conv2dBackwardWeights>(g, "conv"); },
           0,
           {{2, 0}},
           values}};
      bench::add_op(o, options);
    }
  });
}
