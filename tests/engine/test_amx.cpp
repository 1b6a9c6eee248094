// SPDX-License-Identifier: MIT
// Tests convolutions in bf16 by the tiles of AMX on any processor: with tile registers in memory, and with those of the
// processor if it has them. Compares the results with sums in f64.
#include <doctest/doctest.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/amx/products.hpp>
#include <tutti/engine/cpu/amx/weight_gradient.hpp>

using namespace tutti;
using cpu::Isa;
namespace amx = tutti::cpu::amx;

namespace {

// Tile registers in memory, with the sums of the processor's manual: pair by pair, in f32.
class MemoryTiles {
 public:
  template <int R>
  void zero() {
    tiles_[R].fill(0);
  }
  template <int R>
  void load(const void* from, std::int64_t bytes) {
    for (std::int64_t i = 0; i < amx::side; ++i)
      std::memcpy(tiles_[R].data() + i * amx::side, static_cast<const std::byte*>(from) + i * bytes, 64);
  }
  template <int R>
  void store(float* to, std::int64_t bytes) {
    for (std::int64_t i = 0; i < amx::side; ++i)
      std::memcpy(reinterpret_cast<std::byte*>(to) + i * bytes, tiles_[R].data() + i * amx::side, 64);
  }
  template <int Sum, int A, int B>
  void multiply_add() {
    for (std::int64_t m = 0; m < amx::side; ++m)
      for (std::int64_t k = 0; k < amx::side; ++k)
        for (std::int64_t n = 0; n < amx::side; ++n)
          for (const int half : {0, 1}) at(Sum, m, n) += part(at(A, m, k), half) * part(at(B, k, n), half);
  }

 private:
  [[nodiscard]] float& at(int r, std::int64_t i, std::int64_t k) {
    return tiles_[static_cast<std::size_t>(r)][static_cast<std::size_t>(i * amx::side + k)];
  }
  // The lower or the upper bf16 of a pair.
  [[nodiscard]] static float part(float pair, int half) {
    const auto bits = std::bit_cast<std::uint32_t>(pair);
    return std::bit_cast<float>(half != 0 ? bits & 0xFFFF0000U : bits << 16);
  }
  std::array<std::array<float, 256>, 8> tiles_{};
};

// n elements, and no memory after them: a kernel that reads beyond them ends the test.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t n) : bytes_((static_cast<std::size_t>(n) * sizeof(T) + page - 1) / page * page) {
    void* const at = ::mmap(nullptr, bytes_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    base_ = static_cast<std::byte*>(at);
    REQUIRE(::mprotect(base_ + bytes_, page, PROT_NONE) == 0);
    std::memset(base_, 0xFF, bytes_);  // NaN
    data_ = reinterpret_cast<T*>(base_ + bytes_) - n;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { ::munmap(base_, bytes_ + page); }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] T& operator[](std::int64_t i) { return data_[i]; }

 private:
  static constexpr std::size_t page = 4096;
  std::size_t bytes_;
  std::byte* base_;
  T* data_;
};

// Memory that begins at a cache line, all of it NaN.
template <class T>
class Room {
 public:
  explicit Room(std::int64_t n) : all_(static_cast<std::size_t>(n) + 64 / sizeof(T)) {
    std::memset(static_cast<void*>(all_.data()), 0xFF, all_.size() * sizeof(T));
  }
  [[nodiscard]] T* data() {
    const auto at = reinterpret_cast<std::uintptr_t>(all_.data());
    return reinterpret_cast<T*>((at + 63) / 64 * 64);
  }

 private:
  std::vector<T> all_;
};

struct Case {
  std::int64_t rows, channels, h, w, outputs;
  op::Window window;

