// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Fills n master weights. A pure function of (seed, name): independent of the order of layers, the backend and the
// world. He: He et al. 2015, fan-in. Xavier: Glorot and Bengio 2010, mean of fan-in and fan-out. fan = extents but the
// first (in) or second (out) times the kernel.
template <class T>
void initialize(T* data, const Shape& shape, const Initializer& init, std::uint64_t seed, std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ULL;  // FNV-1a
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  Rng rng(seed, Purpose::init, 0, h);
  const auto n = shape.numel();
  const double fan_in = static_cast<double>(shape.rank() > 1 ? shape.row_numel() : n);
  const double fan_out =
      shape.rank() > 1 ? static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(shape[1], 1)) : fan_in;
  double deviation = 0, width = 0, constant = 0;
  switch (init.kind) {
    case Init::zeros:
      break;
    case Init::ones:
      constant = init.scale;
      break;
    case Init::normal:
      deviation = init.scale;
      break;
    case Init::uniform:
      width = init.scale;
      break;
    case Init::he_normal:
      deviation = init.scale * std::sqrt(2 / fan_in);
      break;
    case Init::he_uniform:
      width = init.scale * std::sqrt(6 / fan_in);
      break;
    case Init::xavier_normal:
      deviation = init.scale * std::sqrt(2 / (fan_in + fan_out));
      break;
    case Init::xavier_uniform:
      width = init.scale * std::sqrt(6 / (fan_in + fan_out));
      break;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    double v = constant;
    if (deviation != 0) v = deviation * rng.normal();
    if (width != 0) v = width * (2 * rng.uniform53() - 1);
    data[i] = static_cast<T>(v);
  }
}

TUTTI_CORE_INSTANCE(template void initialize<float>(float*, const Shape&, const Initializer&, std::uint64_t,
                                                    std::string_view));
TUTTI_CORE_INSTANCE(template void initialize<double>(double*, const Shape&, const Initializer&, std::uint64_t,
                                                     std::string_view));

}  // namespace tutti
