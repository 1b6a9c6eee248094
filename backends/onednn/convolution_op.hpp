// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/backends/onednn/shared.hpp>
#include <tutti/engine/kernel.hpp>

// Convolutions by oneDNN's kernels: the forward pass and the gradient of the input. Weights have the layout that oneDNN
// prefers.
namespace tutti::onednn {

[[nodiscard]] inline Problem problem(const op::Window& o, const TensorDesc& x, const Shape& w, const TensorDesc& y) {
  return {o, x.shape, w, y.shape, x.dtype == DType::bf16};
}

// A primitive for each number of rows.
class Primitives {
 public:
  // Returns the bytes of scratch that the primitives need.
  std::size_t make(Convolutions& c, const Problem& p, Pass pass, const PrepareInfo& i) {
    std::size_t need = 0;
    for (const std::int64_t rows : i.chunk_rows) {
      auto primitive = c.make(p, pass, rows, i.workers);
      need = std::max(need, primitive->scratch_bytes());
      by_rows_[rows] = std::move(primitive);
    }
    return need;
  }
  void run(std::int64_t rows, int worker, const std::array<void*, 3>& data, std::byte* scratch) {
    by_rows_.find(rows)->second->run(worker, data, scratch);
  }

 private:
  std::map<std::int64_t, std::unique_ptr<Primitive>> by_rows_;
};

class ConvolutionKernel : public Kernel {
 public:
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
  [[nodiscard]] std::size_t packed_bytes() override { return b_.convolutions.layout(problem_, pass_).desc.get_size(); }
  void pack(const TensorRef& w, void* to) override { b_.convolutions.reorder(problem_, pass_, w.data, to); }
  void prepare(const PrepareInfo& i) override {
    std::size_t need = primitives_.make(b_.convolutions, problem_, pass_, i);
    if (blocked(problem_, pass_)) {
      const std::int64_t most = *std::max_element(i.chunk_rows.begin(), i.chunk_rows.end());
      const std::size_t unit = size_of(i.desc.compute);
      input_offset_ = round_up(need);
      output_offset_ = input_offset_ + round_up(static_cast<std::size_t>(most * problem_.x.row_numel()) * unit);
      need = output_offset_ + static_cast<std::size_t>(most * problem_.y.row_numel()) * unit;
    }
    b_.reserve(need);
  }
  void run(Call& c) override {
    const std::int64_t rows = c.out[0].shape[0];
    std::byte* const room = b_.scratch(c.worker);
    if (!blocked(problem_, pass_))
      return primitives_.run(rows, c.worker, {c.in[0].data, c.in[1].data, c.out[0].data}, room);
    std::byte *const x = room + input_offset_, *const y = room + output_offset_;
    const std::size_t unit = size_of(c.in[0].dtype);
    to_blocks(static_cast<const std::byte*>(c.in[0].data), x, c.in[0].shape, rows, unit, false);
    primitives_.run(rows, c.worker, {x, c.in[1].data, y}, room);
    to_blocks(y, static_cast<std::byte*>(c.out[0].data), c.out[0].shape, rows, unit, true);
  }

 protected:
  ConvolutionKernel(Pass pass, const Problem& p, Shared& b) : b_(b), pass_(pass), problem_(p) {}

 private:
  Shared& b_;
  Pass pass_;
  Problem problem_;
  Primitives primitives_;
  std::size_t input_offset_ = 0, output_offset_ = 0;  // offsets of the copies in the blocked layout
};

class Conv2d final : public ConvolutionKernel {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d)
      : ConvolutionKernel(Pass::forward, problem(*std::get_if<For>(&op), d.in[0], d.in[1].shape, d.out[0]), b) {}
};

// The gradient of the input of a 1x1 convolution is a 1x1 convolution with the transposed weights. oneDNN's kernels for
// the forward pass are faster than those for the gradient: by a half on 7x7 and 14x14 pixels in f32.
class Conv2dBackwardData final : public ConvolutionKernel {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op& op, Shared& b, const NodeDesc& d)
      : Conv2dBackwardData(problem(*std::get_if<For>(&op), d.out[0], d.in[1].shape, d.in[0]), b) {}

 private:
  Conv2dBackwardData(const Problem& p, Shared& b)
      : ConvolutionKernel(is_product(p) ? Pass::forward : Pass::backward_data, is_product(p) ? transposed(p) : p, b) {}

  [[nodiscard]] static bool is_product(const Problem& p) {
    return p.w[2] * p.w[3] == 1 && p.window.stride == 1 && p.window.padding == 0 && p.w[0] % 16 == 0 &&
           p.w[1] % 16 == 0;
  }
  [[nodiscard]] static Problem transposed(Problem p) {
    std::swap(p.x, p.y);
    std::swap(p.w[0], p.w[1]);
    p.transposed = true;
    return p;
  }
};

}  // namespace tutti::onednn
