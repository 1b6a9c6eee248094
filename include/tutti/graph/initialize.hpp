// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Fills a tensor of master weights with its initial values. Seed and name determine the random numbers; the order of
// layers, the backend and the number of ranks have no influence.
// He: He et al. 2015, fan-in. Xavier: Glorot and Bengio 2010, mean of fan-in and fan-out. The fan-in is the product of
// all extents except the first, and the fan-out the product of all extents except the second: both include the kernel.
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
      deviation = init.scale * math::sqrt(2 / fan_in);
      break;
    case Init::he_uniform:
    case Init::dirac:
      width = init.scale * math::sqrt(6 / fan_in);
      break;
    case Init::xavier_normal:
      deviation = init.scale * math::sqrt(2 / (fan_in + fan_out));
      break;
    case Init::xavier_uniform:
      width = init.scale * math::sqrt(6 / (fan_in + fan_out));
      break;
    case Init::values:
      if (init.given == nullptr || init.given->size() != static_cast<std::size_t>(n))
        fail<ShapeError>(name, {n, " values for ", to_string(shape)},
                         init.given == nullptr ? "none" : std::to_string(init.given->size()));
      for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<T>((*init.given)[static_cast<std::size_t>(i)]);
      return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    double v = constant;
    if (deviation != 0) v = deviation * rng.normal();
    if (width != 0) v = width * (2 * rng.uniform53() - 1);
    data[i] = static_cast<T>(v);
  }
  if (init.kind == Init::dirac) {
    if (shape.rank() != 4) fail<ShapeError>(name, "weights [O, I, H, W] for the initializer dirac", to_string(shape));
    const std::int64_t places = shape[2] * shape[3], middle = shape[2] / 2 * shape[3] + shape[3] / 2;
    for (std::int64_t o = 0; o < std::min(shape[0], shape[1]); ++o) {
      std::fill_n(data + o * shape[1] * places, shape[1] * places, T{});
      data[(o * shape[1] + o) * places + middle] = static_cast<T>(1.0F);
    }
  }
}

TUTTI_CORE_INSTANCE(template void initialize<float>(float*, const Shape&, const Initializer&, std::uint64_t,
                                                    std::string_view));
TUTTI_CORE_INSTANCE(template void initialize<double>(double*, const Shape&, const Initializer&, std::uint64_t,
                                                     std::string_view));

}  // namespace tutti
