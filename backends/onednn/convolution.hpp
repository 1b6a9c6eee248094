// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/onednn/primitive.hpp>
#include <tutti/backends/onednn/shim.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/call.hpp>

// Convolutions as oneDNN primitives. There is one for each number of rows, created before the first step.
namespace tutti::onednn {

enum class Pass : std::uint8_t { forward, backward_data, backward_weights };

// The shapes of one convolution. Its packed weights have the layout that oneDNN prefers for it.
struct Problem {
  op::Window window;
  Shape x, w, y;  // x and y with all rows of the plan; key() leaves rows out
  bool bf16 = false;
  bool transposed = false;  // the master weights are [inputs, outputs, 1, 1] of this convolution

  // Identifies the convolution, for any number of rows.
  using Key = std::array<std::int64_t, 17>;
  [[nodiscard]] Key key(Pass p) const noexcept {
    return {static_cast<int>(p),
            bf16 ? 1 : 0,
            transposed ? 1 : 0,
            x[1],
            x[2],
            x[3],
            w[0],
            w[1],
            w[2],
            w[3],
            y[1],
            y[2],
            y[3],
            window.kernel_h,
            window.kernel_w,
            window.stride,
            window.padding};
  }
};

// Returns whether the operands are copied to oneDNN's blocked layout and back. On the small images of the last stage
// the copies are little work, and oneDNN's forward kernel for NHWC is slow (123 against 226 GFLOP/s in f32, 327 against
// 584 in bf16).
inline bool blocked(const Problem& p, Pass pass) {
  return pass == Pass::forward && p.y[2] * p.y[3] <= 16 && p.x[1] >= 128 && p.x[1] % 16 == 0 && p.y[1] % 16 == 0 &&
         has_blocks_of_16();
}

inline Desc activation(const Shape& s, std::int64_t rows, bool bf16, bool in_blocks = false) {
  using M = dnnl::memory;
  return {{rows, s[1], s[2], s[3]},
          bf16 ? M::data_type::bf16 : M::data_type::f32,
          in_blocks ? M::format_tag::nChw16c : M::format_tag::nhwc};
}
inline Desc weights(const Shape& s, bool bf16, dnnl::memory::format_tag tag) {
  using M = dnnl::memory;
  return {{s[0], s[1], s[2], s[3]}, bf16 ? M::data_type::bf16 : M::data_type::f32, tag};
}

inline Geometry geometry(const Problem& p) {
  const auto trailing = [&](std::int64_t in, std::int64_t out, int kernel) {
    return (out - 1) * p.window.stride + kernel - in - p.window.padding;
  };
  return {{p.window.stride, p.window.stride},
          {p.window.padding, p.window.padding},
          {trailing(p.x[2], p.y[2], p.window.kernel_h), trailing(p.x[3], p.y[3], p.window.kernel_w)}};
}

// Returns whether oneDNN has chosen its scalar kernel, which is 200 times slower. info: the name of its kernel.
[[nodiscard]] inline bool is_scalar(std::string_view info) { return info.find("ref") != std::string_view::npos; }

// Returns whether oneDNN has a kernel for a usual convolution on this processor, other than its scalar one.
[[nodiscard]] inline bool has_fast_convolution() try {
  const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  const Desc x = activation({1, 64, 8, 8}, 1, false);
  const auto pd =
      forward_desc(cpu, x, weights({64, 64, 1, 1}, false, dnnl::memory::format_tag::any), x, {{1, 1}, {0, 0}, {0, 0}});
  return pd && !is_scalar(pd.impl_info_str());
} catch (const dnnl::error&) {
  return false;
}

// A part of a forward convolution: some lines of its output, or some of its output channels.
struct Part {
  std::int64_t first_line = 0, end_line = 0, first = 0, outputs = 0;

  [[nodiscard]] std::int64_t lines() const { return end_line - first_line; }
};
[[nodiscard]] inline Part whole(const Problem& p) { return {0, p.y[2], 0, p.y[1]}; }
// The lines of the input that it reads: first <= line < end; the lines of zeros above them and below.
struct InputLines {
  std::int64_t first, end, above, below;
};
[[nodiscard]] inline InputLines input_lines(const Problem& p, const Part& part) {
  const std::int64_t low = part.first_line * p.window.stride - p.window.padding;
  const std::int64_t high = (part.end_line - 1) * p.window.stride - p.window.padding + p.window.kernel_h;
  const std::int64_t first = std::max<std::int64_t>(low, 0), end = std::min(high, p.x[2]);
  return {first, end, first - low, high - end};
}

// Converts rows of a batch from NHWC to channels in blocks of 16, or back.
inline void to_blocks(const std::byte* from, std::byte* to, const Shape& s, std::int64_t rows, std::size_t unit,
                      bool back) {
  const std::int64_t pixels = s[2] * s[3], blocks = s[1] / 16;
  const std::size_t block = 16 * unit;
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t i = 0; i < pixels; ++i)
      for (std::int64_t c = 0; c < blocks; ++c) {
        const auto nhwc = static_cast<std::size_t>((n * pixels + i) * blocks + c) * block;
        const auto blocked_at = static_cast<std::size_t>((n * blocks + c) * pixels + i) * block;
        std::memcpy(to + (back ? nhwc : blocked_at), from + (back ? blocked_at : nhwc), block);
      }
}

