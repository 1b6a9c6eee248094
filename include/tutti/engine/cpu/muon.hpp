// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <tutti/core/float/bf16.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/cpu/simd.hpp>
#include <tutti/optim/update.hpp>

// Muon's step of a matrix on the processor. Every number is computed by one task in a fixed order, so the result does
// not depend on the number of threads.
namespace tutti::cpu {

// to = alpha * x * y + beta * add, with `depth` products for each number. y is in panels: 32 columns of all its rows,
// one after the other. x, add and to are row-major. All sizes are multiples of 32; gaps are zero.
struct MuonProduct {
  const float *x, *y, *add;
  float* to;
  std::size_t rows, depth, x_stride, stride;
  float alpha, beta;
  bool round;  // to bf16
};

// Computes the 32 columns of one panel.
namespace detail {
// Fills a register with *p. Compilers use an instruction for each number if they see only broadcast().
template <Isa I>
TUTTI_INLINE void repeat(F<I>& to, const float* p) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (I != Isa::baseline) {
    asm("vbroadcastss %1, %0" : "=v"(to) : "m"(*p));
    return;
  }
#endif
  broadcast<I>(to, *p);
}
}  // namespace detail

template <Isa I>
TUTTI_INLINE void muon_product_body(const MuonProduct* p, std::size_t panel) {
  constexpr int lanes = lanes_of<I>, width = 2, rows = lanes == 16 ? 8 : 4;
  for (std::size_t j = 0; j < 32; j += width * lanes)
    for (std::size_t i = 0; i < p->rows; i += rows) {
      F<I> sum[rows][width];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < width; ++c) sum[r][c] = F<I>{};
      const float *x = p->x + i * p->x_stride, *y = p->y + panel * p->depth * 32 + j;
      for (std::size_t k = 0; k < p->depth; ++k, y += 32) {
        F<I> v[width];
#pragma GCC unroll 2
        for (int c = 0; c < width; ++c) load<I>(v[c], y + c * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
          F<I> f;
          detail::repeat<I>(f, x + static_cast<std::size_t>(r) * p->x_stride + k);
#pragma GCC unroll 2
          for (int c = 0; c < width; ++c) sum[r][c] += f * v[c];
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < width; ++c) {
          const std::size_t at =
              (i + static_cast<std::size_t>(r)) * p->stride + panel * 32 + j + static_cast<std::size_t>(c * lanes);
          F<I> s = sum[r][c] * p->alpha;
          if (p->add != nullptr) {
            F<I> more;
            load<I>(more, p->add + at);
            s += more * p->beta;
          }
          store<I>(p->to + at, s);
        }
    }
  if (!p->round) return;
  for (std::size_t i = 0; i < p->rows; ++i)
    for (std::size_t j = panel * 32; j < panel * 32 + 32; ++j)
      p->to[i * p->stride + j] = bf16(p->to[i * p->stride + j]);
}
TUTTI_DEFINE_DISPATCH(muon_product, muon_product_body);
TUTTI_CORE_INSTANCE(template void muon_product<>(Isa, const MuonProduct*, std::size_t));

// Memory for Muon's matrices, which lie with the longer side as columns. It grows to the largest one.
class MuonRoom {
 public:
  using Parallel = FunctionRef<void(int tasks, FunctionRef<void(int task, int worker)>)>;
  // Takes a step of the matrix that u describes, or a part of it (UpdateCall::orthogonal).
  void step(Isa isa, Parallel parallel, const MuonUpdate& o, const UpdateCall& u);

 private:
  // Updates the momentum, unless only X is computed, and writes the direction, still as u's matrix. Returns the sums of
  // squares of weights and direction.
  SquaredNorms direction(Parallel parallel, const MuonUpdate& o, const UpdateCall& u);
  // Writes the orthogonal matrix X of the direction as u's matrix. squares: the direction's sum of squares.
  void orthogonalise(Isa isa, Parallel parallel, const MuonUpdate& o, const UpdateCall& u, double squares,
                     float* result);

  // Calls f for strips of 32 rows.
  static void strips(Parallel parallel, std::size_t rows, FunctionRef<void(std::size_t begin, std::size_t end)> f);

  std::vector<float> flat_, x_, next_, panels_, gram_, polynomial_;
  std::vector<SquaredNorms> sums_;
};

#if TUTTI_CORE_DEFINITIONS

namespace detail {
// Copies rows of a matrix, multiplied by f, into a matrix with rows of `stride` numbers, transposed if `turned`.
inline void muon_copy(float* to, std::size_t stride, const float* from, std::size_t begin, std::size_t end,
                      std::size_t cols, bool turned, float f, bool round) {
  for (std::size_t i = begin; i < end; ++i)
    for (std::size_t j = 0; j < cols; ++j) {
      float v = from[i * cols + j] * f;
      if (round) v = bf16(v);
      to[turned ? j * stride + i : i * stride + j] = v;
    }
}
}  // namespace detail

TUTTI_CORE_FUNCTION void MuonRoom::strips(Parallel parallel, std::size_t rows,
                                          FunctionRef<void(std::size_t begin, std::size_t end)> f) {
  constexpr std::size_t tile = 32;
  parallel(static_cast<int>((rows + tile - 1) / tile), [&](int t, int) {
    const std::size_t begin = static_cast<std::size_t>(t) * tile;
    f(begin, std::min(begin + tile, rows));
  });
}

