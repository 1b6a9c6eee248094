// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/ops/update_ops.hpp>
#include <tutti/optim/update.hpp>
#include <tutti/tensor/memory.hpp>

// Muon's step of one matrix by tutti's kernels, for both ends of a step.
namespace tutti::cuda {

// kernels/muon.hpp
struct MuonNumbers {
  float momentum, a, b, c, scale, eps, norm_factor;
  std::int32_t nesterov, limit_eps, normalize, half;  // normalize: 2 if the decay follows
};
struct MuonMatrix {
  std::int32_t rows, cols;
};
[[nodiscard]] inline MuonNumbers muon_numbers(const MuonUpdate& o, const UpdateCall& u) {
  const bool sparse = o.normalize && o.sparse_steps > 0;
  const double kept = sparse ? 1 - u.lr * u.weight_decay : 1;
  return {static_cast<float>(o.momentum),
          static_cast<float>(o.a),
          static_cast<float>(o.b),
          static_cast<float>(o.c),
          static_cast<float>(o.scale_of(static_cast<double>(u.rows), static_cast<double>(u.cols)) * kept),
          static_cast<float>(o.eps),
          static_cast<float>(o.norm_factor(u.step)),
          o.nesterov ? 1 : 0,
          o.limit_eps ? 1 : 0,
          !o.normalizes(u.step) ? 0
          : sparse              ? 2
                                : 1,
          o.bf16 ? 1 : 0};
}

// Memory for the matrices of a step: x, the next x, x x' and its polynomial.
class MuonRoom {
 public:
  // Grows to matrices of rows x cols. The stream must not use the memory.
  void reserve(DeviceMemory& memory, std::size_t rows, std::size_t cols) {
    numbers_ = std::max(numbers_, rows * cols);
    square_ = std::max(square_, std::min(rows, cols) * std::min(rows, cols));
    const std::size_t bytes = 2 * (numbers_ + square_) * sizeof(float);
    if (room_.bytes() < bytes) room_ = Buffer(memory, bytes);
  }

  // weights, gradients, momentum: of u.rows x u.cols. sums: of squared_norms_bytes. state, run: on the device, or null:
  // the numbers are those of u.
  void step(Launcher& l, const MuonUpdate& o, const UpdateCall& u, double* sums, const void* state, const void* run) {
    const auto n = static_cast<std::int64_t>(u.rows * u.cols), r = static_cast<std::int64_t>(std::min(u.rows, u.cols)),
               c = static_cast<std::int64_t>(std::max(u.rows, u.cols));
    const MuonNumbers numbers = muon_numbers(o, u);
    const MuonMatrix matrix{static_cast<std::int32_t>(u.rows), static_cast<std::int32_t>(u.cols)};
    auto* x = static_cast<float*>(room_.data());
    float* next = x + numbers_;
    float *const gram = next + numbers_, *const polynomial = gram + square_;
    double* const partial = sums + 2;
    const std::int64_t blocks = blocks_of_norms(n);
    l.update(UpdateKernel::muon_momentum, dim3(static_cast<unsigned>(blocks)), Launcher::block, u.weights, u.gradients,
             u.slots[0], x, matrix, update_numbers(u), numbers, state, run, partial);
    l.update(UpdateKernel::squared_norms_finish, dim3(1), Launcher::block, partial, static_cast<int>(blocks), sums);
    l.update(UpdateKernel::muon_scale, l.blocks(n), Launcher::block, x, n, sums, numbers);
    const auto product = [&](const float* a, const float* b, const float* add, float* to, std::int64_t rows,
                             std::int64_t depth, std::int64_t cols, bool turned, double alpha, double beta) {
      const std::int64_t tiles = (rows + 15) / 16 * ((cols + 15) / 16);
      l.update(UpdateKernel::muon_product, dim3(static_cast<unsigned>(tiles)), Launcher::block, a, b, add, to,
               static_cast<int>(rows), static_cast<int>(depth), static_cast<int>(cols), turned ? 1 : 0,
               static_cast<float>(alpha), static_cast<float>(beta), o.bf16 ? 1 : 0);
    };
    for (int i = 0; i < o.steps; ++i) {
      product(x, x, nullptr, gram, r, c, r, true, 1, 0);
      product(gram, gram, gram, polynomial, r, r, r, false, o.c, o.b);
      product(polynomial, x, x, next, r, r, c, false, 1, o.a);
      std::swap(x, next);
    }
    l.update(UpdateKernel::muon_step, l.blocks(n), Launcher::block, u.weights, x, matrix, update_numbers(u), numbers,
             state, run, sums);
  }

 private:
  Buffer room_;
  std::size_t numbers_ = 0, square_ = 0;
};

}  // namespace tutti::cuda
