// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: copies batches of images before a step. The kernels only move bytes.
namespace tutti::cuda::kernels {

inline constexpr char input[] = R"cuda(
// The struct of core/image_window.hpp.
struct alignas(16) ImageWindow { int image, top, left; signed char mirror, shift_y, shift_x, unused; };
inline int reflected(int i, int n) { return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i; }
struct Sizes { int height, width, channels, out_height, out_width, reflect; };

// Copies windows[r] of the images [n, height, width, channels], and its label, to row r of the batch. Blocks: x for a
// row, y for a share of its bytes, V at a time. V must divide the bytes of a row and of an image, and both addresses.
template <int V>
__global__ void gather_images(const u8* images, const int* labels, const u8* fill, const ImageWindow* windows, u8* out,
                              int* out_labels, Sizes s) {
  wait_for_earlier_kernels();
  const i64 row = blockIdx.x;
  const ImageWindow w = windows[row];
  const int line = s.out_width * s.channels, bytes = s.out_height * line;
  const u8* const from = images + (i64)w.image * ((i64)s.height * s.width * s.channels);
  u8* const to = out + row * bytes;
  if (blockIdx.y == 0 && threadIdx.x == 0) out_labels[row] = labels[w.image];
  const bool whole = w.top == 0 && w.left == 0 && !w.mirror && w.shift_y == 0 && w.shift_x == 0 &&
                     s.out_height == s.height && s.out_width == s.width;
  const i64 step = (i64)gridDim.y * blockDim.x * V;
  for (i64 i = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * V; i < bytes; i += step) {
    if (whole) {
      store<u8, V>(to + i, load<u8, V>(from + i));
      continue;
    }
    Vec<u8, V> v;
    int y = (int)i / line, x = ((int)i - y * line) / s.channels, c = (int)i - y * line - x * s.channels;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      int sy = w.top + reflected(y + w.shift_y, s.out_height);
      int sx = w.left + reflected((w.mirror ? s.out_width - 1 - x : x) + w.shift_x, s.out_width);
      if (s.reflect) {
        sy = reflected(sy, s.height);
        sx = reflected(sx, s.width);
      }
      const bool inside = (unsigned)sy < (unsigned)s.height && (unsigned)sx < (unsigned)s.width;
      v.v[j] = inside ? from[(sy * s.width + sx) * s.channels + c] : fill[c];
      if (++c == s.channels) {
        c = 0;
        if (++x == s.out_width) {
          x = 0;
          ++y;
        }
      }
    }
    store<u8, V>(to + i, v);
  }
}
)cuda";

}  // namespace tutti::cuda::kernels
