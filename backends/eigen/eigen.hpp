// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tutti/backends/eigen/correlate.hpp>
#include <tutti/backends/eigen/weight_gradient.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>

namespace tutti {

// Convolutions and linear layers with Eigen 3.4's fixed-size arrays, everything else by our own kernels; f32, and bf16
// that is computed in f32. Eigen's instruction set is the one the program was compiled for: without -march=native that
// is SSE2, a fifth of the speed of AVX-512. Eigen starts no threads here.
class EigenBackend : public CpuOps {
 public:
  explicit EigenBackend(CpuOptions o = {}) : CpuOps(o) { scratch_.resize(static_cast<std::size_t>(threads())); }

  [[nodiscard]] std::string name() const override { return "eigen"; }
  [[nodiscard]] std::string description() const override {
    return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
           std::to_string(EIGEN_MINOR_VERSION) + " (" + Eigen::SimdInstructionSetsInUse() + "), own kernels " +
           std::string(cpu::name_of(isa()));
  }

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;

  using CpuOps::partition;

  [[nodiscard]] Partition partition(const op::Conv2d&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Conv2dBackwardData&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Conv2dBackwardWeights& o, const NodeDesc& d) const {
    const auto g = gradient(o, d);
    if (g.tasks() > 1) return {Division::whole, g.tasks(), 0};
    return {Division::reduce, 1, static_cast<std::size_t>(g.partial_floats()) * sizeof(float)};
  }

  [[nodiscard]] std::size_t pack_bytes(const Op& o, const NodeDesc& d) const {
    const auto c = correlations(o, d);
    return c ? static_cast<std::size_t>(c->weight_count) * size_of(d.compute) : CpuOps::pack_bytes(o, d);
  }
  void pack(const Op& o, const NodeDesc& d, const TensorRef& w, void* to) const {
    const auto write = [&](const eigen::Correlations& c) {
      float_type(d.compute, [&](auto t) { eigen::pack(c, w.as<float>(), static_cast<decltype(t)*>(to)); });
    };
    // Before each step with what prepare() made, since a step allocates nothing.
    if (d.state != nullptr) return write(*static_cast<const eigen::Correlations*>(d.state));
    if (const auto c = correlations(o, d)) return write(*c);
    CpuOps::pack(o, d, w, to);
  }

  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2d& o, const PrepareInfo& i) { return correlator(o, i); }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardData& o, const PrepareInfo& i) {
    return correlator(o, i);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Linear& o, const PrepareInfo& i) { return correlator(o, i); }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::LinearBackwardData& o, const PrepareInfo& i) {
    return correlator(o, i);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardWeights& o, const PrepareInfo& i) {
    auto g = std::make_shared<eigen::WeightGradient>(gradient(o, i.desc));
    if (i.partition.division == Division::whole)
      for (int task = 0; task < g->tasks(); ++task) {
        const auto part = g->part(task);
        need(part.scratch_floats(i.desc.rows) + part.partial_floats());
      }
    else
      for (std::int64_t rows : i.chunk_rows) need(g->scratch_floats(rows));
    return g;
  }

  void run(const op::Conv2d&, Call& c) { correlate(c, nullptr); }
  void run(const op::Conv2dBackwardData&, Call& c) { correlate(c, nullptr); }
  void run(const op::Linear&, Call& c) { correlate(c, c.in[2].as<float>()); }
  void run(const op::LinearBackwardData&, Call& c) { correlate(c, nullptr); }
  void run(const op::Conv2dBackwardWeights&, Call& c) {
    const auto& g = *static_cast<const eigen::WeightGradient*>(c.state);
    auto* const partial = reinterpret_cast<float*>(c.partial);
    if (c.phase == Phase::reduce)
      add(g, c, partial, c.first_chunk, scratch(c));
    else if (c.phase == Phase::finish)
      g.finish(
          c.lanes, [&](int l) { return reinterpret_cast<const float*>(c.partial_of(l)); }, c.out[0].as<float>());
    else {
      const auto part = g.part(c.task);
      float* const sums = scratch(c);
      add(part, c, sums, true, sums + part.partial_floats());
      part.finish(
          1, [&](int) { return sums; }, c.out[0].as<float>());
    }
  }

 private:
  static eigen::WeightGradient gradient(const op::Window& o, const NodeDesc& d) {
    return {o, eigen::image_of(d.in[0].shape), eigen::image_of(d.in[1].shape)};
  }

  void add(const eigen::WeightGradient& g, const Call& c, float* sums, bool first, float* room) const {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      g.add<T>(isa(), c.in[0].as<T>(), c.in[1].as<T>(), c.in[0].shape[0], sums, first, room);
    });
  }

  // What the ops with weights compute.
  static std::optional<eigen::Correlations> correlations(const Op& any, const NodeDesc& d) {
    const Shape &in = d.in[0].shape, &out = d.out[0].shape;
    if (const auto* f = std::get_if<op::Conv2d>(&any))
      return eigen::forward(*f, eigen::image_of(in), eigen::image_of(out));
    if (const auto* b = std::get_if<op::Conv2dBackwardData>(&any))
      return eigen::backward_data(*b, eigen::image_of(out), eigen::image_of(in));
    if (std::holds_alternative<op::Linear>(any)) return eigen::linear(in.row_numel(), out.row_numel(), false);
    if (std::holds_alternative<op::LinearBackwardData>(any))
      return eigen::linear(in.row_numel(), out.row_numel(), true);
    return std::nullopt;
  }

  std::shared_ptr<void> correlator(const Op& o, const PrepareInfo& i) {
    auto c = std::make_shared<eigen::Correlations>(*correlations(o, i.desc));
    for (std::int64_t rows : i.chunk_rows) need(eigen::scratch_floats(*c, rows));
    return c;
  }
  void correlate(Call& c, const float* bias) {
    const auto& what = *static_cast<const eigen::Correlations*>(c.state);
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      eigen::run(
          what,
          eigen::Batch<T>{c.in[0].as<T>(), c.in[1].as<T>(), bias, c.out[0].as<T>(), c.out[0].shape[0], scratch(c)},
          isa());
    });
  }

  void need(std::int64_t floats) {
    const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
    for (auto& room : scratch_)
      if (room.bytes() < bytes) room = Buffer(host_, bytes);
  }
  [[nodiscard]] float* scratch(const Call& c) const {
    return reinterpret_cast<float*>(scratch_[static_cast<std::size_t>(c.worker)].at(0));
  }

  HostMemory host_;
  std::vector<Buffer> scratch_;  // per worker: copies of inputs, sums, a part of the weights
};

#if !defined(TUTTI_SEPARATE_COMPILATION) || defined(TUTTI_SOURCE_EIGEN)
TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> EigenBackend::kernel(const Op& op, const NodeDesc& desc) {
  if (auto k = kernel_among<op::Conv2d, op::Conv2dBackwardData, op::Conv2dBackwardWeights, op::Linear,
                            op::LinearBackwardData>(*this, op, desc))
    return k;
  return CpuOps::kernel(op, desc);
}
#endif

}  // namespace tutti
