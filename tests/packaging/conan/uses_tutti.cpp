// SPDX-License-Identifier: MIT
// Records a net and prints it. Built with the package of the recipe.
#include <cstdio>

#include <tutti/graph/summary.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/version.hpp>

int main() {
  tutti::Builder net(3, 8, 8);
  const tutti::ValueId x = tutti::nn::conv(net, "conv", net.normalize({128, 128, 128}, {1, 1, 1}), {.out = 4});
  net.softmax_cross_entropy(tutti::nn::linear(net, "fc", net.global_avg_pool("pool", x), 2, {}));
  std::printf("tutti %s\n%s", tutti::version, summary(net.graph()).c_str());
}
