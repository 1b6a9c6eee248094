// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/backends/onednn/shared.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/norm/norm_kernels.hpp>
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

// The forward pass, and the gradient of the input. If there are fewer rows than threads, each task of the forward pass
// computes some of an image's lines; or, if the weights are larger than the images, some of the output channels of all
// images, so that each weight is read once. The packed weights are the same.
class ConvolutionKernel : public Kernel, public cpu::TakesEnd {
 public:
  void take_end(const cpu::ConvolutionEnd& end) override {
    end_ = end;
    has_end_ = true;
  }
  [[nodiscard]] Partition cut() override {
    if (parts_ == 1) return {Division::rows};
    return {Division::whole, std::max(parts_, cpu::band_tasks(parts_, problem_.x[0], problem_.y[2]))};
  }
  [[nodiscard]] std::size_t packed_bytes() override { return b_.convolutions.layout(problem_, pass_).desc.get_size(); }
  void pack(const TensorRef& w, void* to) override { b_.convolutions.reorder(problem_, pass_, w.data, to); }
  void prepare(const PrepareInfo& i) override {
    pieces_.clear();
    primitives_.clear();
    adds_end_ = has_end_;
    unit_ = size_of(i.desc.compute);
    // oneDNN computes the end without the relu if it can, and otherwise add_end().
    if (has_end_ && !blocked(problem_, pass_) && cut_up(i, true))
      adds_end_ = false;
    else if (!cut_up(i, false))
      fail<DeviceError>("onednn", "a primitive for each number of rows of a convolution", "none");
    if (has_end_) {
      ones_.assign(static_cast<std::size_t>(problem_.y[1]), 1.0F);
      zeros_.assign(static_cast<std::size_t>(problem_.y[1]), 0.0F);
    }
    std::size_t need = 0;
    for (const auto& [key, p] : primitives_)
      if (p != nullptr) need = std::max(need, round_up(p->scratch_bytes()));
    const auto most = static_cast<std::size_t>(*std::max_element(i.chunk_rows.begin(), i.chunk_rows.end()));
    const auto room = [&](const Shape& s) { return round_up(most * static_cast<std::size_t>(s.row_numel()) * unit_); };
    input_offset_ = need;
    output_offset_ = input_offset_ + (blocked(problem_, pass_) ? room(problem_.x) : 0);
    plain_offset_ = output_offset_ + (copies() ? room(problem_.y) : 0);
    residual_offset_ = plain_offset_ + (copies() && blocked(problem_, pass_) ? room(problem_.y) : 0);
    b_.reserve(residual_offset_ + (copies() && has_end_ ? room(problem_.y) : 0));
  }
  void run(Call& c) override {
    if (parts_ == 1) return run_piece(c, {0, c.out[0].shape[0], whole(problem_), nullptr, 0});
    if (static_cast<std::size_t>(c.task) < pieces_.size()) run_piece(c, pieces_[static_cast<std::size_t>(c.task)]);
  }

 protected:
  ConvolutionKernel(Pass pass, const Problem& p, Shared& b, int parts)
      : b_(b), pass_(pass), problem_(p), parts_(parts) {}

 private:
  struct Piece {  // What one task computes.
    std::int64_t first_image, images;
    Part part;
    Primitive* primitive;
    std::size_t weights;  // bytes before the first of its weights
  };
  using Key = std::array<std::int64_t, 5>;  // images; lines of zeros above and below, of y; channels of y

  // Returns whether y and the residual are copied: to another layout, or because a piece has some of the channels.
  [[nodiscard]] bool copies() const {
    return blocked(problem_, pass_) || (!pieces_.empty() && pieces_[0].part.outputs < problem_.y[1]);
  }
  // Whether tasks compute channels.
  [[nodiscard]] bool by_channels() const {
    const Shape &x = problem_.x, &y = problem_.y;
    return y[1] >= 2 * channels_at_once && y[1] % channels_at_once == 0 && problem_.w.numel() > x.numel() + y.numel();
  }

