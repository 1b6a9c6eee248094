// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cudnn/descriptor.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda::cudnn {

[[nodiscard]] inline cudnnDataType_t data_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::i32:
      return CUDNN_DATA_INT32;
    case DType::i64:
      return CUDNN_DATA_INT64;
    default:
      break;
  }
  fail<UsageError>("cudnn", "f32, bf16 or f16", name_of(t));
}

// Returns the bytes of `count` values.
[[nodiscard]] inline std::size_t bytes_of(std::size_t count, cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2 * count;
    case CUDNN_DATA_INT64:
      return 8 * count;
    default:
      return 4 * count;
  }
}

// N, C, H, W of an activation; K, C, R, S of weights; 1, C, 1, 1 if there is one value for each channel. Channels are
// the last dimension in memory.
using Extents = std::array<std::int64_t, 4>;
[[nodiscard]] inline Extents per_channel(std::int64_t c) { return {1, c, 1, 1}; }

struct Tensor {
  std::int64_t uid;
  Extents extents;
  std::size_t bytes;  // bytes of device memory; 0 for values inside a graph and for numbers in the host's memory
  Descriptor descriptor;
};

// The geometry of a convolution, except the kernel's extents, which are in the shape of the weights.
struct ConvGeometry {
  std::array<std::int64_t, 2> pre_padding{0, 0}, post_padding{0, 0}, strides{1, 1};
};

