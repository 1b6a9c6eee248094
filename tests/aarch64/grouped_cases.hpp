// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/grouped/kernels.hpp>

namespace tutti::test {

// Compares lines of convolutions in groups with sums in f64, and those in bf16 with the rounded lines in f32, which may
// be rounded by another path. Returns how many outputs are wrong.
inline std::int64_t count_wrong_group_outputs(cpu::Isa isa) {
  using namespace cpu::grouped;
  struct Case {
    std::int64_t channels, outputs, width;
    int groups, stride;
  };
  std::int64_t wrong = 0;
  for (const Case& c : {Case{22, 22, 17, 22, 1}, Case{21, 21, 5, 21, 2}, Case{32, 64, 30, 2, 1}, Case{16, 16, 9, 4, 1},
                        Case{6, 9, 3, 3, 1}}) {
    const op::Window window{3, 3, c.stride, 1};
    const std::int64_t out_w = (c.width - 1) / c.stride + 1;
    const Problem g = forward(window, c.groups, Shape{1, c.channels, 1, c.width}, Shape{1, c.outputs, 1, out_w}, 4);
    Rng rng(7, Purpose::user);
    const auto values = [&](std::int64_t n) {
      std::vector<float> v;
      for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>(rng.below(2001)) / 1000.0F - 1.0F);
      return v;
    };
    const std::vector<float> x = values(c.width * c.channels), weights = values(g.weights());
    std::vector<float> room(static_cast<std::size_t>(g.kernel_h * g.line())),
        y(static_cast<std::size_t>(out_w * c.outputs));
    std::vector<bf16> y16(y.size());
    Lines lines(g, room.data());
    lines.clear_borders();
    lines.begin_image();
    lines.move_to(0, [&](std::int64_t, float* line) { fill_line<float>(isa, &g, x.data(), line); });
    RowArgs a{&g, lines.data(), lines.count(), weights.data()};
    a.y = y.data();
    correlate(isa, a);
    a.y = nullptr;
    a.y16 = y16.data();
    correlate(isa, a);
    for (std::int64_t q = 0; q < out_w; ++q)
      for (std::int64_t o = 0; o < c.outputs; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < g.planes; ++i)
          for (std::int64_t s = 0; s < 3; ++s) {
            const std::int64_t at = q * c.stride - 1 + s, channel = o / g.per_group * g.planes + i;
            if (at < 0 || at >= c.width) continue;
            sum += static_cast<double>(x[static_cast<std::size_t>(at * c.channels + channel)]) *
                   static_cast<double>(
                       weights[static_cast<std::size_t>(o / 16 * g.block() + (i * 9 + 3 + s) * 16 + o % 16)]);
          }
        const auto i = static_cast<std::size_t>(q * c.outputs + o);
        wrong += std::fabs(static_cast<double>(y[i]) - sum) > 1e-5 ||
                 static_cast<float>(y16[i]) != static_cast<float>(bf16(y[i]));
      }
  }
  return wrong;
}

}  // namespace tutti::test