  [[nodiscard]] Shape x() const { return {rows, channels, h, w}; }
  [[nodiscard]] std::int64_t weights() const { return outputs * channels * window.kernel_h * window.kernel_w; }
  [[nodiscard]] Shape y() const { return {rows, outputs, window.out_h(h), window.out_w(w)}; }
  [[nodiscard]] std::string name() const {
    return to_string(x()) + " -> " + to_string(y()) + ", window " + std::to_string(window.kernel_h) + "x" +
           std::to_string(window.kernel_w) + ", stride " + std::to_string(window.stride) + ", padding " +
           std::to_string(window.padding);
  }
};
const std::vector<Case> cases{
    {2, 64, 9, 9, 64, {3, 3, 1, 1}},   {1, 32, 7, 9, 48, {1, 1, 1, 0}},  {3, 32, 2, 2, 16, {1, 1, 1, 0}},
    {1, 32, 3, 3, 16, {1, 1, 1, 0}},   {2, 3, 20, 18, 64, {7, 7, 2, 3}}, {2, 16, 8, 8, 16, {3, 3, 1, 1}},
    {5, 16, 9, 8, 32, {3, 3, 2, 1}},   {2, 64, 9, 9, 96, {3, 3, 2, 1}},  {2, 64, 8, 8, 32, {1, 1, 2, 0}},
    {1, 40, 6, 6, 24, {3, 3, 1, 1}},   {1, 8, 6, 6, 10, {5, 5, 1, 2}},   {1, 64, 7, 7, 64, {3, 3, 1, 0}},
    {1, 20, 11, 11, 7, {3, 3, 3, 1}},  {1, 33, 5, 5, 65, {2, 2, 2, 0}},  {2, 32, 6, 8, 32, {1, 3, 1, 1}},
    {1, 1, 30, 30, 17, {3, 3, 1, 1}},  {2, 64, 5, 5, 32, {1, 1, 2, 0}},  {1, 32, 41, 20, 32, {3, 3, 1, 1}},
    {1, 16, 73, 40, 16, {3, 3, 2, 1}},
};

void fill(bf16* to, std::int64_t n, std::uint64_t seed) {
  Rng rng(seed, Purpose::init);
  for (std::int64_t i = 0; i < n; ++i) to[i] = bf16(2 * rng.uniform() - 1);
}

// Calls f(image, line and column of y, output, line and column of x, channel, position of the weight) for each product.
template <class F>
void products_of(const Case& c, F&& f) {
  const op::Window& o = c.window;
  for (std::int64_t n = 0; n < c.rows; ++n)
    for (std::int64_t i = 0; i < c.y()[2]; ++i)
      for (std::int64_t j = 0; j < c.y()[3]; ++j)
        for (std::int64_t r = 0; r < o.kernel_h; ++r)
          for (std::int64_t s = 0; s < o.kernel_w; ++s) {
            const std::int64_t a = i * o.stride + r - o.padding, b = j * o.stride + s - o.padding;
            if (a < 0 || b < 0 || a >= c.h || b >= c.w) continue;
            for (std::int64_t k = 0; k < c.outputs; ++k)
              for (std::int64_t e = 0; e < c.channels; ++e)
                f(((n * c.y()[2] + i) * c.y()[3] + j) * c.outputs + k, ((n * c.h + a) * c.w + b) * c.channels + e,
                  ((k * c.channels + e) * o.kernel_h + r) * o.kernel_w + s);
          }
}

// The largest error that rounding explains: half a unit of bf16, and sums in f32.
void check_near(const bf16* got, const std::vector<double>& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
    if (!(error <= std::fabs(expected[i]) / 256 + 1e-4)) {
      FAIL_CHECK(what << ": element " << i << " is " << static_cast<float>(got[i]) << ", not " << expected[i]);
      return;
    }
  }
}

enum class Tiles : std::uint8_t { memory, registers };
std::vector<Tiles> kinds() {
  if (cpu::detect_amx()) return {Tiles::memory, Tiles::registers};
  std::puts("no tiles of AMX on this processor, or for this compiler: only those in memory are tested");
  return {Tiles::memory};
}
void pack(Tiles t, const amx::Layout& l, const float* w, std::uint32_t* to) {
  t == Tiles::memory ? amx::detail::pack_body<Isa::baseline>(l, w, to) : amx::pack_weights(l, w, to);
}
void multiply(Tiles t, const amx::Layout& l, const amx::Products& p) {
  t == Tiles::memory ? amx::detail::multiply_body<Isa::baseline, MemoryTiles>(l, p) : amx::multiply(l, p);
}

}  // namespace