  // Makes the primitives, and in pieces if there are fewer rows than threads. Returns false if oneDNN has none.
  bool cut_up(const PrepareInfo& i, bool ends) {
    pieces_.clear();
    primitives_.clear();
    for (const std::int64_t rows : i.chunk_rows)
      if (find(rows, whole(problem_), i.workers, ends) == nullptr) return false;
    if (parts_ == 1) return true;
    const std::int64_t images = problem_.x[0];
    const std::string_view kind = find(images, whole(problem_), i.workers, ends)->info();
    std::vector<Piece> pieces;
    const auto add = [&](std::int64_t first_image, std::int64_t count, const Part& part) {
      const auto before = b_.convolutions.weights_before(problem_, part);
      Primitive* const p = before ? find(count, part, i.workers, ends) : nullptr;
      // Another kernel could compute other bits.
      if (p == nullptr || p->info() != kind) return false;
      pieces.push_back({first_image, count, part, p, *before});
      return true;
    };
    bool all = true;
    if (by_channels()) {
      const std::int64_t blocks = problem_.y[1] / channels_at_once, tasks = std::min<std::int64_t>(parts_, blocks);
      for (std::int64_t t = 0; t < tasks && all; ++t) {
        const std::int64_t first = blocks * t / tasks * channels_at_once;
        all = add(0, images, {0, problem_.y[2], first, blocks * (t + 1) / tasks * channels_at_once - first});
      }
    }
    if (pieces.empty() || !all) {
      pieces.clear();
      all = !blocked(problem_, pass_);
      const int tasks = cpu::band_tasks(parts_, images, problem_.y[2]);
      for (int t = 0; t < tasks && all; ++t) {
        const cpu::Band b = cpu::band_of(t, tasks, images, problem_.y[2]);
        all = add(b.image, 1, {b.first, b.end, 0, problem_.y[1]});
      }
    }
    if (pieces.empty() || !all) {
      pieces.clear();
      add(0, images, whole(problem_));
    }
    pieces_ = std::move(pieces);
    return true;
  }

  [[nodiscard]] Key key_of(std::int64_t images, const Part& part) const {
    const InputLines in = input_lines(problem_, part);
    return {images, in.above, in.below, part.lines(), part.outputs};
  }
  // Returns the primitive for a part, which it makes at the first call; null if oneDNN has none.
  Primitive* find(std::int64_t images, const Part& part, int workers, bool ends) {
    auto& p = primitives_[key_of(images, part)];
    if (p == nullptr)
      p = part.outputs == problem_.y[1] && part.lines() == problem_.y[2] && !ends
              ? b_.convolutions.make(problem_, pass_, images, workers)
              : b_.convolutions.make_part(problem_, part, images, workers, ends, ends && end_.residual);
    return p.get();
  }

