// SPDX-License-Identifier: MIT
// ctest:
// Defines a layer out of existing ops, and a new op with its own kernel and gradient.
#include <cmath>
#include <cstdio>
#include <memory>

#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

// [layer]
// A layer is a function. This one is a 1x1 bottleneck around a 3x3 convolution, added to its input.
ValueId bottleneck(Builder& b, const std::string& name, ValueId x) {
  const std::int64_t channels = b.shape(x)[1];
  ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, {.out = channels / 2, .kernel = 1}, {.relu = true});
  y = nn::conv_bn(b, name + ".conv2", name + ".bn2", y, {.out = channels / 2}, {.relu = true});
  return nn::conv_bn(b, name + ".conv3", name + ".bn3", y, {.out = channels, .kernel = 1},
                     {.relu = true, .residual = x});
}
// [/layer]

// [parameters]
// A layer with a parameter of its own, a bias for each channel without weight decay; then GELU.
ValueId shifted_gelu(Builder& b, const std::string& name, ValueId x) {
  const ValueId shift = b.parameter(name + ".bias", Shape{b.shape(x)[1]}, {Init::zeros}, /*decay=*/false);
  return b.gelu(name, b.bias(name, x, shift));
}
// [/parameters]

// [op]
// swish(x) = x * sigmoid(x), as an op. The kernels get whole tensors; "host" works with every backend on the CPU.
std::shared_ptr<const CustomOp> swish() {
  auto op = std::make_shared<CustomOp>();
  op->name = "swish";
  op->shape = [](const CustomOp::Shapes& in) { return CustomOp::Shapes{in.at(0)}; };
  op->forward["host"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    const auto x = in[0].view<float>(), y = out[0].view<float>();
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (1 + std::exp(-x[i]));
  };
  op->backward["host"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    const auto dy = in[0].view<float>(), x = in[1].view<float>(), dx = out[0].view<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float s = 1 / (1 + std::exp(-x[i]));
      dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
    }
  };
  return op;
}
// [/op]

int main() try {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv(b, "stem", x, {.out = 8});
  x = b.custom("swish", swish(), {x}).front();
  x = bottleneck(b, "block", x);
  x = shifted_gelu(b, "shift", x);
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::xavier_normal, 1}));

  Synthetic images({.size = 256, .height = 8, .width = 8, .classes = 4, .learnable = true});
  Loader loader(images, {.placement = {.global_batch = 32}, .seed = 1});
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, b.graph(), {});
  for (int step = 0; step < 16; ++step) {
    const Batch& batch = loader.next();
    const auto r = trainer.step(batch, 0.1).wait();
    if (step % 4 == 3) std::printf("step %d: loss %.3f\n", step + 1, r.metrics.mean_loss());
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
