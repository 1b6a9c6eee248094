// SPDX-License-Identifier: MIT
// Compares the NEON kernels of 3x3 convolutions with sums in f64 (all passes, strides and types), and so the lines of
// convolutions in groups; and those that scale images with the plain loops. Without the rest of the library it compiles
// in seconds, so tests/aarch64.sh runs it first.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/pairs/weight_gradient.hpp>
#include <tutti/engine/cpu/winograd/forward.hpp>
#include <tutti/engine/cpu/winograd/pack.hpp>
#include <tutti/engine/cpu/winograd/weight_gradient.hpp>

#include "grouped_cases.hpp"
#include "resize_cases.hpp"

namespace {

using namespace tutti;
using cpu::Isa;
namespace winograd = cpu::winograd;
namespace pairs = cpu::pairs;

// A convolution of `rows` images [channels, h, w] to `outputs` channels, with padding 1.
struct Case {
  std::int64_t rows, channels, h, w, outputs;
  int stride;

  [[nodiscard]] Shape x() const { return {rows, channels, h, w}; }
  [[nodiscard]] Shape y() const { return {rows, outputs, (h - 1) / stride + 1, (w - 1) / stride + 1}; }
};

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t seed) {
  Rng rng(seed, Purpose::user);
  std::vector<T> v;
  for (std::int64_t i = 0; i < count; ++i) v.push_back(T(static_cast<float>(rng.below(2001)) / 1000.0F - 1.0F));
  return v;
}

// Calls f(index in x, in the weights, in y) for each product of the convolution.
template <class F>
void each_product(const Case& c, F&& f) {
  const Shape y = c.y();
  for (std::int64_t n = 0; n < c.rows; ++n)
    for (std::int64_t i = 0; i < y[2]; ++i)
      for (std::int64_t j = 0; j < y[3]; ++j)
        for (std::int64_t place = 0; place < 9; ++place) {
          const std::int64_t p = i * c.stride + place / 3 - 1, q = j * c.stride + place % 3 - 1;
          if (p < 0 || q < 0 || p >= c.h || q >= c.w) continue;
          for (std::int64_t o = 0; o < c.outputs; ++o)
            for (std::int64_t k = 0; k < c.channels; ++k)
              f(((n * c.h + p) * c.w + q) * c.channels + k, (o * c.channels + k) * 9 + place,
                ((n * y[2] + i) * y[3] + j) * c.outputs + o);
        }
}

winograd::Images images(const Shape& s, bool wide) { return {s[0], s[2], s[3], s[1], wide ? 8 : 4}; }

// Forward, or from gradients of outputs to gradients of inputs.
template <class T>
std::vector<T> by_winograd(Isa isa, const Case& c, bool backward, const std::vector<T>& from,
                           const std::vector<float>& weights) {
  constexpr bool bf16 = std::is_same_v<T, tutti::bf16>;
  const bool strided = c.stride == 2;
  const Shape in = backward ? c.y() : c.x(), out = backward ? c.x() : c.y();
  std::vector<T> to(static_cast<std::size_t>(out.numel()));
  const winograd::WeightLayout w(isa, in[1], out[1]);
  std::vector<float> packed(static_cast<std::size_t>(w.panels * w.panel));
  winograd::pack_weights(isa,
                         {weights.data(), c.outputs, c.channels, backward, bf16, strided, 0, w.panels, packed.data()});
  const winograd::Images x = images(in, strided && !backward), y = images(out, strided && backward);
  const winograd::TileLayout l(isa, w, winograd::order_of(strided), x.tiles(), 28);
  std::vector<float> room(static_cast<std::size_t>(l.group_floats() + l.product_floats()));
  using winograd::Reads, winograd::Writes;
  const Reads reads = !strided ? Reads::inputs : backward ? Reads::strided_data : Reads::strided_inputs;
  const Writes writes = !strided ? Writes::outputs : backward ? Writes::strided_data : Writes::strided_outputs;
  for (std::int64_t first = 0; first < l.tiles; first += l.group) {
    const std::int64_t count = std::min(l.group, l.tiles - first);
    winograd::transform_tiles(isa, {reads, from.data(), bf16, x, first, count, {}, 0}, l, room.data());
    for (std::int64_t p = 0; p < w.panels; ++p)
      winograd::multiply_tiles(isa,
                               {room.data(),
                                packed.data() + p * w.panel,
                                room.data() + l.group_floats(),
                                p % 2 == 1,
                                {writes, to.data(), bf16, y, first, count, p * w.width}},
                               w, l);
  }
  return to;
}