TUTTI_CORE_FUNCTION SquaredNorms MuonRoom::direction(Parallel parallel, const MuonUpdate& o, const UpdateCall& u) {
  constexpr std::size_t block = 16 * 1024;
  const std::size_t n = u.rows * u.cols, blocks = (n + block - 1) / block;
  flat_.resize(std::max(flat_.size(), n));
  sums_.resize(std::max(sums_.size(), blocks));
  const auto momentum = static_cast<float>(o.momentum), scale = static_cast<float>(u.factor * u.gradient_scale);
  parallel(static_cast<int>(blocks), [&](int t, int) {
    const float *w = static_cast<const float*>(u.weights), *g = static_cast<const float*>(u.gradients);
    auto* a = static_cast<float*>(u.slots[0]);
    SquaredNorms s;
    const std::size_t begin = static_cast<std::size_t>(t) * block;
    for (std::size_t i = begin; i < std::min(begin + block, n); ++i) {
      const float grad = scale * g[i], acc = momentum * a[i] + grad;
      if (!u.only_orthogonal) a[i] = acc;
      float d = o.nesterov ? grad + momentum * acc : acc;
      if (o.bf16) d = bf16(d);
      flat_[i] = d;
      s.weights += static_cast<double>(w[i]) * static_cast<double>(w[i]);
      s.gradients += static_cast<double>(d) * static_cast<double>(d);
    }
    sums_[static_cast<std::size_t>(t)] = s;
  });
  SquaredNorms sum;
  for (std::size_t i = 0; i < blocks; ++i) {
    sum.weights += sums_[i].weights;
    sum.gradients += sums_[i].gradients;
  }
  return sum;
}

TUTTI_CORE_FUNCTION void MuonRoom::orthogonalise(Isa isa, Parallel parallel, const MuonUpdate& o, const UpdateCall& u,
                                                 double squares, float* result) {
  const bool turned = u.rows > u.cols;
  const std::size_t r = std::min(u.rows, u.cols), c = std::max(u.rows, u.cols), tile = 32;
  // The gaps at the ends of rows and columns are zero and stay zero.
  const std::size_t rows = (r + tile - 1) / tile * tile, cols = (c + tile - 1) / tile * tile;
  x_.assign(rows * cols, 0.0F);
  next_.assign(rows * cols, 0.0F);
  panels_.assign(rows * cols, 0.0F);
  gram_.assign(rows * rows, 0.0F);
  polynomial_.assign(rows * rows, 0.0F);
  // Multiplies by a matrix of depth x columns, or by the transpose of one.
  const auto product = [&](MuonProduct p, const float* y, std::size_t y_stride, bool transposed, std::size_t columns) {
    p.y = panels_.data();
    parallel(static_cast<int>(columns / tile), [&](int t, int) {
      const auto panel = static_cast<std::size_t>(t);
      float* const to = panels_.data() + panel * p.depth * tile;
      for (std::size_t i = 0; i < (transposed ? tile : p.depth); ++i)
        for (std::size_t j = 0; j < (transposed ? p.depth : tile); ++j)
          to[transposed ? j * tile + i : i * tile + j] =
              y[(transposed ? panel * tile + i : i) * y_stride + (transposed ? j : panel * tile + j)];
      muon_product(isa, &p, panel);
    });
  };
  const auto inverse = static_cast<float>(o.inverse_norm(squares, u.step));
  strips(parallel, u.rows, [&](std::size_t begin, std::size_t end) {
    detail::muon_copy(x_.data(), cols, flat_.data(), begin, end, u.cols, turned, inverse, o.bf16);
  });
  const auto a = static_cast<float>(o.a), b = static_cast<float>(o.b), k = static_cast<float>(o.c);
  for (int step = 0; step < o.steps; ++step) {
    product({x_.data(), nullptr, nullptr, gram_.data(), rows, cols, cols, rows, 1, 0, o.bf16}, x_.data(), cols, true,
            rows);
    product({gram_.data(), nullptr, gram_.data(), polynomial_.data(), rows, rows, rows, rows, k, b, o.bf16},
            gram_.data(), rows, false, rows);
    product({polynomial_.data(), nullptr, x_.data(), next_.data(), rows, rows, rows, cols, 1, a, o.bf16}, x_.data(),
            cols, false, cols);
    x_.swap(next_);
  }
  strips(parallel, u.rows, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t j = 0; j < u.cols; ++j) result[i * u.cols + j] = x_[turned ? j * cols + i : i * cols + j];
  });
}

TUTTI_CORE_FUNCTION void MuonRoom::step(Isa isa, Parallel parallel, const MuonUpdate& o, const UpdateCall& u) {
  const SquaredNorms norms = direction(parallel, o, u);
  auto* const given = static_cast<float*>(u.orthogonal);
  if (u.only_orthogonal) return orthogonalise(isa, parallel, o, u, norms.gradients, given);
  if (given == nullptr) orthogonalise(isa, parallel, o, u, norms.gradients, flat_.data());
  const auto height = static_cast<double>(u.rows), width = static_cast<double>(u.cols);
  const auto keep = static_cast<float>(o.keep(height, norms.weights, u.lr, u.weight_decay, u.step));
  const auto rate = static_cast<float>(o.rate(height, width, u.lr, u.weight_decay));
  auto* const w = static_cast<float*>(u.weights);
  // One loop for both sources, so that both have the same bits.
  const float* const x = given != nullptr ? given : flat_.data();
  strips(parallel, u.rows, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin * u.cols; i < end * u.cols; ++i) w[i] = w[i] * keep - rate * x[i];
  });
}
#endif

}  // namespace tutti::cpu
