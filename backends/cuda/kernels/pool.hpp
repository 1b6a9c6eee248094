// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: pooling, NHWC. Each thread processes V channels of a pixel. V must divide the channels.
namespace tutti::cuda::kernels {

inline constexpr char pool[] = R"cuda(
// x [n, height, width, channels] -> y [n, out_h, out_w, channels] and the position in the window.
struct Pool {
  int height, width, channels, out_h, out_w, kernel_h, kernel_w, stride, padding;
};

// The image, row, column and first channel of vector k of an array [n, height, width, groups * V].
struct Place {
  i64 image;
  int row, column, channel;
};
template <int V>
inline Place place_of(i64 k, int groups, int height, int width) {
  const i64 pixel = quotient(k, groups), line = quotient(pixel, width), image = quotient(line, height);
  return {image, (int)(line - image * height), (int)(pixel - line * width), (int)(k - pixel * groups) * V};
}

template <class T, int V>
__global__ void max_pool(const T* x, T* y, u8* which, Pool p, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = p.channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const auto [image, row, q, c] = place_of<V>(k, groups, p.out_h, p.out_w);
    float best[V];
    int place[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      best[j] = 0;
      place[j] = -1;
    }
    for (int i = 0; i < p.kernel_h; ++i) {
      const int h = row * p.stride - p.padding + i;
      if (h < 0 || h >= p.height) continue;
      for (int l = 0; l < p.kernel_w; ++l) {
        const int w = q * p.stride - p.padding + l;
        if (w < 0 || w >= p.width) continue;
        float f[V];
        load_floats<T, V>(x + ((image * p.height + h) * p.width + w) * p.channels + c, f);
        #pragma unroll
        for (int j = 0; j < V; ++j)
          // A NaN counts as the maximum, so that it is kept.
          if (place[j] < 0 || f[j] > best[j] || f[j] != f[j]) {
            best[j] = f[j];
            place[j] = i * p.kernel_w + l;
          }
      }
    }
    store_floats<T, V>(y + k * V, best);
    Vec<u8, V> w;
    #pragma unroll
    for (int j = 0; j < V; ++j) w.v[j] = (u8)place[j];
    store<u8, V>(which + k * V, w);
  }
}

template <class T, int V>
__global__ void max_pool_backward(const T* dy, const u8* which, T* dx, Pool p, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = p.channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const auto [image, h, w, c] = place_of<V>(k, groups, p.height, p.width);
    // The windows that contain the pixel: if the pixel is at row i of a window, the window's row is (h + padding - i) /
    // stride, which must be an integer.
    const int low = (h + p.padding) / p.stride, left = (w + p.padding) / p.stride;
    float sum[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int i = h + p.padding - low * p.stride, row = low; i < p.kernel_h; i += p.stride, --row) {
      if (row < 0 || row >= p.out_h) continue;
      for (int l = w + p.padding - left * p.stride, q = left; l < p.kernel_w; l += p.stride, --q) {
        if (q < 0 || q >= p.out_w) continue;
        const i64 at = ((image * p.out_h + row) * p.out_w + q) * p.channels + c;
        const Vec<u8, V> place = load<u8, V>(which + at);
        float f[V];
        load_floats<T, V>(dy + at, f);
        #pragma unroll
        for (int j = 0; j < V; ++j)
          if (place.v[j] == i * p.kernel_w + l) sum[j] += f[j];
      }
    }
    store_floats<T, V>(dx + k * V, sum);
  }
}

// The number of pixels of a window in an image's rows or columns.
inline int inside(int at, int kernel, int stride, int padding, int extent) {
  const int first = at * stride - padding, end = first + kernel;
  return (end < extent ? end : extent) - (first > 0 ? first : 0);
}
inline float share(const Pool& p, bool count_padding, int row, int q) {
  const int pixels = count_padding ? p.kernel_h * p.kernel_w
                                   : inside(row, p.kernel_h, p.stride, p.padding, p.height) *
                                         inside(q, p.kernel_w, p.stride, p.padding, p.width);
  return 1.0f / (float)pixels;
}
// The mean over a window. count_padding: the zeros of the padding count.
template <class T, int V>
__global__ void window_average(const T* x, T* y, Pool p, int count_padding, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = p.channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const auto [image, row, q, c] = place_of<V>(k, groups, p.out_h, p.out_w);
    float sum[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int i = 0; i < p.kernel_h; ++i) {
      const int h = row * p.stride - p.padding + i;
      if (h < 0 || h >= p.height) continue;
      for (int l = 0; l < p.kernel_w; ++l) {
        const int w = q * p.stride - p.padding + l;
        if (w < 0 || w >= p.width) continue;
        float f[V];
        load_floats<T, V>(x + ((image * p.height + h) * p.width + w) * p.channels + c, f);
        #pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += f[j];
      }
    }
    const float each = share(p, count_padding != 0, row, q);
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] *= each;
    store_floats<T, V>(y + k * V, sum);
  }
}
template <class T, int V>
__global__ void window_average_backward(const T* dy, T* dx, Pool p, int count_padding, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = p.channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const auto [image, h, w, c] = place_of<V>(k, groups, p.height, p.width);
    const int low = (h + p.padding) / p.stride, left = (w + p.padding) / p.stride;
    float sum[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = 0;
    for (int i = h + p.padding - low * p.stride, row = low; i < p.kernel_h; i += p.stride, --row) {
      if (row < 0 || row >= p.out_h) continue;
      for (int l = w + p.padding - left * p.stride, q = left; l < p.kernel_w; l += p.stride, --q) {
        if (q < 0 || q >= p.out_w) continue;
        const float each = share(p, count_padding != 0, row, q);
        float f[V];
        load_floats<T, V>(dy + ((image * p.out_h + row) * p.out_w + q) * p.channels + c, f);
        #pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += f[j] * each;
      }
    }
    store_floats<T, V>(dx + k * V, sum);
  }
}

// x [n, pixels, channels] -> y [n, channels]
template <class T, int V>
__global__ void average_pool(const T* x, T* y, int channels, int pixels, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const i64 image = quotient(k, groups);
    const int c = (int)(k - image * groups) * V;
    float sum[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = 0;
    #pragma unroll 4
    for (int i = 0; i < pixels; ++i) {
      float f[V];
      load_floats<T, V>(x + (image * pixels + i) * channels + c, f);
      #pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += f[j];
    }
    #pragma unroll
    for (int j = 0; j < V; ++j) sum[j] /= (float)pixels;
    store_floats<T, V>(y + k * V, sum);
  }
}
template <class T, int V>
__global__ void average_pool_backward(const T* dy, T* dx, int channels, int pixels, i64 vectors) {
  wait_for_earlier_kernels();
  const int groups = channels / V;
  for (i64 k = first_index(); k < vectors; k += index_step()) {
    const i64 pixel = quotient(k, groups), image = quotient(pixel, pixels);
    float f[V];
    load_floats<T, V>(dy + image * channels + (int)(k - pixel * groups) * V, f);
    #pragma unroll
    for (int j = 0; j < V; ++j) f[j] /= (float)pixels;
    store_floats<T, V>(dx + k * V, f);
  }
}
)cuda";

}  // namespace tutti::cuda::kernels