// An operation graph during its construction. The caller chooses a number below 1000 for each operand that it passes at
// run time. The numbers of values inside the graph have no meaning to the caller. References to tensors are valid as
// long as the graph.
class OpGraph {
 public:
  explicit OpGraph(std::string name) : name_(std::move(name)) {}
  OpGraph(OpGraph&&) = default;
  OpGraph& operator=(OpGraph&&) = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  const Tensor& tensor(std::int64_t uid, const std::string& name, const Extents& extents, cudnnDataType_t type) {
    return add(uid, name, extents, type, false, false);
  }
  // Adds a value between two operations, which never reaches memory.
  const Tensor& inner(const std::string& name, const Extents& extents, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return add(next_++, name, extents, type, true, false);
  }
  // Adds a number that each run gets by a pointer to the host's memory.
  const Tensor& scalar(std::int64_t uid, const std::string& name) {
    return add(uid, name, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
  }

  void convolution(const ConvGeometry& g, const Tensor& x, const Tensor& w, const Tensor& y) {
    Descriptor& op = operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "convolution");
    op.set(attr::forward_x, x.descriptor).set(attr::forward_w, w.descriptor).set(attr::forward_y, y.descriptor);
    op.set(attr::forward_conv, geometry(g)).set(attr::forward_alpha, 1.F).set(attr::forward_beta, 0.F).finalize();
  }
  void convolution_backward_data(const ConvGeometry& g, const Tensor& dy, const Tensor& w, const Tensor& dx) {
    Descriptor& op = operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "backward data");
    op.set(attr::data_dy, dy.descriptor).set(attr::data_w, w.descriptor).set(attr::data_dx, dx.descriptor);
    op.set(attr::data_conv, geometry(g)).set(attr::data_alpha, 1.F).set(attr::data_beta, 0.F).finalize();
  }
  void convolution_backward_weights(const ConvGeometry& g, const Tensor& x, const Tensor& dy, const Tensor& dw) {
    Descriptor& op = operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, "backward weights");
    op.set(attr::weights_x, x.descriptor).set(attr::weights_dy, dy.descriptor).set(attr::weights_dw, dw.descriptor);
    op.set(attr::weights_conv, geometry(g)).set(attr::weights_alpha, 1.F).set(attr::weights_beta, 0.F).finalize();
  }

  // y = f(x)
  void pointwise(cudnnPointwiseMode_t f, const Tensor& x, const Tensor& y) {
    Descriptor& op = pointwise_operation(f);
    op.set(attr::pointwise_x, x.descriptor).set(attr::pointwise_y, y.descriptor).finalize();
  }
  // y = f(x, b_factor * b); b may have one value for each channel
  void pointwise(cudnnPointwiseMode_t f, const Tensor& x, const Tensor& b, const Tensor& y, float b_factor = 1) {
    Descriptor& op = pointwise_operation(f);
    op.set(attr::pointwise_x, x.descriptor).set(attr::pointwise_b, b.descriptor).set(attr::pointwise_y, y.descriptor);
    if (b_factor != 1) op.set(attr::pointwise_alpha1, 1.F).set(attr::pointwise_alpha2, b_factor);
    op.finalize();
  }
  // dx = dy if x > 0 in the forward pass, else 0
  void relu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    Descriptor& op = pointwise_operation(CUDNN_POINTWISE_RELU_BWD);
    op.set(attr::pointwise_dy, dy.descriptor).set(attr::pointwise_x, x.descriptor);
    op.set(attr::pointwise_dx, dx.descriptor).finalize();
  }
  // Sums over N, H and W of x and of its squares.
  void statistics(const Tensor& x, const Tensor& sum, const Tensor& square_sum) {
    Descriptor& op = operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, "statistics");
    op.set(attr::stats_mode, CUDNN_GENSTATS_SUM_SQSUM).set(attr::stats_precision, CUDNN_DATA_FLOAT);
    op.set(attr::stats_x, x.descriptor).set(attr::stats_sum, sum.descriptor);
    op.set(attr::stats_square_sum, square_sum.descriptor).finalize();
  }

  // Adds an operation, for batch norms. The caller sets its attributes and finalizes it.
  Descriptor& operation(cudnnBackendDescriptorType_t type, const std::string& what) {
    return operations_.emplace_back(type, "operation " + what + " of " + name_);
  }

  // Returns the operands that a run gets in device memory: their numbers and bytes.
  [[nodiscard]] std::vector<std::pair<std::int64_t, std::size_t>> operands() const {
    std::vector<std::pair<std::int64_t, std::size_t>> list;
    for (const Tensor& t : tensors_)
      if (t.bytes > 0) list.emplace_back(t.uid, t.bytes);
    return list;
  }

  // Returns the finished graph. handle: the device's handle, or null without a device.
  [[nodiscard]] const Descriptor& finish(cudnnHandle_t handle) {
    if (graph_) return graph_;
    Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph " + name_);
    std::vector<RawDescriptor> raw;
    for (const Descriptor& op : operations_) raw.push_back(op.raw());
    graph.set(attr::graph_operations, raw);
    if (handle != nullptr) graph.set(attr::graph_handle, handle);
    graph.finalize();
    graph_ = std::move(graph);
    return graph_;
  }

 private:
  // In bytes. Arenas align tensors to 64 bytes, which is more than cuDNN needs.
  static constexpr std::int64_t alignment = 16;

  const Tensor& add(std::int64_t uid, const std::string& name, const Extents& e, cudnnDataType_t type, bool is_virtual,
                    bool by_value) {
    Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor " + name + " of " + name_);
    const Extents strides{e[1] * e[2] * e[3], 1, e[1] * e[3], e[1]};
    d.set(attr::tensor_uid, uid).set(attr::tensor_type, type).set(attr::tensor_alignment, alignment);
    d.set(attr::tensor_dimensions, e).set(attr::tensor_strides, strides);
    if (is_virtual) d.set(attr::tensor_virtual, true);
    if (by_value) d.set(attr::tensor_by_value, true);
    d.finalize();
    const auto count = static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]);
    const std::size_t bytes = is_virtual || by_value ? 0 : bytes_of(count, type);
    return tensors_.emplace_back(Tensor{uid, e, bytes, std::move(d)});
  }
  const Descriptor& geometry(const ConvGeometry& g) {
    Descriptor& d = parts_.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution of " + name_);
    d.set(attr::conv_compute_type, CUDNN_DATA_FLOAT).set(attr::conv_mode, CUDNN_CROSS_CORRELATION);
    d.set(attr::conv_spatial_dims, 2).set(attr::conv_strides, g.strides);
    d.set(attr::conv_dilations, std::array<std::int64_t, 2>{1, 1});
    d.set(attr::conv_pre_paddings, g.pre_padding).set(attr::conv_post_paddings, g.post_padding).finalize();
    return d;
  }
  Descriptor& pointwise_operation(cudnnPointwiseMode_t f) {
    Descriptor& d = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise of " + name_);
    d.set(attr::pointwise_mode, f).set(attr::pointwise_precision, CUDNN_DATA_FLOAT).finalize();
    return operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise").set(attr::pointwise_what, d);
  }

  std::string name_;
  std::deque<Tensor> tensors_;
  std::deque<Descriptor> parts_, operations_;
  Descriptor graph_;
  std::int64_t next_ = 1000;
};

}  // namespace tutti::cuda::cudnn
