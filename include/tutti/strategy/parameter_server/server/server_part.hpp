// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/core/dtype.hpp>

namespace tutti {

// A push, and the part of a model that a server updates with it. All pointers are to element `begin` of an arena.
struct ServerPart {
  DType dtype = DType::f32;
  std::size_t begin = 0, end = 0;  // elements of the layout
  void* weights = nullptr;
  std::array<void*, 2> slots{};     // the optimizer's slots; null: no slot
  const void* gradients = nullptr;  // multiplied by the loss scale
  std::int64_t step = 0;            // steps of all workers that began before, in this server's count
};

}  // namespace tutti
