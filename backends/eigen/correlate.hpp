// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <tutti/backends/eigen/convert.hpp>
#include <tutti/backends/eigen/correlation.hpp>
#include <tutti/backends/eigen/lanes.hpp>

// Runs correlations on a batch, one band of rows or images after the other.
namespace tutti::eigen {

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// The position of a part of each image, which is copied in f32 with the padding around the image.
struct Patch {
  std::int64_t row0, col0;          // negative: in the padding
  std::int64_t rows, cols, gather;  // gather: takes every gather-th row and column
};

template <class T>
void copy_patch(cpu::Isa isa, const T* x, const Image& in, std::int64_t images, const Patch& p, std::int64_t first,
                std::int64_t channels, float* to) {
  const auto bounds = [&](std::int64_t at, std::int64_t count, std::int64_t extent, std::int64_t& begin,
                          std::int64_t& end) {
    begin = std::min(count, at < 0 ? (-at + p.gather - 1) / p.gather : 0);
    end = at >= extent ? begin : std::clamp((extent - 1 - at) / p.gather + 1, begin, count);
  };
  std::int64_t r0 = 0, r1 = 0, c0 = 0, c1 = 0;
  bounds(p.row0, p.rows, in.h, r0, r1);
  bounds(p.col0, p.cols, in.w, c0, c1);
  for (std::int64_t n = 0; n < images; ++n, x += in.h * in.w * in.c)
    for (std::int64_t r = 0; r < p.rows; ++r, to += p.cols * channels) {
      if (r < r0 || r >= r1) {
        std::fill_n(to, p.cols * channels, 0.0F);
        continue;
      }
      std::fill_n(to, c0 * channels, 0.0F);
      if (c1 > c0)
        copy_rows<T, float>(isa, x + ((p.row0 + r * p.gather) * in.w + p.col0 + c0 * p.gather) * in.c + first,
                            p.gather * in.c, to + c0 * channels, channels, c1 - c0, channels, channels);
      std::fill_n(to + c1 * channels, (p.cols - c1) * channels, 0.0F);
    }
}

// The division of a correlation over n images into bands.
struct Bands {
  // Floats of packed weights that a task uses for a whole band before the next ones: they fit in a core's own cache.
  static constexpr std::int64_t slab = 64 * 1024;

  Correlation part;
  Image in, out;
  std::int64_t images_in_all, pixels_in_all = 0;            // pixels_in_all: above 0 if the pixels form one long row
  std::int64_t gather = 1, images = 1, rows = 1, cols = 0;  // of one band
  bool inside, split;

  // If a kernel has one tap and step 1, treats all pixels as one row, because the kernel reads consecutive pixels.
  Bands(const Correlations& all, const Correlation& p, std::int64_t n)
      : part(p), in(all.in), out(all.out), images_in_all(n) {
    const std::int64_t reach_h = p.top + (p.rows - 1) * p.step + p.kernel_h;
    const std::int64_t reach_w = p.left + (p.cols - 1) * p.step + p.kernel_w;
    inside = p.top >= 0 && p.left >= 0 && reach_h <= in.h && reach_w <= in.w;
    split = p.taps() * in.c * block_channels > slab;
    // A band has as many input floats as there are weights, so that neither is read much more often than the other.
    const std::int64_t target = std::clamp<std::int64_t>(p.taps() * in.c * all.padded_out(), 16 * 1024, 128 * 1024);
    if (p.taps() == 1 && p.step == 1 && p.spread == 1 && inside && p.rows == in.h && p.cols == in.w &&
        p.rows == out.h && p.cols == out.w) {
      pixels_in_all = n * p.rows * p.cols;
      in.h = out.h = 1;
      cols = std::min(pixels_in_all, std::max<std::int64_t>(target / in.c / 64, 1) * 64);
      return;
    }
    if (p.taps() == 1) {
      gather = p.step;
      part.step = 1;
    }
    cols = p.cols;
    const std::int64_t row = in_cols() * in.c, image = in_rows(p.rows) * row;
    if (image <= target) {
      images = std::min(n, target / image);
      rows = p.rows;
    } else {
      rows = std::clamp<std::int64_t>((target / row - part.kernel_h) / part.step + 1, 1, p.rows);
    }
  }

