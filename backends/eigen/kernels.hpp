// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/eigen/correlate.hpp>
#include <tutti/backends/eigen/weight_gradient.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/engine/host_backend.hpp>

// The ops computed with Eigen's arrays.
namespace tutti::eigen {

// The state that all kernels of a backend share: for each worker, memory for copies of inputs, for sums, and for a part
// of the weights.
class Shared {
 public:
  explicit Shared(const CpuOps& b) : isa(b.isa()), scratch_(static_cast<std::size_t>(b.threads())) {}
  void reserve(std::int64_t floats) {
    const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
    for (auto& room : scratch_)
      if (room.bytes() < bytes) room = Buffer(host_, bytes);
  }
  [[nodiscard]] float* scratch(const Call& c) const {
    return reinterpret_cast<float*>(scratch_[static_cast<std::size_t>(c.worker)].at(0));
  }

  cpu::Isa isa;

 private:
  HostMemory host_;
  std::vector<Buffer> scratch_;
};

// A kernel for any op that is a correlation of its input with weights.
class CorrelationKernel : public Kernel {
 public:
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
  [[nodiscard]] std::size_t packed_bytes() override {
    return static_cast<std::size_t>(what_.weight_count) * size_of(compute_);
  }
  void pack(const TensorRef& w, void* to) override {
    float_type(compute_, [&](auto t) { eigen::pack(what_, w.as<float>(), static_cast<decltype(t)*>(to)); });
  }
  void prepare(const PrepareInfo& i) override {
    for (const std::int64_t rows : i.chunk_rows) b_.reserve(scratch_floats(what_, rows));
  }
  void run(Call& c) override {
    const float* const bias = has_bias_ ? c.in[2].as<float>() : nullptr;
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      eigen::run(what_,
                 Batch<T>{c.in[0].as<T>(), c.in[1].as<T>(), bias, c.out[0].as<T>(), c.out[0].shape[0], b_.scratch(c)},
                 b_.isa);
    });
  }

 protected:
  CorrelationKernel(Shared& b, const NodeDesc& d, Correlations what, bool has_bias = false)
      : b_(b), compute_(d.compute), what_(std::move(what)), has_bias_(has_bias) {}

 private:
  Shared& b_;
  DType compute_;
  Correlations what_;
  bool has_bias_;
};

class Conv2d final : public CorrelationKernel {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d)
      : CorrelationKernel(b, d, forward(*std::get_if<For>(&op), image_of(d.in[0].shape), image_of(d.out[0].shape))) {}
};
class Conv2dBackwardData final : public CorrelationKernel {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op& op, Shared& b, const NodeDesc& d)
      : CorrelationKernel(b, d,
                          backward_data(*std::get_if<For>(&op), image_of(d.out[0].shape), image_of(d.in[0].shape))) {}
};
class Linear final : public CorrelationKernel {
 public:
  using For = op::Linear;
  Linear(const Op&, Shared& b, const NodeDesc& d)
      : CorrelationKernel(b, d, linear(d.in[0].shape.row_numel(), d.out[0].shape.row_numel(), false), true) {}
};
class LinearBackwardData final : public CorrelationKernel {
 public:
  using For = op::LinearBackwardData;
  LinearBackwardData(const Op&, Shared& b, const NodeDesc& d)
      : CorrelationKernel(b, d, linear(d.in[0].shape.row_numel(), d.out[0].shape.row_numel(), true)) {}
};

class Conv2dBackwardWeights final : public Kernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : b_(b), g_(*std::get_if<For>(&op), image_of(d.in[0].shape), image_of(d.in[1].shape)) {}

  [[nodiscard]] Partition cut() override {
    if (g_.tasks() > 1) return {Division::whole, g_.tasks(), 0};
    return {Division::reduce, 1, static_cast<std::size_t>(g_.partial_floats()) * sizeof(float)};
  }
  void prepare(const PrepareInfo& i) override {
    if (i.partition.division == Division::whole)
      for (int task = 0; task < g_.tasks(); ++task) {
        const auto part = g_.part(task);
        b_.reserve(part.scratch_floats(i.desc.rows) + part.partial_floats());
      }
    else
      for (const std::int64_t rows : i.chunk_rows) b_.reserve(g_.scratch_floats(rows));
  }
  void run(Call& c) override {
    auto* const dw = c.out[0].as<float>();
    if (c.phase == Phase::reduce) {
      add(g_, c, reinterpret_cast<float*>(c.partial), c.first_chunk, b_.scratch(c));
    } else if (c.phase == Phase::finish) {
      g_.finish(
          c.shards, [&](int l) { return reinterpret_cast<const float*>(c.partial_of(l)); }, dw);
    } else {
      const auto part = g_.part(c.task);
      float* const sums = b_.scratch(c);
      add(part, c, sums, true, sums + part.partial_floats());
      part.finish(
          1, [&](int) { return sums; }, dw);
    }
  }

 private:
  void add(const WeightGradient& g, const Call& c, float* sums, bool first, float* room) const {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      g.add<T>(b_.isa, c.in[0].as<T>(), c.in[1].as<T>(), c.in[0].shape[0], sums, first, room);
    });
  }

  Shared& b_;
  WeightGradient g_;
};

}  // namespace tutti::eigen