// A copy from one layout into another, with memory objects for the given number of threads.
class Reorder {
 public:
  Reorder(const Desc& from, const Desc& to, const dnnl::engine& e, int threads)
      : primitive_(dnnl::reorder::primitive_desc(e, from, e, to)), slots_(static_cast<std::size_t>(threads)) {
    for (Slot& s : slots_) {
      s.from = dnnl::memory(from, e, DNNL_MEMORY_NONE);
      s.to = dnnl::memory(to, e, DNNL_MEMORY_NONE);
      s.stream = dnnl::stream(e);
    }
  }

  void run(void* from, void* to) {
    // Threads that pack convolutions of the same layout share this object: each takes a slot of its own.
    for (std::size_t i = 0;; i = (i + 1) % slots_.size()) {
      Slot& s = slots_[i];
      if (s.taken.test_and_set(std::memory_order_acquire)) continue;
      s.from.set_data_handle(from);
      s.to.set_data_handle(to);
      const std::array<dnnl_exec_arg_t, 2> args{{{DNNL_ARG_FROM, s.from.get()}, {DNNL_ARG_TO, s.to.get()}}};
      const auto status = dnnl_primitive_execute(primitive_.get(), s.stream.get(), 2, args.data());
      s.taken.clear(std::memory_order_release);
      if (status != dnnl_success)
        fail<DeviceError>("onednn", "a reorder that runs", {"status ", static_cast<int>(status)});
      return;
    }
  }

 private:
  struct Slot {
    std::atomic_flag taken;
    dnnl::memory from, to;
    dnnl::stream stream;
  };
  dnnl::reorder primitive_;
  std::vector<Slot> slots_;
};

// The layout of the weights of one (problem, pass), and the reorder between it and the plain OIHW master weights.
struct WeightLayout {
  Desc desc;
  std::unique_ptr<Reorder> reorder;  // forward, backward data: plain f32 -> desc; backward weights: desc -> plain f32
};

class Convolutions {
 public:
  // The number of rows for which layouts are chosen. Primitives for other numbers of rows use the same layouts.
  static constexpr std::int64_t nominal_rows = 8;

  // threads: number of threads that may call reorder() at once.
  Convolutions(const dnnl::engine& e, int threads) : engine_(e), threads_(threads) {}

  const WeightLayout& layout(const Problem& p, Pass pass) {
    const Problem::Key key = p.key(pass);
    if (const auto it = layouts_.find(key); it != layouts_.end()) return it->second;
    const OneOmpThread guard;
    using Tag = dnnl::memory::format_tag;
    WeightLayout l;
    const Desc plain = weights(p.w, false, p.transposed ? Tag::iohw : Tag::oihw);
    const Desc any = weights(p.w, p.bf16 && pass != Pass::backward_weights, Tag::any);
    const auto [pd_desc, info] = choose(p, pass, nominal_rows, any);
    check(p, pass, info);
    l.desc = pd_desc;
    l.reorder = pass == Pass::backward_weights ? std::make_unique<Reorder>(l.desc, plain, engine_, threads_)
                                               : std::make_unique<Reorder>(plain, l.desc, engine_, threads_);
    return layouts_.emplace(key, std::move(l)).first->second;
  }

  void reorder(const Problem& p, Pass pass, void* from, void* to) { layouts_.at(p.key(pass)).reorder->run(from, to); }