  [[nodiscard]] std::int64_t in_rows(std::int64_t r) const { return (r - 1) * part.step + part.kernel_h; }
  [[nodiscard]] std::int64_t in_cols() const { return (cols - 1) * part.step + part.kernel_w; }
  [[nodiscard]] std::int64_t sum_cols() const { return round_up(cols, group); }
  // Floats of scratch for the input. A group of pixels may extend beyond its end by less than `group` pixels.
  [[nodiscard]] std::int64_t input_floats() const {
    return round_up(images * in_rows(rows) * in_cols() * in.c + group * part.step * in.c, width);
  }
  [[nodiscard]] std::int64_t sum_floats() const { return images * rows * sum_cols() * block_channels; }
  [[nodiscard]] std::int64_t slab_floats() const { return std::min(slab, part.taps() * in.c * block_channels); }
  [[nodiscard]] std::int64_t floats() const { return input_floats() + sum_floats() + slab_floats(); }
};

// Operands of correlations on n rows of type T: activations NHWC, packed weights, bias f32 or null.
template <class T>
struct Batch {
  const T *x, *w;
  const float* bias;
  T* y;
  std::int64_t n;
  float* scratch;  // at least scratch_floats() floats
};

template <class T>
class Correlator {
 public:
  Correlator(const Bands& b, const Correlations& all, const Batch<T>& batch, cpu::Isa isa)
      : b_(b),
        all_(all),
        batch_(batch),
        isa_(isa),
        input_(batch.scratch),
        sums_(input_ + b.input_floats()),
        slab_(sums_ + b.sum_floats()) {}

  void run() {
    if (b_.pixels_in_all > 0) {
      const std::int64_t step = b_.cols;
      for (std::int64_t at = 0; at < b_.pixels_in_all; at += step) {
        b_.cols = std::min(step, b_.pixels_in_all - at);
        b_.in.w = b_.out.w = b_.cols;
        band(batch_.x + at * b_.in.c, batch_.y + at * b_.out.c, 1, 0, 1);
      }
      return;
    }
    for (std::int64_t n = 0; n < b_.images_in_all; n += b_.images)
      for (std::int64_t row = 0; row < b_.part.rows; row += b_.rows)
        band(batch_.x + n * b_.in.h * b_.in.w * b_.in.c, batch_.y + n * b_.out.h * b_.out.w * b_.out.c,
             std::min(b_.images, b_.images_in_all - n), row, std::min(b_.rows, b_.part.rows - row));
  }

 private:
  static constexpr bool is_f32 = std::is_same_v<T, float>;

  struct Band {
    std::int64_t images, rows;
    const float* x;
    Walk xs;
    T* y;  // its first pixel
    Walk ys;
  };

  struct Sums {
    float* at;
    Walk walk;
  };

  void band(const T* x, T* y, std::int64_t images, std::int64_t row, std::int64_t rows) {
    const Correlation& p = b_.part;
    const std::int64_t c = b_.in.c;
    Band band{images, rows, nullptr, {}, nullptr, {}};
    band.y = y + ((p.first_row + row * p.spread) * b_.out.w + p.first_col) * b_.out.c;
    band.ys = {b_.out.h * b_.out.w * b_.out.c, p.spread * b_.out.w * b_.out.c, p.spread * b_.out.c};
    const Patch patch{p.top + row * p.step * b_.gather, p.left, b_.in_rows(rows), b_.in_cols(), b_.gather};
    if constexpr (is_f32)
      if (b_.inside && b_.cols >= group && (!b_.split || b_.cols % group == 0)) {
        const std::int64_t step = p.step * b_.gather;
        band.x = x + (patch.row0 * b_.in.w + patch.col0) * c;
        band.xs = {b_.in.h * b_.in.w * c, step * b_.in.w * c, step * c};
        row_ = b_.in.w * c;
        return blocks(band);
      }
    copy_patch<T>(isa_, x, b_.in, images, patch, 0, c, input_);
    band.x = input_;
    row_ = patch.cols * c;
    band.xs = {patch.rows * row_, p.step * row_, p.step * c};
    blocks(band);
  }

  void blocks(const Band& band) {
    const T* w = batch_.w + b_.part.weights;
    for (std::int64_t o = 0; o < all_.padded_out(); o += block_channels) {
      if (all_.padded_out() - o >= block_channels)
        block<2>(band, o, w);
      else
        block<1>(band, o, w);
      w += b_.part.taps() * b_.in.c * block_channels;
    }
  }

