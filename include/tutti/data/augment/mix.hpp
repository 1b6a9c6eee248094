// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <tutti/core/error.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/mixed_label.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/image_box.hpp>
#include <tutti/data/augment/mix_options.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/rank_rows.hpp>

// Mixes the images of a batch in pairs: mixup and cutmix.
namespace tutti {

enum class MixKind : std::uint8_t { none, mixup, cutmix };  // What is done with a batch.

// What was drawn for one batch.
struct MixDraw {
  MixKind kind = MixKind::none;
  double share = 1;  // of an image's own label; its partner's label has the rest
  ImageBox box{};    // of cutmix: the part that comes from the partner; may be empty
  friend bool operator==(const MixDraw&, const MixDraw&) = default;
};

// Throws UsageError for a value out of its range.
inline void check(const BatchMix& m) {
  const auto require = [](bool ok, const char* expected, double got) {
    if (!ok) fail<UsageError>("mixup and cutmix", expected, got);
  };
  for (const double alpha : {m.mixup_alpha, m.cutmix_alpha})
    require(alpha == 0 || (alpha >= 1e-3 && alpha <= 1000), "an alpha of 0 or 0.001 to 1000", alpha);
  require(m.probability >= 0 && m.probability <= 1, "a probability of 0 to 1", m.probability);
  require(m.cutmix_share >= 0 && m.cutmix_share <= 1, "a share of cutmix of 0 to 1", m.cutmix_share);
}

namespace detail {

// Returns a number of the gamma distribution with a shape of 1 or more (Marsaglia and Tsang 2000).
inline double gamma(double shape, Rng& rng) {
  const double d = shape - 1.0 / 3, c = 1 / math::sqrt(9 * d);
  for (;;) {
    const double x = rng.normal(), v = 1 + c * x;
    if (v <= 0) continue;
    const double cube = v * v * v, u = 1 - rng.uniform53();
    if (math::log(u) < 0.5 * x * x + d - d * cube + d * math::log(cube)) return d * cube;
  }
}

// Returns a number of the distribution Beta(alpha, alpha).
inline double symmetric_beta(double alpha, Rng& rng) {
  if (alpha > 1) {
    const double x = gamma(alpha, rng), y = gamma(alpha, rng);
    return x / (x + y);
  }
  for (;;) {  // Jöhnk 1964, in logarithms, because powers of 1/alpha underflow
    const double x = math::log(1 - rng.uniform53()) / alpha, y = math::log(1 - rng.uniform53()) / alpha;
    const double high = std::max(x, y), sum = high + math::log(math::exp(x - high) + math::exp(y - high));
    if (sum <= 0) return math::exp(x - sum);
  }
}

// The pixels [begin, begin + length) of one axis.
struct MixRange {
  int begin, length;
};

}  // namespace detail

// Returns the part of an axis of `size` pixels that cutmix takes from the partner, around a centre, for a share of the
// image's own label before the part is clipped at the border.
[[nodiscard]] inline detail::MixRange cutmix_range(double share, int size, int centre, MixPairs pairs) noexcept {
  const double side = math::sqrt(1 - share);
  const bool timm = pairs == MixPairs::reversed;
  const int cut = static_cast<int>(size * side), half = static_cast<int>(0.5 * side * size);
  const int begin = std::max(0, centre - (timm ? cut / 2 : half));
  return {begin, std::min(size, centre + (timm ? (cut + 1) / 2 : half)) - begin};
}

// Returns what to do with a batch of images of this size. A pure function of its arguments. The share of cutmix is that
// of the pixels that stay, after the part has been clipped at the border.
[[nodiscard]] inline MixDraw draw_mix(const BatchMix& m, int width, int height, Rng& rng) {
  MixDraw draw;
  if (!m.any() || (m.probability < 1 && rng.uniform53() >= m.probability)) return draw;
  const bool both = m.mixup_alpha > 0 && m.cutmix_alpha > 0;
  const bool cut = both ? rng.uniform53() < m.cutmix_share : m.cutmix_alpha > 0;
  draw.kind = cut ? MixKind::cutmix : MixKind::mixup;
  draw.share = detail::symmetric_beta(cut ? m.cutmix_alpha : m.mixup_alpha, rng);
  if (!cut) return draw;
  const auto around = [&](int size) {
    return cutmix_range(draw.share, size, static_cast<int>(rng.below(static_cast<std::uint32_t>(size))), m.pairs);
  };
  const detail::MixRange rows = around(height), columns = around(width);
  draw.box = {rows.begin, columns.begin, rows.length, columns.length};
  draw.share = 1 - static_cast<double>(draw.box.height) * draw.box.width / (static_cast<double>(width) * height);
  return draw;
}

// Returns the row with which a row of a batch is mixed.
[[nodiscard]] constexpr std::size_t mix_partner(std::size_t row, std::size_t rows, MixPairs pairs) noexcept {
  return pairs == MixPairs::reversed ? rows - 1 - row : (row + rows - 1) % rows;
}

namespace detail {

// to = share * to + (1 - share) * from, rounded to nearest; and from = the same the other way round, if `both`. own:
// the share with 16 fractional bits.
struct BlendJob {
  std::uint8_t *to, *from;
  std::size_t bytes;
  std::uint32_t own;
  bool both;
};
template <cpu::Isa I>
TUTTI_INLINE void blend_bytes_body(const BlendJob* job) {
  const std::uint32_t own = job->own, other = 65536 - own;
  constexpr std::size_t tile = 64;
  for (std::size_t at = 0; at < job->bytes; at += tile) {
    std::uint8_t a[tile] = {}, b[tile] = {}, x[tile], y[tile];
    const std::size_t n = std::min(tile, job->bytes - at);
    std::memcpy(a, job->to + at, n);
    std::memcpy(b, job->from + at, n);
    for (std::size_t i = 0; i < tile; ++i) {
      x[i] = static_cast<std::uint8_t>((a[i] * own + b[i] * other + 32768) >> 16);
      y[i] = static_cast<std::uint8_t>((b[i] * own + a[i] * other + 32768) >> 16);
    }
    std::memcpy(job->to + at, x, n);
    if (job->both) std::memcpy(job->from + at, y, n);
  }
}
TUTTI_DEFINE_DISPATCH(blend_bytes, blend_bytes_body);

// Mixes the same piece of all images of a batch: `bytes` bytes, at most mix_piece, from `at` on in each image.
inline constexpr std::size_t mix_piece = 4096;
inline void mix_pieces(const MixDraw& draw, MixPairs pairs, const RankRows& b, std::size_t at, std::size_t bytes,
                       cpu::Isa isa) {
  const std::size_t rows = b.labels.size(), image = b.images.size() / rows;
  const auto own = static_cast<std::uint32_t>(math::llround(draw.share * 65536));
  const auto readable = [&](std::size_t row) { return b.labels[row].first != ignored_label; };
  const auto piece = [&](std::size_t row) { return b.images.data() + row * image + at; };
  // Mixes one image with another, and the other one with it too if `both`.
  const auto mix = [&](std::uint8_t* to, std::uint8_t* from, bool both) {
    if (draw.kind == MixKind::mixup) {
      const BlendJob job{to, from, bytes, own, both};
      blend_bytes<>(isa, &job);
    } else if (both) {
      std::swap_ranges(to, to + bytes, from);
    } else {
      std::memcpy(to, from, bytes);
    }
  };
  if (pairs == MixPairs::reversed) {
    for (std::size_t row = 0; row < rows / 2; ++row)
      if (readable(row) && readable(rows - 1 - row)) mix(piece(row), piece(rows - 1 - row), true);
    return;
  }
  std::uint8_t last[mix_piece];
  std::memcpy(last, piece(rows - 1), bytes);
  for (std::size_t row = rows; row-- > 0;) {
    const std::size_t partner = mix_partner(row, rows, pairs);
    if (readable(row) && readable(partner)) mix(piece(row), row > 0 ? piece(partner) : last, false);
  }
}

}  // namespace detail

// Mixes the images of a batch in place as drawn, and sets their labels. Levels are rounded to nearest. Two images of
// which one was not readable are not mixed with each other.
inline void mix_rows(const MixDraw& draw, MixPairs pairs, RankRows& b, cpu::Isa isa = cpu::detect_isa()) {
  const std::size_t rows = b.labels.size();
  if (rows < 2 || draw.kind == MixKind::none) return;
  const auto pieces = [&](std::size_t at, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += detail::mix_piece)
      detail::mix_pieces(draw, pairs, b, at + done, std::min(detail::mix_piece, bytes - done), isa);
  };
  if (draw.kind == MixKind::mixup) {
    pieces(0, b.images.size() / rows);
  } else {
    const auto channels = static_cast<std::size_t>(b.schema.channels), width = static_cast<std::size_t>(b.schema.width);
    const ImageBox& box = draw.box;
    for (int y = box.top; y < box.top + box.height; ++y)
      pieces((static_cast<std::size_t>(y) * width + static_cast<std::size_t>(box.left)) * channels,
             static_cast<std::size_t>(box.width) * channels);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int32_t own = b.labels[row].first, other = b.labels[mix_partner(row, rows, pairs)].first;
    if (own != ignored_label && other != ignored_label) b.labels[row] = {own, other, static_cast<float>(draw.share)};
  }
}

// Returns a function that draws and mixes, for LoaderOptions::mix and FitRecipe::mix; empty if `m` mixes nothing.
// Throws UsageError for a value out of its range.
[[nodiscard]] inline RowMixer mixer(const BatchMix& m) {
  check(m);
  if (!m.any()) return {};
  return [m](RankRows& rows) {
    const auto width = static_cast<int>(rows.schema.width), height = static_cast<int>(rows.schema.height);
    mix_rows(draw_mix(m, width, height, rows.rng), m.pairs, rows);
  };
}

}  // namespace tutti