  // Returns a primitive for a part of the forward pass and for this number of images, null if oneDNN has no fast one.
  // Its operands are x, the weights, y and, if it has an end, the bias. adds: y holds the residual before. It has no
  // relu.
  std::unique_ptr<Primitive> make_part(const Problem& p, const Part& part, std::int64_t rows, int workers, bool ends,
                                       bool adds) {
    const WeightLayout& l = layout(p, Pass::forward);
    const OneOmpThread guard;
    InputLines in = input_lines(p, part);
    Geometry g = geometry(p);
    if (part.lines() == p.y[2])
      in.first = 0, in.end = p.x[2];
    else
      g.padding_l[0] = in.above, g.padding_r[0] = in.below;
    if (in.end <= in.first) return nullptr;
    const bool in_blocks = blocked(p, Pass::forward);
    const Desc x = activation({1, p.x[1], in.end - in.first, p.x[3]}, rows, p.bf16, in_blocks);
    const Desc y = activation({1, part.outputs, part.lines(), p.y[3]}, rows, p.bf16, in_blocks);
    const Desc w = part.outputs == p.y[1] ? l.desc : some_weights(l.desc, 0, part.outputs).desc;
    if (!w) return nullptr;
    Operands operands{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
    using M = dnnl::memory;
    End end;
    end.adds = adds;
    if (ends) {
      end.bias = Desc({part.outputs}, M::data_type::f32, M::format_tag::a);
      operands.emplace_back(DNNL_ARG_BIAS, end.bias);
    }
    const auto pd = ends ? forward_desc(engine_, x, w, y, g, end) : forward_desc(engine_, x, w, y, g);
    if (!pd || (p.w.numel() >= 4096 && is_scalar(pd.impl_info_str()))) return nullptr;
    return std::make_unique<Primitive>(pd, operands, engine_, workers);
  }
  // Returns the bytes before the packed weights of a part's outputs; no value if these are not one piece of memory.
  std::optional<std::size_t> weights_before(const Problem& p, const Part& part) {
    if (part.outputs == p.y[1]) return 0;
    const SomeWeights some = some_weights(layout(p, Pass::forward).desc, part.first, part.outputs);
    if (!some.desc) return std::nullopt;
    return static_cast<std::size_t>(some.before) * size_of(p.bf16 ? DType::bf16 : DType::f32);
  }

  std::unique_ptr<Primitive> make(const Problem& p, Pass pass, std::int64_t rows, int workers) {
    const WeightLayout& l = layout(p, pass);
    const OneOmpThread guard;
    const bool in_blocks = blocked(p, pass);
    const Desc x = activation(p.x, rows, p.bf16, in_blocks), y = activation(p.y, rows, p.bf16, in_blocks);
    const Geometry g = geometry(p);
    const auto hint = forward_hint(p, rows);
    std::unique_ptr<Primitive> r;
    switch (pass) {
      case Pass::forward: {
        const auto pd = forward_desc(engine_, x, l.desc, y, g);
        need(pd, p, pass);
        r = std::make_unique<Primitive>(pd, Operands{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, l.desc}, {DNNL_ARG_DST, y}},
                                        engine_, workers);
        break;
      }
      case Pass::backward_data: {
        const auto pd = backward_data_desc(engine_, x, l.desc, y, g, hint);
        need(pd, p, pass);
        r = std::make_unique<Primitive>(
            pd, Operands{{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, l.desc}, {DNNL_ARG_DIFF_SRC, x}}, engine_, workers);
        break;
      }
      case Pass::backward_weights: {
        const auto pd = backward_weights_desc(engine_, x, l.desc, y, g, hint);
        need(pd, p, pass);
        r = std::make_unique<Primitive>(
            pd, Operands{{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_WEIGHTS, l.desc}}, engine_, workers);
        break;
      }
    }
    check(p, pass, r->info());
    return r;
  }

 private:
  static const char* pass_name(Pass p) {
    return p == Pass::forward ? "forward" : p == Pass::backward_data ? "backward data" : "backward weights";
  }
  static std::string describe(const Problem& p, Pass pass) {
    return std::string(pass_name(pass)) + " convolution " + to_string(p.w) + " on " + to_string(p.x);
  }
  template <class PD>
  static void need(const PD& pd, const Problem& p, Pass pass) {
    if (!pd)
      fail<DeviceError>("onednn", {"an implementation of ", describe(p, pass)}, "no implementation",
                        p.bf16 ? "oneDNN supports bf16 only with AVX-512; use --precision f32 or --backend eigen" : "");
  }
  // Throws an error if oneDNN has chosen its scalar kernel. Accepts that kernel for small problems. oneDNN itself does
  // not report this choice.
  static void check(const Problem& p, Pass pass, std::string_view info) {
    if (!is_scalar(info) || p.w.numel() < 4096) return;
    fail<DeviceError>("onednn", {"an optimised kernel for ", describe(p, pass)}, {"'", info, "'"},
                      "use --backend eigen, or channel counts that are multiples of 16");
  }

  dnnl::convolution_forward::primitive_desc forward_hint(const Problem& p, std::int64_t rows, bool in_blocks = false) {
    auto pd = forward_desc(engine_, activation(p.x, rows, p.bf16, in_blocks),
                           weights(p.w, p.bf16, dnnl::memory::format_tag::any),
                           activation(p.y, rows, p.bf16, in_blocks), geometry(p));
    need(pd, p, Pass::forward);
    return pd;
  }

  std::pair<Desc, std::string> choose(const Problem& p, Pass pass, std::int64_t rows, const Desc& any) {
    const Desc x = activation(p.x, rows, p.bf16), y = activation(p.y, rows, p.bf16);
    const Geometry g = geometry(p);
    if (pass == Pass::forward) {
      const auto pd = forward_hint(p, rows, blocked(p, pass));
      return {pd.weights_desc(), pd.impl_info_str()};
    }
    const auto hint = forward_hint(p, rows);
    if (pass == Pass::backward_data) {
      const auto pd = backward_data_desc(engine_, x, any, y, g, hint);
      need(pd, p, pass);
      return {pd.weights_desc(), pd.impl_info_str()};
    }
    const auto pd = backward_weights_desc(engine_, x, any, y, g, hint);
    need(pd, p, pass);
    return {pd.diff_weights_desc(), pd.impl_info_str()};
  }

  dnnl::engine engine_;
  int threads_;
  std::map<Problem::Key, WeightLayout> layouts_;
};

}  // namespace tutti::onednn
