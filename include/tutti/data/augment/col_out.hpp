// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/col_out_options.hpp>
#include <tutti/data/dataset.hpp>

// Leaves out rows and columns of the images of a batch. The loader uses it (LoaderOptions::col_out).
namespace tutti {

// Neighbouring rows or columns that stay.
struct KeptRange {
  std::int32_t begin = 0, length = 0;
  friend bool operator==(const KeptRange&, const KeptRange&) = default;
};

// The rows and columns of the images of one batch that stay, in rising order.
struct ColOutDraw {
  std::vector<KeptRange> rows, columns;
};

// Throws UsageError for a share out of its range, and if nothing of an image of this schema would stay.
inline void check(const ColOut& c, const Schema& images) {
  for (const double share : {c.rows, c.columns})
    if (!(share >= 0 && share <= 0.9)) fail<UsageError>("ColOut", "shares of rows and columns of 0 to 0.9", share);
  if (ColOut::kept(images.height, c.rows) < 1 || ColOut::kept(images.width, c.columns) < 1)
    fail<UsageError>("ColOut", "images of which a row and a column stay", {images.height, "x", images.width});
}

// Returns the schema of the images of which rows and columns are left out.
[[nodiscard]] inline Schema smaller(const ColOut& c, Schema images) {
  images.height = ColOut::kept(images.height, c.rows);
  images.width = ColOut::kept(images.width, c.columns);
  return images;
}

// Draws `kept` of `size` rows or columns; each choice is equally likely (selection sampling, Knuth 1969, volume 2,
// 3.4.2). Takes no random numbers if all of them stay.
inline void draw_kept(std::int64_t size, std::int64_t kept, Rng& rng, std::vector<KeptRange>& to) {
  to.clear();
  const auto n = static_cast<std::int32_t>(size);
  if (kept == size) return to.push_back({0, n});
  auto left = static_cast<std::uint32_t>(kept);
  for (std::int32_t i = 0; i < n && left > 0; ++i) {
    if (rng.below(static_cast<std::uint32_t>(n - i)) >= left) continue;
    --left;
    if (!to.empty() && to.back().begin + to.back().length == i)
      ++to.back().length;
    else
      to.push_back({i, 1});
  }
}

// Draws the rows and columns of a batch. `images` is the schema before they are left out.
inline void draw_col_out(const ColOut& c, const Schema& images, Rng& rng, ColOutDraw& to) {
  draw_kept(images.height, ColOut::kept(images.height, c.rows), rng, to.rows);
  draw_kept(images.width, ColOut::kept(images.width, c.columns), rng, to.columns);
}

// Copies what stays of an image to `to`, which may be the image's own memory or lie before it. images: the schema of
// `from`.
inline void leave_out(const ColOutDraw& draw, const Schema& images, const std::uint8_t* from, std::uint8_t* to) {
  const auto channels = static_cast<std::size_t>(images.channels), width = static_cast<std::size_t>(images.width);
  for (const KeptRange& rows : draw.rows)
    for (std::int32_t y = rows.begin; y < rows.begin + rows.length; ++y)
      for (const KeptRange& columns : draw.columns) {
        const std::size_t bytes = static_cast<std::size_t>(columns.length) * channels;
        const std::size_t at = static_cast<std::size_t>(y) * width + static_cast<std::size_t>(columns.begin);
        std::memmove(to, from + at * channels, bytes);
        to += bytes;
      }
}

}  // namespace tutti
