// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/nn/activations.hpp>
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::testing {

// Returns a custom op y = x^2 for any activation on the host.
inline std::shared_ptr<const CustomOp> square_op() {
  auto c = std::make_shared<CustomOp>();
  c->name = "square";
  c->shape = [](const CustomOp::Shapes& in) {
    if (in.size() != 1) fail<ShapeError>("square", "one input", std::to_string(in.size()));
    return CustomOp::Shapes{in[0]};
  };
  c->forward["host"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    with_float_type(in[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto x = in[0].view<T>(), y = out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<T>(x[i] * x[i]);
    });
  };
  // Inputs: dy, x, y. Output: dx.
  c->backward["host"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    with_float_type(in[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto dy = in[0].view<T>(), x = in[1].view<T>(), dx = out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i) dx[i] = static_cast<T>(static_cast<T>(2.0F) * x[i] * dy[i]);
    });
  };
  return c;
}

// Returns a random net on small images: convolutions, batch norms with and without relu and residual, sums, pools,
// biases, activations, factors of channels, concatenations, dropouts and custom ops. Some values are read several
// times.
inline Graph random_graph(std::uint64_t seed, int layers) {
  Rng r(seed, Purpose::user);
  const auto below = [&](std::uint32_t n) { return static_cast<int>(r.below(n)); };
  Builder b(1 + below(3), 6 + below(6), 6 + below(6));
  const std::size_t channels = static_cast<std::size_t>(b.shape(b.images())[1]);
  std::vector<ValueId> pool{b.normalize(std::vector<float>(channels, 128), std::vector<float>(channels, 1 / 64.0F))};
  for (int i = 0; i < layers; ++i) {
    const std::string name = "l" + std::to_string(i);
    // Reads the latest value in most cases, so that the net is deep.
    const ValueId x = below(3) > 0 ? pool.back() : pool[r.below(static_cast<std::uint32_t>(pool.size()))];
    const Shape s = b.shape(x);
    ValueId same = no_value;
    for (ValueId v : pool)
      if (b.shape(v) == s && (same == no_value || below(2) == 0)) same = v;
    switch (below(8)) {
      case 0:
      case 1:
        pool.push_back(nn::conv(
            b, name, x,
            {.out = 1 + below(9), .kernel = 1 + 2 * below(2), .stride = s[2] > 3 && s[3] > 3 ? 1 + below(2) : 1}));
        break;
      case 2:
        pool.push_back(nn::batch_norm(b, name, x, {.relu = below(2) == 0}));
        break;
      case 3:
        pool.push_back(nn::batch_norm(b, name, x, {.relu = below(2) == 0, .residual = same}));
        break;
      case 4:
        pool.push_back(b.add(name, x, same));
        break;
      case 5:
        pool.push_back(i % 3 == 0 ? b.gelu(name, x) : i % 3 == 1 ? b.relu(name, x) : nn::silu(b, name, x));
        break;
      case 6:
        if (s[2] > 3 && s[3] > 3 && below(2) == 0)
          pool.push_back(b.max_pool(name, x, {3, 3, 1 + below(2), 1}));
        else if (i % 4 == 0)
          pool.push_back(nn::multiply(b, name, x, b.global_avg_pool(name + ".mean", x)));
        else if (i % 4 == 1 && s[1] < 20)
          pool.push_back(nn::concat(b, name, {x, same}));
        else if (i % 4 == 2)
          pool.push_back(nn::dropout(b, name, x, 0.1));
        else
          pool.push_back(b.bias(name, x, b.parameter(name + ".b", Shape{s[1]}, {Init::normal, 0.1}, false)));
        break;
      default:
        pool.push_back(below(3) == 0 ? b.custom(name, square_op(), {x})[0] : b.relu(name, x));
    }
  }
  b.softmax_cross_entropy(
      nn::linear(b, "fc", b.global_avg_pool("pool", nn::conv(b, "last", pool.back(), {.out = 4})), 3 + below(9), {}));
  return std::move(b).take();
}

}  // namespace tutti::testing
