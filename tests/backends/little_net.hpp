// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <tutti/graph/builder.hpp>
#include <tutti/models/resnet_cifar.hpp>

namespace tutti::testing {

inline Graph little_net() {
  Builder b(3, 8, 8);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  models::resnet_cifar(b, x, {.depth = 8, .width = 4});
  return std::move(b).take();
}

}  // namespace tutti::testing