template <class T>
std::vector<float> weights_by_winograd(Isa isa, const Case& c, const std::vector<T>& x, const std::vector<T>& dy) {
  constexpr bool bf16 = std::is_same_v<T, tutti::bf16>;
  const bool strided = c.stride == 2;
  const winograd::Images xi = images(c.x(), strided), yi = images(c.y(), false);
  const std::int64_t tiles = xi.tiles(), points = winograd::order_of(strided).count;
  const std::int64_t inputs = winograd::whole_registers(isa, c.channels),
                     outputs = winograd::whole_registers(isa, c.outputs);
  const std::int64_t x_plane = winograd::plane_stride(inputs * tiles),
                     y_plane = winograd::plane_stride(outputs * tiles);
  std::vector<float> x_tiles(static_cast<std::size_t>(points * x_plane)),
      y_tiles(static_cast<std::size_t>(points * y_plane));
  std::vector<float> products(static_cast<std::size_t>(winograd::weight_product_floats()));
  std::vector<float> dw(static_cast<std::size_t>(c.outputs * c.channels * 9));
  winograd::WeightProductArgs a;
  a.x = {x_tiles.data(), tiles, x_plane};
  a.dy = {y_tiles.data(), tiles, y_plane};
  using winograd::Reads;
  winograd::read_and_transform(isa,
                               {strided ? Reads::strided_inputs : Reads::inputs, x.data(), bf16, xi, 0, tiles, a.x, 0});
  winograd::read_and_transform(
      isa, {strided ? Reads::strided_gradients : Reads::gradients, dy.data(), bf16, yi, 0, tiles, a.dy, 0});
  a.strided = strided;
  a.tiles = tiles;
  a.inputs = c.channels;
  a.outputs = c.outputs;
  a.end_input = inputs;
  a.end_output = outputs;
  a.products = products.data();
  // First as sums [outputs][9][inputs, whole registers], then from each block to its place.
  std::vector<float> sums(static_cast<std::size_t>(c.outputs * 9 * inputs));
  a.sums = sums.data();
  winograd::weight_products(isa, a);
  a.sums = nullptr;
  a.dw_step = c.channels * 9;
  for (a.first_input = 0; a.first_input < inputs; a.first_input += winograd::weight_block)
    for (a.first_output = 0; a.first_output < outputs; a.first_output += winograd::weight_block) {
      a.end_input = std::min(inputs, a.first_input + winograd::weight_block);
      a.end_output = std::min(outputs, a.first_output + winograd::weight_block);
      a.dw = dw.data() + (a.first_output * c.channels + a.first_input) * 9;
      winograd::weight_products(isa, a);
    }
  for (std::int64_t i = 0; i < c.outputs * c.channels * 9; ++i) {
    const std::int64_t o = i / 9 / c.channels, k = i / 9 % c.channels;
    const float sum = sums[static_cast<std::size_t>((o * 9 + i % 9) * inputs + k)];
    if (std::fabs(sum - dw[static_cast<std::size_t>(i)]) > 1e-3F) std::fill(dw.begin(), dw.end(), NAN);
  }
  return dw;
}

std::vector<bf16> by_pairs(const Case& c, bool backward, const std::vector<bf16>& from,
                           const std::vector<float>& weights) {
  const Shape in = backward ? c.y() : c.x(), out = backward ? c.x() : c.y();
  std::vector<bf16> to(static_cast<std::size_t>(out.numel()));
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(pairs::packed_words(in[1], out[1])));
  pairs::pack_pairs(weights.data(), c.outputs, c.channels, backward, packed.data());
  std::vector<bf16> room(static_cast<std::size_t>(pairs::padded(in, out).numel()));
  pairs::forward({in, out, from.data(), packed.data(), to.data(), room.data(), 0, c.rows, 0, out[2]});
  return to;
}
std::vector<float> weights_by_pairs(const Case& c, const std::vector<bf16>& x, const std::vector<bf16>& dy) {
  std::vector<float> sums(static_cast<std::size_t>(pairs::gradient_floats(c.channels, c.outputs))), dw;
  std::vector<std::uint32_t> room(static_cast<std::size_t>(pairs::gradient_room(c.x(), c.y(), c.stride)));
  pairs::weight_gradient({c.x(), c.y(), c.stride, x.data(), dy.data(), sums.data(), false, room.data()});
  const std::int64_t inputs = pairs::whole_lanes(c.channels);
  for (std::int64_t i = 0; i < c.outputs * c.channels * 9; ++i) {
    const std::int64_t o = i / 9 / c.channels, k = i / 9 % c.channels;
    dw.push_back(sums[static_cast<std::size_t>(((o / 16 * inputs + k) * 9 + i % 9) * 16 + o % 16)]);
  }
  return dw;
}

