// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops.hpp>

// The common form of a convolution in groups and of the gradient of its input.
namespace tutti::cpu::grouped {

// How the lanes of a register of outputs find the inputs that they read:
//   copies    the lines hold them in this order, once for each plane
//   one       all lanes read the same channel, so that the kernels read one number for all
//   permuted  the register's groups lie in one register of inputs, which the kernels permute for each plane
enum class Reads : std::uint8_t { copies, one, permuted };

// Output (p, q) of channel o is the sum over i < planes and the window (r, s) of weights[o, i, r, s] times the input at
// (p * step - top + r, q * step - left + s). The inputs lie `spread` apart with zeros between them, and o reads the
// channels o / per_group * planes + i.
struct Problem {
  int kernel_h = 1, kernel_w = 1;
  std::int64_t step = 1, spread = 1, top = 0, left = 0;
  std::int64_t in_h = 0, in_w = 0, channels = 0, out_h = 0, out_w = 0, outputs = 0;
  std::int64_t planes = 1, per_group = 1;
  Reads reads = Reads::copies;

  [[nodiscard]] std::int64_t padded() const { return (outputs + 15) / 16 * 16; }
  [[nodiscard]] std::int64_t width() const { return (out_w - 1) * step + kernel_w; }  // of a line, with zeros around it
  // Distances in floats: of neighbouring pixels of a line, of planes, of lines, of pixels of a line of outputs.
  [[nodiscard]] bool copies() const { return reads == Reads::copies; }
  [[nodiscard]] std::int64_t pixel() const { return apart(copies() ? padded() : channels); }
  [[nodiscard]] std::int64_t plane() const { return copies() ? width() * pixel() : reads == Reads::one ? 1 : 0; }
  [[nodiscard]] std::int64_t line() const { return ((copies() ? planes : 1) * width() * pixel() + 15) / 16 * 16; }
  [[nodiscard]] std::int64_t output_pixel() const { return apart(padded()); }
  // Weights in the form that the kernels read: [outputs / 16][planes][kernel_h][kernel_w][16].
  [[nodiscard]] std::int64_t block() const { return planes * kernel_h * kernel_w * 16; }
  [[nodiscard]] std::int64_t weights() const { return padded() / 16 * block(); }

 private:
  // Pixels at a distance of a multiple of a kilobyte would share a few sets of the level-1 cache and evict each other.
  static std::int64_t apart(std::int64_t floats) { return floats % 256 == 0 ? floats + 16 : floats; }
};

// lanes: of a register.
[[nodiscard]] inline Problem forward(const op::Window& o, int groups, const Shape& x, const Shape& y, int lanes) {
  Problem g;
  g.kernel_h = o.kernel_h;
  g.kernel_w = o.kernel_w;
  g.step = o.stride;
  g.top = g.left = o.padding;
  g.in_h = x[2];
  g.in_w = x[3];
  g.channels = x[1];
  g.out_h = y[2];
  g.out_w = y[3];
  g.outputs = y[1];
  g.planes = x[1] / groups;
  g.per_group = y[1] / groups;
  const bool fits = g.planes == g.per_group && g.per_group > 1 && lanes > 4 && lanes % g.per_group == 0;
  if (g.per_group % lanes == 0)
    g.reads = Reads::one;
  else if (fits && g.channels % 16 == 0)
    g.reads = Reads::permuted;
  return g;
}
// dx[h] is the sum of dy[(h + padding - r) / stride] * w[r] over the r for which the division leaves no rest: the
// rows of dy lie `stride` apart, and the window is reversed.
[[nodiscard]] inline Problem backward_data(const op::Window& o, int groups, const Shape& dx, const Shape& dy,
                                           int lanes) {
  Problem g = forward(o, groups, dy, dx, lanes);
  g.step = 1;
  g.spread = o.stride;
  g.top = o.kernel_h - 1 - o.padding;
  g.left = o.kernel_w - 1 - o.padding;
  return g;
}

// A line of the input that an output line reads, and its row in the window.
struct Line {
  const float* x;
  int row;
};
inline constexpr int most_lines = 64;

// The lines of an image around an output line, in f32: a ring with one line for each row of the window.
class Lines {
 public:
  Lines(const Problem& g, float* room) : g_(g), room_(room) {}

  // Writes the zeros, which are in the same places for every line. Lines of the input replace only the other numbers.
  void clear_borders() {
    const std::int64_t planes = g_.copies() ? g_.planes : 1, size = g_.pixel();
    for (int r = 0; r < g_.kernel_h; ++r)
      for (std::int64_t i = 0; i < planes; ++i)
        for (std::int64_t j = 0; j < g_.width(); ++j) {
          const std::int64_t t = j - g_.left;
          const bool inside = t >= 0 && t % g_.spread == 0 && t / g_.spread < g_.in_w;
          const std::int64_t used = !inside ? 0 : g_.copies() ? g_.outputs : size;
          std::fill_n(room_ + r * g_.line() + i * g_.plane() + j * size + used, size - used, 0.0F);
        }
  }
  void begin_image() { next_ = 0; }
  // Finds the lines that output line p reads. fill(u, line) writes line u of the image if it is not there yet.
  template <class F>
  void move_to(std::int64_t p, F&& fill) {
    count_ = 0;
    for (int r = 0; r < g_.kernel_h; ++r) {
      const std::int64_t t = p * g_.step - g_.top + r;
      if (t < 0 || t % g_.spread != 0 || t / g_.spread >= g_.in_h) continue;
      const std::int64_t u = t / g_.spread;
      float* const line = room_ + u % g_.kernel_h * g_.line();
      if (u >= next_) {
        fill(u, line);
        next_ = u + 1;
      }
      lines_[static_cast<std::size_t>(count_++)] = {line, r};
    }
  }
  [[nodiscard]] const Line* data() const noexcept { return lines_.data(); }
  [[nodiscard]] int count() const noexcept { return count_; }

 private:
  const Problem& g_;
  float* room_;
  std::int64_t next_ = 0;
  std::array<Line, most_lines> lines_{};
  int count_ = 0;
};

}  // namespace tutti::cpu::grouped
