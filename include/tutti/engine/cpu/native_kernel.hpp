// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/convolution_end.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/engine/reference/loops.hpp>

// Base classes of tutti's own kernels. Each kernel is a class in the file of its family and a row of CpuOps::kernel().
namespace tutti::cpu {

class NativeKernel : public Kernel {
 public:
  NativeKernel(const Op& op, Shared& b, const NodeDesc& d) : op_(op), isa_(b.isa), parts_(d.parts) {}

 protected:
  const Op& op_;
  Isa isa_;
  int parts_;  // NodeDesc::parts
};

// Processes any range of rows independently.
class RowKernel : public NativeKernel {
 public:
  using NativeKernel::NativeKernel;
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
};

// Like RowKernel, for an op of type O, `o_`.
template <class O>
class RowKernelOf : public RowKernel {
 public:
  using For = O;
  using RowKernel::RowKernel;

 protected:
  const O& o_ = *std::get_if<O>(&op_);
};

// Like RowKernel, but runs the reference loop.
template <class O>
class RowLoop : public HostKernel<> {
 public:
  using For = O;
  RowLoop(const Op& op, Shared&, const NodeDesc& d) : HostKernel(d), o_(*std::get_if<O>(&op)) {}
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
  void run(Call& c) override { ReferenceLoops<false>::run(o_, c); }

 private:
  const O& o_;
};

[[nodiscard]] inline std::int64_t pixels(const TensorRef& x) { return x.shape.numel() / x.shape[1]; }

// Where there are fewer rows than threads, the lines of each image's output are cut into bands, one for each task.
// Returns the tasks for `rows` images with this number of lines.
[[nodiscard]] inline int band_tasks(int parts, std::int64_t rows, std::int64_t lines) {
  if (parts == 1) return 1;
  return static_cast<int>(rows * std::clamp<std::int64_t>((parts + rows - 1) / rows, 1, lines));
}
[[nodiscard]] inline Band band_of(int task, int tasks, std::int64_t rows, std::int64_t lines) {
  const std::int64_t each = tasks / rows, k = task % each;
  return {task / each, lines * k / each, lines * (k + 1) / each};
}

// Narrows the operands of a call to the pixels that its task computes: every operand with a pixel for each one of the
// first output. Returns false if there are none.
[[nodiscard]] inline bool narrow_to_task(Call& c) {
  const std::int64_t all = pixels(c.out[0]), begin = all * c.task / c.tasks, end = all * (c.task + 1) / c.tasks;
  const auto narrow = [&](TensorRef& t) {
    if (t.shape.rank() < 2 || pixels(t) != all) return;
    t.data = static_cast<std::byte*>(t.data) + static_cast<std::size_t>(begin * t.shape[1]) * size_of(t.dtype);
    t.shape[0] = end - begin;
    for (int i = 2; i < t.shape.rank(); ++i) t.shape[i] = 1;
  };
  for (int k = 0; k < c.inputs; ++k) narrow(c.in[static_cast<std::size_t>(k)]);
  for (int k = c.outputs - 1; k >= 0; --k) narrow(c.out[static_cast<std::size_t>(k)]);
  return begin < end;
}

// K, a kernel of rows that computes each pixel by itself. If there are fewer rows than threads, each task computes some
// of the pixels.
template <class K>
class ByPixels final : public K {
 public:
  template <class B>
  ByPixels(const Op& op, B& b, const NodeDesc& d) : K(op, b, d), parts_of_pixels_(d.parts) {}
  [[nodiscard]] Partition cut() override {
    return parts_of_pixels_ > 1 ? Partition{Division::whole, parts_of_pixels_} : K::cut();
  }
  void run(Call& c) override {
    if (parts_of_pixels_ == 1) return K::run(c);
    Call part = c;
    if (narrow_to_task(part)) K::run(part);
  }

 private:
  int parts_of_pixels_;
};

// Adds the shards' pairs of sums, in order.
inline void sum_pairs(const Call& c, std::int64_t channel, std::int64_t channels, double& a, double& b) {
  a = b = 0;
  for (int l = 0; l < c.shards; ++l) {
    const auto* p = reinterpret_cast<const double*>(c.partial_of(l));
    a += p[channel];
    b += p[channels + channel];
  }
}

}  // namespace tutti::cpu
