// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tutti/engine/cpu/winograd/layout.hpp>

// Convolutions forward and, if the weights are packed for it, the gradient of their input: tiles are transformed,
// multiplied and transformed back, one group at a time.
namespace tutti::cpu::winograd {

struct OutputArgs {
  const float* tiles = nullptr;    // of one group, transformed
  const float* weights = nullptr;  // of one panel
  float* products = nullptr;       // memory for the products of the group
  bool streams = false;            // the weights are far away in memory
  WriteTiles outputs;              // destination of the group's tiles, from the panel's first channel on
};

// Transforms the tiles [from.first, from.first + from.count) of images and writes them to `groups`, from position
// from.at on.
inline void transform_tiles(Isa isa, ReadTiles from, const TileLayout& l, float* groups) {
  const std::int64_t end = from.at + from.count;
  for (std::int64_t at = from.at; at < end;) {
    const std::int64_t in_group = at % l.group, in_block = in_group % l.block;
    from.count = std::min({l.block - in_block, l.group - in_group, end - at});
    from.to = {groups + at / l.group * l.group_floats() + in_group / l.block * l.block_floats, l.block, l.plane};
    from.at = in_block;
    read_and_transform(isa, from);
    from.first += from.count;
    at += from.count;
  }
}

// Multiplies a group of tiles by a panel of weights and transforms the products to outputs.
inline void multiply_tiles(Isa isa, OutputArgs a, const WeightLayout& w, const TileLayout& l) {
  const Multiply first = multiply_of(isa, l.block, w.registers, a.streams);
  const Multiply next = multiply_of(isa, l.block, w.registers);
  for (std::size_t i = 0; i < static_cast<std::size_t>(l.order.count); ++i) {
    const std::int64_t point = l.order.tiles[i];
    for (std::int64_t b = 0; b * l.block < a.outputs.count; ++b)
      (b == 0 ? first : next)(w.channels, a.tiles + point * l.plane + b * l.block_floats,
                              a.weights + l.order.weights[i] * w.plane,
                              a.products + point * l.products + b * l.block * w.width);
  }
  a.outputs.end_channel = a.outputs.first_channel + w.width;
  a.outputs.from = a.products;
  a.outputs.plane = l.products;
  a.outputs.tile = w.width;
  transform_and_write(isa, a.outputs);
}

}  // namespace tutti::cpu::winograd
