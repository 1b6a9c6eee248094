// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cuda {

// Softmax cross entropy by tutti's kernels. The factor of its gradient is in device memory, so that a captured step
// reads the value of the current step. Invalid labels are reported in memory that the host can read.
class LossOp {
 public:
  LossOp(DeviceMemory& memory, Launcher& launcher)
      : launcher_(launcher),
        report_(std::static_pointer_cast<int>(allocate_pinned(words * sizeof(int)))),
        scale_(memory, 64) {
    std::fill_n(report_.get(), words, 0);
  }

  [[nodiscard]] double* scale() const { return static_cast<double*>(scale_.data()); }
  void write_scale(const StepScalars& s) {
    launcher_.update(UpdateKernel::set_scale, dim3(1), 1, scale_.data(), s.loss_scale * s.inv_global_batch);
  }

  [[nodiscard]] static std::size_t workspace_bytes(std::int64_t rows) {
    return ranks_at(rows) + static_cast<std::size_t>(rows) * sizeof(int);
  }
  // with_scalars: writes the scale of the call to the device first.
  void run(const Workspace& w, const op::SoftmaxCrossEntropy& o, const Call& c, bool with_scalars) {
    const TensorRef& z = c.in[0];
    const std::int64_t rows = z.shape[0];
    auto* const losses = w.at<double>(0);
    auto* const ranks = w.at<int>(ranks_at(rows));
    const int classes = static_cast<int>(z.shape[1]);
    if (with_scalars) write_scale(*c.scalars);
    launcher_.op(z.dtype, OpKernel::softmax_rows, dim3(static_cast<unsigned>(rows)), 128, z.data, c.in[1].data,
                 o.backward ? c.out[1].data : nullptr, losses, ranks, scale_.data(), classes, o.label_smoothing);
    launcher_.op(z.dtype, OpKernel::loss_finish, dim3(1), 256, losses, ranks, c.in[1].data, rows, o.top_k, classes,
                 c.out[0].data, report_.get());
  }

  // Throws DataError if the kernels found an error in the data. Reports each error once.
  void throw_report() {
    int* const r = report_.get();
    if (std::exchange(r[0], 0) != 0) fail<DataError>("softmax_cross_entropy", {"labels in 0..", r[2] - 1}, r[1]);
  }

 private:
  static constexpr std::size_t words = 4;
  static std::size_t ranks_at(std::int64_t rows) {
    return Workspace::round_up(static_cast<std::size_t>(rows) * sizeof(double));
  }

  Launcher& launcher_;
  std::shared_ptr<int> report_;  // see loss_finish() in kernels/loss.hpp
  Buffer scale_;
};

}  // namespace tutti::cuda