TEST_CASE("convolutions and gradients of their inputs are sums of products, and only operands are read") {
  for (const Case& c : cases)
    for (const bool gradient : {false, true}) {
      const Shape in = gradient ? c.y() : c.x(), out = gradient ? c.x() : c.y();
      const amx::Layout l(c.window, in, out, gradient);
      Guarded<bf16> x(in.numel());
      fill(x.data(), in.numel(), 1);
      Guarded<float> w(c.weights());
      Rng rng(2, Purpose::init);
      for (std::int64_t i = 0; i < c.weights(); ++i) w[i] = static_cast<float>(bf16(rng.uniform() - 0.5F));
      std::vector<double> expected(static_cast<std::size_t>(out.numel()));
      products_of(c, [&](std::int64_t at_y, std::int64_t at_x, std::int64_t at_w) {
        const double weight = static_cast<double>(w[at_w]);
        expected[static_cast<std::size_t>(gradient ? at_x : at_y)] +=
            weight * static_cast<double>(x[gradient ? at_y : at_x]);
      });
      for (const Tiles t : kinds()) {
        Room<std::uint32_t> packed(l.weight_words());
        pack(t, l, w.data(), packed.data());
        const bool copies = !l.reads_images(in[0]);
        Room<bf16> room(in[0] * l.image_elements() + amx::side * l.pixel);
        for (std::int64_t n = 0; copies && n < in[0]; ++n)
          amx::copy_image(l, x.data() + n * in.row_numel(), 0, l.lines, room.data() + n * l.image_elements());
        Guarded<bf16> y(out.numel());
        amx::Products p;
        p.from = copies ? room.data() : x.data();
        p.images = in[0];
        p.weights = packed.data();
        p.to = y.data();
        p.end_panel = l.panels;
        p.end_line = l.out_h;
        multiply(t, l, p);
        check_near(y.data(), expected, c.name() + (gradient ? " gradient" : "") + (t == Tiles::memory ? "" : ", AMX"));
      }
    }
}

TEST_CASE("parts of a convolution have the bits of the whole, and the end is added before the sums are rounded") {
  for (const Case& c : cases) {
    if (c.rows > 1) continue;
    const amx::Layout l(c.window, c.x(), c.y(), false);
    Guarded<bf16> x(c.x().numel()), residual(c.y().numel());
    fill(x.data(), c.x().numel(), 3);
    fill(residual.data(), c.y().numel(), 4);
    Guarded<float> w(c.weights());
    Guarded<float> bias(c.outputs);
    Rng rng(5, Purpose::init);
    for (std::int64_t i = 0; i < c.weights(); ++i) w[i] = rng.uniform() - 0.5F;
    for (std::int64_t k = 0; k < c.outputs; ++k) bias[k] = rng.uniform();
    for (const Tiles t : kinds()) {
      Room<std::uint32_t> packed(l.weight_words());
      pack(t, l, w.data(), packed.data());
      const auto run = [&](std::int64_t line, std::int64_t end, std::int64_t panel, std::int64_t end_panel, bool ends,
                           bf16* y) {
        Room<bf16> room(l.image_elements() + amx::side * l.pixel);
        const auto lines = l.lines_for(line, end);
        amx::copy_image(l, x.data(), lines.first, lines.end, room.data());
        amx::Products p;
        p.from = room.data();
        p.images = 1;
        p.weights = packed.data();
        p.to = y;
        p.first_panel = panel;
        p.end_panel = end_panel;
        p.first_line = line;
        p.end_line = end;
        if (ends) {
          p.bias = bias.data();
          p.residual = residual.data();
          p.relu = true;
        }
        multiply(t, l, p);
      };
      Guarded<bf16> whole(c.y().numel()), parts(c.y().numel()), plain(c.y().numel());
      run(0, l.out_h, 0, l.panels, true, whole.data());
      const std::int64_t half = (l.out_h + 1) / 2;
      for (std::int64_t p = 0; p < l.panels; ++p) {
        run(0, half, p, p + 1, true, parts.data());
        if (half < l.out_h) run(half, l.out_h, p, p + 1, true, parts.data());
      }
      CHECK_MESSAGE(std::memcmp(whole.data(), parts.data(), static_cast<std::size_t>(c.y().numel()) * 2) == 0,
                    c.name());
      run(0, l.out_h, 0, l.panels, false, plain.data());
      for (std::int64_t i = 0; i < c.y().numel(); ++i) {
        const double sum = static_cast<double>(plain[i]);
        const double end = sum + static_cast<double>(bias[i % c.outputs]) + static_cast<double>(residual[i]);
        const double error = std::fabs(std::fmax(end, 0) - static_cast<double>(whole[i]));
        REQUIRE_MESSAGE(error <= (std::fabs(sum) + std::fabs(end)) / 256 + 1e-4, c.name());
      }
    }
  }
}