  // Computes one block of output channels, which starts at channel o.
  template <int B>
  void block(const Band& band, std::int64_t o, const T* w) {
    constexpr std::int64_t lanes = B * width;
    const std::int64_t real = std::min(lanes, b_.out.c - o), run = b_.part.kernel_w * b_.in.c;
    bool direct = false;
    if constexpr (is_f32) direct = real == lanes && b_.cols >= group && !b_.split;
    Tile<B> t;
    t.pixel = band.xs.pixel;
    t.row = row_;
    std::array<float, static_cast<std::size_t>(lanes)> initial{};
    if (batch_.bias != nullptr) std::copy_n(batch_.bias + o, real, initial.data());
    t.initial = initial.data();
    t.add = false;
    Sums out{sums_, {band.rows * b_.sum_cols() * lanes, b_.sum_cols() * lanes, lanes}};
    if constexpr (is_f32)
      if (direct) out = {band.y + o, band.ys};
    t.out_pixel = out.walk.pixel;
    const std::int64_t most = b_.split ? Bands::slab / block_channels : run;
    t.runs = b_.split ? 1 : b_.part.kernel_h;
    for (int r = 0; r < b_.part.kernel_h; r += t.runs)
      for (std::int64_t k = 0; k < run; k += most) {
        t.run = std::min(most, run - k);
        t.w = slab(w + (r * run + k) * lanes, t.runs * t.run * lanes);
        tiles(t, band, band.x + r * row_ + k, out);
        t.add = true;
      }
    if (direct) return;
    for (std::int64_t n = 0; n < band.images; ++n)
      for (std::int64_t i = 0; i < band.rows; ++i)
        copy_rows<float, T>(isa_, static_cast<const float*>(out.at + n * out.walk.image + i * out.walk.row),
                            out.walk.pixel, band.y + n * band.ys.image + i * band.ys.row + o, band.ys.pixel, b_.cols,
                            real, real);
  }

  const float* slab(const T* w, std::int64_t n) {
    if constexpr (is_f32) {
      return w;
    } else {
      copy_rows<T, float>(isa_, w, n, slab_, n, std::int64_t{1}, n, n);
      return slab_;
    }
  }

  template <int B>
  void tiles(Tile<B>& t, const Band& band, const float* x, const Sums& out) {
    std::size_t g = 0;
    // A row's last group may overlap the group before it, unless the tile adds to earlier sums.
    const std::int64_t last = b_.split || b_.cols < group ? b_.cols : b_.cols - group;
    for (std::int64_t n = 0; n < band.images; ++n)
      for (std::int64_t i = 0; i < band.rows; ++i)
        for (std::int64_t q = 0; q < b_.cols; q += group) {
          const std::int64_t j = std::min(q, last);
          t.x[g] = x + n * band.xs.image + i * band.xs.row + j * band.xs.pixel;
          t.out[g] = out.at + n * out.walk.image + i * out.walk.row + j * out.walk.pixel;
          if (++g == t.x.size()) {
            correlate(t);
            g = 0;
          }
        }
    if (g == 0) return;
    for (std::size_t k = g; k < t.x.size(); ++k) {  // repeats the last group: it writes the same sums again
      t.x[k] = t.x[g - 1];
      t.out[k] = t.out[g - 1];
    }
    correlate(t);
  }

  Bands b_;
  const Correlations& all_;
  const Batch<T>& batch_;
  cpu::Isa isa_;
  float *input_, *sums_, *slab_;
  std::int64_t row_ = 0;  // floats between two rows of the input
};

template <class T>
void run(const Correlations& c, const Batch<T>& batch, cpu::Isa isa) {
  if (!c.everywhere)
    std::memset(static_cast<void*>(batch.y), 0,
                static_cast<std::size_t>(batch.n * c.out.h * c.out.w * c.out.c) * sizeof(T));
  for (const Correlation& p : c.parts) Correlator<T>(Bands(c, p, batch.n), c, batch, isa).run();
}

[[nodiscard]] inline std::int64_t scratch_floats(const Correlations& c, std::int64_t n) {
  std::int64_t most = 0;
  for (const Correlation& p : c.parts) most = std::max(most, Bands(c, p, n).floats());
  return most;
}

}  // namespace tutti::eigen