  void run_piece(const Call& c, const Piece& piece) {
    std::byte* const room = b_.scratch(c.worker);
    const Part& part = piece.part;
    const Shape &xs = c.in[0].shape, &ys = c.out[0].shape;
    const auto at = [&](const TensorRef& t, const Shape& s, std::int64_t line) {
      return static_cast<std::byte*>(t.data) +
             static_cast<std::size_t>(((piece.first_image * s[2] + line) * s[3]) * s[1]) * unit_;
    };
    const std::int64_t pixels = piece.images * part.lines() * ys[3];
    std::byte* x = at(c.in[0], xs, pass_ == Pass::forward ? input_lines(problem_, part).first : 0);
    std::byte *const out = at(c.out[0], ys, part.first_line), *y = out;
    std::byte* residual = has_end_ && end_.residual ? at(c.in[3], ys, part.first_line) : nullptr;
    const bool in_blocks = blocked(problem_, pass_), some = piece.primitive != nullptr && part.outputs < ys[1];
    if (in_blocks) {
      to_blocks(x, room + input_offset_, xs, piece.images, unit_, false);
      x = room + input_offset_;
    }
    if (in_blocks || some) y = room + output_offset_;
    if (residual != nullptr && !adds_end_) {
      // The primitive adds to what it finds in y.
      copy_channels(residual, ys[1], part.first, y, part.outputs, 0, part.outputs, pixels);
    } else if (some && residual != nullptr) {
      copy_channels(residual, ys[1], part.first, room + residual_offset_, part.outputs, 0, part.outputs, pixels);
      residual = room + residual_offset_;
    }
    float* const bias = has_end_ ? c.in[2].as<float>() + part.first : nullptr;
    Primitive& p =
        piece.primitive != nullptr ? *piece.primitive : *primitives_.find(key_of(piece.images, part))->second;
    const std::array<void*, 4> data{x, static_cast<std::byte*>(c.in[1].data) + piece.weights, y, bias};
    p.run(c.worker, data, room);
    if (in_blocks) {
      std::byte* const plain = some ? room + plain_offset_ : out;
      to_blocks(y, plain, {1, part.outputs, ys[2], ys[3]}, piece.images, unit_, true);
      y = plain;
    }
    if (adds_end_)
      add_end(c.out[0].dtype, y, residual, bias, pixels, part.outputs);
    else if (end_.relu)
      add_end(c.out[0].dtype, y, nullptr, zeros_.data(), pixels, part.outputs);  // the relu alone
    if (some) copy_channels(y, part.outputs, 0, out, ys[1], part.first, part.outputs, pixels);
  }
  // Copies `count` channels of each pixel, from channel a of arrays with n channels to channel b of arrays with m.
  void copy_channels(const std::byte* from, std::int64_t n, std::int64_t a, std::byte* to, std::int64_t m,
                     std::int64_t b, std::int64_t count, std::int64_t pixels) const {
    if (n == count && m == count) {
      std::memcpy(to, from, static_cast<std::size_t>(count * pixels) * unit_);
      return;
    }
    const auto bytes = [&](std::int64_t channels) { return static_cast<std::size_t>(channels) * unit_; };
    for (std::int64_t i = 0; i < pixels; ++i) std::memcpy(to + bytes(i * m + b), from + bytes(i * n + a), bytes(count));
  }
  void add_end(DType type, std::byte* y, const std::byte* residual, const float* bias, std::int64_t pixels,
               std::int64_t channels) {
    float_type(type, [&](auto t) {
      using T = decltype(t);
      T* const to = reinterpret_cast<T*>(y);
      cpu::norm_apply<T>(b_.isa, static_cast<const T*>(to), reinterpret_cast<const T*>(residual), to, pixels, channels,
                         static_cast<const float*>(ones_.data()), bias, end_.relu);
    });
  }

  static constexpr std::int64_t channels_at_once = 64;  // a multiple of the blocks in oneDNN's layouts of weights

  Shared& b_;
  Pass pass_;
  Problem problem_;
  int parts_;
  cpu::ConvolutionEnd end_;
  bool has_end_ = false, adds_end_ = false;  // adds_end_: oneDNN does not compute the end
  std::size_t unit_ = sizeof(float);
  std::map<Key, std::unique_ptr<Primitive>> primitives_;
  std::vector<Piece> pieces_;        // of the tasks
  std::vector<float> ones_, zeros_;  // factors of norm_apply, and its terms for the relu alone
  // The copies of x, of y in oneDNN's layout and in NHWC, and of the residual.
  std::size_t input_offset_ = 0, output_offset_ = 0, plain_offset_ = 0, residual_offset_ = 0;
};

class Conv2d final : public ConvolutionKernel {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d)
      : ConvolutionKernel(Pass::forward, problem(*std::get_if<For>(&op), d.in[0], d.in[1].shape, d.out[0]), b,
                          d.parts) {}
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
      : ConvolutionKernel(is_product(p) ? Pass::forward : Pass::backward_data, is_product(p) ? transposed(p) : p, b,
                          1) {}

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