TEST_CASE("weight gradients are sums of products, for images at once or one after the other") {
  for (const Case& c : cases) {
    if (c.window.kernel_h * c.window.kernel_w == 1) continue;
    const amx::GradientLayout g(c.window, c.x(), c.y());
    Guarded<bf16> x(c.x().numel()), dy(c.y().numel());
    fill(x.data(), c.x().numel(), 6);
    fill(dy.data(), c.y().numel(), 7);
    std::vector<double> expected(static_cast<std::size_t>(c.weights()));
    products_of(c, [&](std::int64_t at_y, std::int64_t at_x, std::int64_t at_w) {
      expected[static_cast<std::size_t>(at_w)] += static_cast<double>(dy[at_y]) * static_cast<double>(x[at_x]);
    });
    for (const Tiles t : kinds()) {
      const auto gradients = [&](std::int64_t at_once) {
        Room<float> tiles(g.floats());
        Room<std::uint32_t> room(g.room_words());
        for (std::int64_t n = 0; n < c.rows; n += at_once) {
          const amx::Gradient p{x.data() + n * c.x().row_numel(),
                                dy.data() + n * c.y().row_numel(),
                                at_once,
                                tiles.data(),
                                n > 0,
                                room.data()};
          t == Tiles::memory ? amx::detail::gradient_body<Isa::baseline, MemoryTiles>(g, p) : amx::add_gradient(g, p);
        }
        std::vector<float> dw(static_cast<std::size_t>(c.weights()), -1.0F);
        for (std::int64_t r = 0; r < g.rows; r += 2)
          amx::write_gradient(g, static_cast<const float*>(tiles.data()) + r / 2 * g.row_floats(), r, dw.data());
        return dw;
      };
      const std::vector<float> dw = gradients(c.rows);
      CHECK_MESSAGE(dw == gradients(1), c.name());
      for (std::size_t i = 0; i < dw.size(); ++i) {
        const double error = std::fabs(static_cast<double>(dw[i]) - expected[i]);
        REQUIRE_MESSAGE(error <= 1e-4, c.name() << (t == Tiles::memory ? "" : ", AMX") << ": weight " << i << " is "
                                                << dw[i] << ", not " << expected[i]);
      }
    }
  }
}

TEST_CASE("a value that is not a number stays in its image") {
  const Case c{2, 3, 12, 12, 16, {7, 7, 2, 3}};
  const amx::Layout l(c.window, c.x(), c.y(), false);
  REQUIRE(l.way == amx::Way::lines);
  std::vector<bf16> x(static_cast<std::size_t>(c.x().numel()));
  fill(x.data(), c.x().numel(), 8);
  x[0] = bf16(std::nanf(""));
  const std::vector<float> w(static_cast<std::size_t>(c.outputs * c.channels * 49), 0.25F);
  Room<std::uint32_t> packed(l.weight_words());
  Room<bf16> room(c.rows * l.image_elements());  // NaN, as what another kernel has left there may be
  for (const Tiles t : kinds()) {
    pack(t, l, w.data(), packed.data());
    for (std::int64_t n = 0; n < c.rows; ++n)
      amx::copy_image(l, x.data() + n * c.x().row_numel(), 0, l.lines, room.data() + n * l.image_elements());
    std::vector<bf16> y(static_cast<std::size_t>(c.y().numel()));
    amx::Products p;
    p.from = room.data();
    p.images = c.rows;
    p.weights = packed.data();
    p.to = y.data();
    p.end_panel = l.panels;
    p.end_line = l.out_h;
    multiply(t, l, p);
    CHECK(std::isnan(static_cast<float>(y[0])));
    const auto second = static_cast<std::ptrdiff_t>(c.y().row_numel());
    CHECK(std::all_of(y.begin() + second, y.end(), [](bf16 v) { return std::isfinite(static_cast<float>(v)); }));
  }
}