int wrong = 0;
// Prints the largest error, relative to the largest value, and counts it if it exceeds `most`.
template <class T>
void check(const char* what, const std::vector<T>& got, const std::vector<double>& expected, double most) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = std::fabs(static_cast<double>(static_cast<float>(got[i])) - expected[i]);
    error = std::isfinite(e) ? std::max(error, e) : HUGE_VAL;
    largest = std::max(largest, std::fabs(expected[i]));
  }
  const bool bad = got.size() != expected.size() || error > most * largest;
  wrong += bad ? 1 : 0;
  std::printf(" %s %.1e%s", what, error / largest, bad ? " WRONG" : "");
}

template <class T>
void check_case(Isa isa, const Case& c) {
  constexpr bool bf16 = std::is_same_v<T, tutti::bf16>;
  const auto x = random_values<T>(c.x().numel(), 1), dy = random_values<T>(c.y().numel(), 2);
  const auto weights = random_values<float>(c.outputs * c.channels * 9, 3);
  std::vector<double> y(dy.size()), dx(x.size()), dw(weights.size());
  each_product(c, [&](std::int64_t i, std::int64_t j, std::int64_t k) {
    const auto at_x = static_cast<std::size_t>(i), at_w = static_cast<std::size_t>(j),
               at_y = static_cast<std::size_t>(k);
    const auto v = static_cast<double>(static_cast<float>(x[at_x])),
               g = static_cast<double>(static_cast<float>(dy[at_y]));
    const auto w = static_cast<double>(static_cast<float>(T(weights[at_w])));
    y[at_y] += v * w;
    dx[at_x] += g * w;
    dw[at_w] += v * g;
  });
  std::printf("%s %s %lld->%lld@%lldx%lld/%d:", cpu::name_of(isa).data(), bf16 ? "bf16" : "f32",
              static_cast<long long>(c.channels), static_cast<long long>(c.outputs), static_cast<long long>(c.h),
              static_cast<long long>(c.w), c.stride);
  // Results in bf16 are rounded to 8 bits.
  const double most = bf16 ? 4.5e-3 : 2.5e-6;
  check("forward", by_winograd(isa, c, false, x, weights), y, most);
  check("data", by_winograd(isa, c, true, dy, weights), dx, most);
  check("weights", weights_by_winograd(isa, c, x, dy), dw, 2.5e-6);
  if constexpr (bf16)
    if (has_bf16(isa)) {
      if (c.stride == 1) check("forward by pairs", by_pairs(c, false, x, weights), y, most);
      if (c.stride == 1) check("data by pairs", by_pairs(c, true, dy, weights), dx, most);
      check("weights by pairs", weights_by_pairs(c, x, dy), dw, 1e-6);
    }
  std::puts("");
}

}  // namespace

int main() {
  const Case cases[] = {{2, 16, 8, 8, 16, 1},  {3, 8, 12, 9, 12, 1}, {1, 64, 7, 7, 80, 1},  {2, 3, 5, 6, 17, 1},
                        {2, 17, 9, 13, 24, 1}, {5, 4, 4, 4, 4, 1},   {1, 72, 14, 14, 4, 1}, {2, 16, 9, 10, 24, 2},
                        {1, 64, 8, 8, 68, 2},  {3, 3, 7, 5, 5, 2}};
  for (const Isa isa : cpu::isas) {
    if (isa == Isa::baseline || isa > cpu::detect_isa()) continue;
    wrong += test::count_different_pixels(isa);
    wrong += static_cast<int>(test::count_wrong_group_outputs(isa));
    for (const Case& c : cases) {
      if (!has_bf16(isa)) check_case<float>(isa, c);
      check_case<bf16>(isa, c);
    }
  }
  std::printf("%d wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
