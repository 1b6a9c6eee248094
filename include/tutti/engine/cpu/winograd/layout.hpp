// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/engine/cpu/winograd/products.hpp>
#include <tutti/engine/cpu/winograd/tiles.hpp>

// The memory layout of transformed tiles, weights and products.
namespace tutti::cpu::winograd {

// Weights of a convolution: [panels][points][channels][width] floats, with `registers` registers of outputs in a panel.
// Channels and outputs are padded with zeros.
struct WeightLayout {
  WeightLayout(Isa isa, std::int64_t inputs, std::int64_t outs) : lanes(lanes_at(isa)) {
    channels = whole_registers(isa, inputs);
    registers = outs <= lanes ? 1 : 2;
    width = registers * lanes;
    panels = (outs + width - 1) / width;
    plane = plane_stride(channels * width);
    panel = points * plane;
  }
  std::int64_t lanes, channels = 0, registers = 0, width = 0, panels = 0;
  std::int64_t plane = 0, panel = 0;  // floats of one point, of one panel
};

// Tiles in groups that go through transforms and products together: in one group [points][blocks][channels /
// lanes][block][lanes] floats, and products [points][blocks * block][width]; `order` lists the points. The last group
// may have fewer tiles.
struct TileLayout {
  TileLayout(Isa isa, const WeightLayout& w, const PointOrder& o, std::int64_t all, std::int64_t at_once)
      : order(o), tiles(all) {
    const BlockRange range = block_range(isa, w.registers);
    // Chooses the block size that adds the fewest tiles of zeros. A larger size wins if a smaller one would save less
    // than a thirty-second, because larger blocks read fewer weights.
    std::int64_t count = 0;  // of blocks
    for (std::int64_t size = range.most; size >= range.least; size -= range.step) {
      const std::int64_t filled = (all + size - 1) / size;
      if (count != 0 && 32 * filled * size > 31 * count * block) continue;
      count = filled;
      block = size;
    }
    // Whole blocks, because otherwise each group would add tiles of zeros.
    const std::int64_t most = std::max<std::int64_t>(1, at_once / block);
    groups = (count + most - 1) / most;
    blocks = (count + groups - 1) / groups;
    groups = (count + blocks - 1) / blocks;
    group = blocks * block;
    block_floats = block * w.channels;
    plane = plane_stride(blocks * block_floats);
    products = plane_stride(blocks * block * w.width);
  }
  // Floats of one group of transformed tiles.
  [[nodiscard]] std::int64_t group_floats() const { return order.count * plane; }
  // Floats of the products of one group.
  [[nodiscard]] std::int64_t product_floats() const { return order.count * products; }

  const PointOrder& order;
  std::int64_t tiles, groups = 0, group = 0, blocks = 0, block = 0;
  std::int64_t block_floats = 0, plane = 0, products = 0;  // floats of a block; of one point: of tiles, of products
};

}  // namespace tutti::cpu::winograd
