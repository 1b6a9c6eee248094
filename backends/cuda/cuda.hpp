// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/backends/cuda/conv_op.hpp>
#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/linear_op.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/norm_ops.hpp>
#include <tutti/backends/cuda/options.hpp>
#include <tutti/backends/cuda/step_graph.hpp>
#include <tutti/backends/cuda/update_ops.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/graph/custom.hpp>

namespace tutti {
namespace cuda {

namespace detail {
inline thread_local cudaStream_t custom_stream = nullptr;
}  // namespace detail
// For kernels of custom ops (CustomOp::forward["cuda"]): the stream to start work on.
[[nodiscard]] inline cudaStream_t stream_in_use() noexcept { return detail::custom_stream; }

// One GPU: convolutions by C, matrix products by G, everything else by our own kernels; f32, bf16 and f16. Ops are
// started in order on one stream and run on their own; copy_out() and synchronise() wait. All calls come from the
// thread that made it.
template <class C, class G>
class BasicCuda : public DeviceMemory {
 public:
  static constexpr bool has_f64 = false, has_f16 = true;
  // Forward and backward read the same packed weights.
  static constexpr bool one_pack = true;

  // DeviceError: no driver, no GPU, one that is too old, a library that is missing.
  explicit BasicCuda(CudaOptions o = {})
      : DeviceMemory(o.device),
        options_(std::move(o)),
        launcher_(device(), Compiler(options_.kernel_folder)),
        workspace_(*this),
        graphs_(device()),
        report_(std::static_pointer_cast<int>(allocate_pinned(4 * sizeof(int)))),
        convolutions_(std::make_unique<C>(device(), convolution_options(options_))),
        gemms_(std::make_unique<G>(device(), gemm_options(options_))) {
    std::fill_n(report_.get(), 4, 0);
    scale_ = Buffer<DeviceMemory>(*this, 64);
    norms_ = Buffer<DeviceMemory>(*this, squared_norms_bytes);
  }

  [[nodiscard]] std::string name() const { return "cuda"; }
  [[nodiscard]] std::string description() const {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return device().name() + " (sm_" + std::to_string(device().architecture()) + "), CUDA " + version_text(runtime) +
           ", driver for CUDA " + version_text(driver);
  }
  [[nodiscard]] const CudaOptions& options() const noexcept { return options_; }
  [[nodiscard]] Launcher& launcher() noexcept { return launcher_; }
  [[nodiscard]] int threads() const { return 1; }
  [[nodiscard]] int lanes() const { return 1; }
  [[nodiscard]] std::size_t chunk_bytes() const { return std::size_t{1} << 40; }
  template <class F>
  void parallel(int tasks, F&& f) {
    for (int t = 0; t < tasks; ++t) f(t, 0);
  }

  void copy_out(void* to, const void* from, std::size_t n) {
    DeviceMemory::copy_out(to, from, n);
    throw_report();
  }
  void synchronise() {
    DeviceMemory::synchronise();
    throw_report();
  }

  // Runs `f`, which starts ops, by replaying what was captured of an earlier call with the same key: the addresses and
  // whatever else the ops depend on. Numbers that change from step to step are written before, and host code of custom
  // ops runs no more once it is captured.
  template <class F>
  void replay(const std::vector<std::uint64_t>& key, const StepScalars& scalars, F&& f) {
    if (!options_.graph) return f();
    write_scale(scalars);
    graphs_.run(key, workspace_.data(), f);
  }

  template <class O>
  [[nodiscard]] Partition partition(const O&, const NodeDesc&) const {
    return {};
  }

  [[nodiscard]] std::size_t pack_bytes(const Op& o, const NodeDesc& d) const {
    const DType t = d.compute;
    if (std::holds_alternative<op::Conv2d>(o) || std::holds_alternative<op::Conv2dBackwardData>(o)) {
      const PackedWeights p(t, d.in[1].shape);
      return p.is_master(t) ? 0 : static_cast<std::size_t>(p.count()) * size_of(t);
    }
    return t == DType::f32 ? 0 : static_cast<std::size_t>(d.in[1].shape.numel()) * size_of(t);
  }
  void pack(const Op& o, const NodeDesc& d, const TensorRef& w, void* to) {
    device().set_op("pack", name_of(o));
    if (std::holds_alternative<op::Conv2d>(o) || std::holds_alternative<op::Conv2dBackwardData>(o))
      return pack_weights(launcher_, d.compute, w, to);
    const std::int64_t n = w.shape.numel();
    launcher_.op(d.compute, OpKernel::cast, launcher_.blocks(n / vector_of(d.compute)), Launcher::block, w.data, to, n);
  }

  template <class O>
  [[nodiscard]] std::shared_ptr<void> prepare(const O&, const PrepareInfo& i) {
    launcher_.require(i.desc.compute);
    return {};
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Normalize& o, const PrepareInfo& i) {
    launcher_.require(i.desc.compute);
    const std::size_t bytes = o.mean.size() * sizeof(float);
    auto b = std::make_shared<Buffer<DeviceMemory>>(*this, 2 * bytes);
    copy_in(b->data(), o.mean.data(), bytes);
    copy_in(b->at(bytes), o.inv_std.data(), bytes);
    return b;
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2d& o, const PrepareInfo& i) {
    return convolution(ConvPass::forward, o, i, i.desc.in[0], i.desc.in[1].shape, i.desc.out[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardData& o, const PrepareInfo& i) {
    return convolution(ConvPass::backward_data, o, i, i.desc.out[0], i.desc.in[1].shape, i.desc.in[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Conv2dBackwardWeights& o, const PrepareInfo& i) {
    return convolution(ConvPass::backward_weights, o, i, i.desc.in[0], i.desc.out[0].shape, i.desc.in[1]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BatchNorm&, const PrepareInfo& i) {
    return norm(i, i.desc.in[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BatchNormBackward&, const PrepareInfo& i) {
    return norm(i, i.desc.out[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BiasBackward&, const PrepareInfo& i) {
    return norm(i, i.desc.in[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Linear&, const PrepareInfo& i) {
    return product(LinearPass::forward, i, i.desc.in[0], i.desc.out[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::LinearBackwardData&, const PrepareInfo& i) {
    return product(LinearPass::backward_data, i, i.desc.out[0], i.desc.in[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::LinearBackwardWeights&, const PrepareInfo& i) {
    return product(LinearPass::backward_weights, i, i.desc.in[0], i.desc.in[1]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::SoftmaxCrossEntropy&, const PrepareInfo& i) {
    launcher_.require(i.desc.compute);
    workspace_.reserve(loss_ranks(i.desc.in[0].shape[0]) +
                       static_cast<std::size_t>(i.desc.in[0].shape[0]) * sizeof(int));
    return {};
  }

  void run(const op::Normalize& o, Call& c) {
    start("normalize", c);
    const auto& constants = *static_cast<Buffer<DeviceMemory>*>(c.state);
    const TensorRef& x = c.out[0];
    const std::int64_t n = x.shape.numel();
    launcher_.op(x.dtype, OpKernel::normalize, launcher_.blocks(n / vector_of(x.dtype)), Launcher::block, c.in[0].data,
                 x.data, constants.data(), static_cast<void*>(constants.at(o.mean.size() * sizeof(float))),
                 static_cast<int>(o.mean.size()), n);
  }
  void run(const op::Conv2d&, Call& c) { convolve("conv2d", c); }
  void run(const op::Conv2dBackwardData&, Call& c) { convolve("conv2d_backward_data", c); }
  void run(const op::Conv2dBackwardWeights&, Call& c) { convolve("conv2d_backward_weights", c); }
  void run(const op::BatchNorm& o, Call& c) {
    start("batch_norm", c);
    run_batch_norm(launcher_, workspace_, o, c);
  }
  void run(const op::BatchNormInference& o, Call& c) {
    start("batch_norm_inference", c);
    run_batch_norm_inference(launcher_, o, c);
  }
  void run(const op::BatchNormBackward& o, Call& c) {
    start("batch_norm_backward", c);
    run_batch_norm_backward(launcher_, workspace_, o, c);
  }
  void run(const op::Relu&, Call& c) {
    start("relu", c);
    map(OpKernel::relu_forward, c.out[0], c.in[0].data, c.out[0].data);
  }
  void run(const op::ReluBackward&, Call& c) {
    start("relu_backward", c);
    map(OpKernel::relu_backward, c.out[0], c.in[0].data, c.in[1].data, c.out[0].data);
  }
  void run(const op::Add&, Call& c) {
    start("add", c);
    map(OpKernel::add, c.out[0], c.in[0].data, c.in[1].data, c.out[0].data);
  }
  void run(const op::Bias&, Call& c) {
    start("bias", c);
    const TensorRef& y = c.out[0];
    const std::int64_t channels = y.shape[1], n = y.shape.numel();
    launcher_.op(y.dtype, by_channels(y.dtype, channels, OpKernel::bias_forward),
                 launcher_.blocks(n / width(y.dtype, channels)), Launcher::block, c.in[0].data, c.in[1].data, y.data,
                 static_cast<int>(channels), n);
  }
  void run(const op::BiasBackward&, Call& c) {
    start("bias_backward", c);
    run_column_sums(launcher_, workspace_, c.in[0], c.in[0].shape[1], c.out[0].data);
  }
  void run(const op::MaxPool& o, Call& c) {
    start("max_pool", c);
    const TensorRef& y = c.out[0];
    const std::int64_t channels = y.shape[1], vectors = y.shape.numel() / width(y.dtype, channels);
    launcher_.op(y.dtype, by_channels(y.dtype, channels, OpKernel::max_pool), launcher_.blocks(vectors),
                 Launcher::block, c.in[0].data, y.data, c.out[1].data, pool(o, c.in[0].shape, y.shape), vectors);
  }
  void run(const op::MaxPoolBackward& o, Call& c) {
    start("max_pool_backward", c);
    const TensorRef& dx = c.out[0];
    const std::int64_t channels = dx.shape[1], vectors = dx.shape.numel() / width(dx.dtype, channels);
    launcher_.op(dx.dtype, by_channels(dx.dtype, channels, OpKernel::max_pool_backward), launcher_.blocks(vectors),
                 Launcher::block, c.in[0].data, c.in[1].data, dx.data, pool(o, dx.shape, c.in[0].shape), vectors);
  }
  void run(const op::GlobalAvgPool&, Call& c) {
    start("global_avg_pool", c);
    average(OpKernel::average_pool, c.in[0].shape, c.out[0], c);
  }
  void run(const op::GlobalAvgPoolBackward&, Call& c) {
    start("global_avg_pool_backward", c);
    average(OpKernel::average_pool_backward, c.out[0].shape, c.out[0], c);
  }
  void run(const op::Linear&, Call& c) {
    start("linear", c);
    run_linear(*gemms_, launcher_, workspace_, device().stream(), c);
  }
  void run(const op::LinearBackwardData&, Call& c) {
    start("linear_backward_data", c);
    run_linear_backward_data(*gemms_, workspace_, device().stream(), c);
  }
  void run(const op::LinearBackwardWeights&, Call& c) {
    start("linear_backward_weights", c);
    run_linear_backward_weights(*gemms_, launcher_, workspace_, device().stream(), c);
  }
  void run(const op::SoftmaxCrossEntropy& o, Call& c) {
    start("softmax_cross_entropy", c);
    const TensorRef& z = c.in[0];
    const std::int64_t rows = z.shape[0];
    auto* const losses = workspace_.at<double>(0);
    auto* const ranks = workspace_.at<int>(loss_ranks(rows));
    const int classes = static_cast<int>(z.shape[1]);
    if (!graphs_.capturing()) write_scale(*c.scalars, z.dtype);
    launcher_.op(z.dtype, OpKernel::softmax_rows, dim3(static_cast<unsigned>(rows)), 128, z.data, c.in[1].data,
                 o.backward ? c.out[1].data : nullptr, losses, ranks, scale_.data(), classes, o.label_smoothing);
    launcher_.op(z.dtype, OpKernel::loss_finish, dim3(1), 256, losses, ranks, c.in[1].data, rows, o.top_k, classes,
                 c.out[0].data, report_.get());
  }
  void run(const op::Custom& o, Call& c) { run_custom(o.def->name, c); }
  void run(const op::CustomBackward& o, Call& c) { run_custom(o.def->name, c); }

  template <class U>
  void update(const U& o, const UpdateCall& u) {
    device().set_op("update");
    run_update(launcher_, o, u);
  }
  // Waits for the result.
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) {
    device().set_op("squared_norms");
    run_squared_norms(launcher_, u, static_cast<double*>(norms_.data()));
    std::array<double, 2> r{};
    copy_out(r.data(), norms_.data(), sizeof r);
    return {r[0], r[1]};
  }
  void average(DType t, void* to, const void* from, std::size_t n, double decay) {
    device().set_op("average");
    run_average(launcher_, t, to, from, n, decay);
  }
  void accumulate(DType t, void* to, const void* from, std::size_t n) {
    device().set_op("accumulate");
    run_accumulate(launcher_, t, to, from, n);
  }

 private:
  // kernels/pool.hpp
  struct Pool {
    int height, width, channels, out_h, out_w, kernel_h, kernel_w, stride, padding;
  };
  static Pool pool(const op::Window& o, const Shape& x, const Shape& y) {
    const auto n = [](std::int64_t v) { return static_cast<int>(v); };
    return {n(x[2]), n(x[3]), n(x[1]), n(y[2]), n(y[3]), o.kernel_h, o.kernel_w, o.stride, o.padding};
  }

  void start(std::string_view kind, const Call& c) noexcept { device().set_op(kind, c.node); }

  static int width(DType t, std::int64_t channels) { return channels % vector_of(t) == 0 ? vector_of(t) : 1; }
  static OpKernel by_channels(DType t, std::int64_t channels, OpKernel k) {
    return width(t, channels) > 1 ? k : static_cast<OpKernel>(static_cast<std::size_t>(k) + 1);
  }
  template <class... P>
  void map(OpKernel k, const TensorRef& out, P... pointers) {
    const std::int64_t n = out.shape.numel();
    launcher_.op(out.dtype, k, launcher_.blocks(n / vector_of(out.dtype)), Launcher::block, pointers..., n);
  }
  // large: the shape with the pixels.
  void average(OpKernel k, const Shape& large, const TensorRef& out, const Call& c) {
    const std::int64_t channels = large[1], vectors = out.shape.numel() / width(out.dtype, channels);
    launcher_.op(out.dtype, by_channels(out.dtype, channels, k), launcher_.blocks(vectors), Launcher::block,
                 c.in[0].data, out.data, static_cast<int>(channels), static_cast<int>(large[2] * large[3]), vectors);
  }

  std::shared_ptr<void> norm(const PrepareInfo& i, const TensorDesc& x) {
    launcher_.require(i.desc.compute);
    workspace_.reserve(norm_tiles(x.dtype, x.shape).workspace_bytes());
    return {};
  }
  std::shared_ptr<void> convolution(ConvPass pass, const op::Window& o, const PrepareInfo& i, const TensorDesc& x,
                                    const Shape& w, const TensorDesc& y) {
    launcher_.require(i.desc.compute);
    auto k = std::make_shared<PreparedConv>(pass, o, x.dtype, x.shape, w, y.shape);
    k->lay_out(convolutions_->workspace_bytes(pass, k->problem));
    workspace_.reserve(k->workspace_bytes);
    return k;
  }
  std::shared_ptr<void> product(LinearPass pass, const PrepareInfo& i, const TensorDesc& x, const TensorDesc& y) {
    launcher_.require(i.desc.compute);
    workspace_.reserve(linear_workspace_bytes(*gemms_, pass, linear_problem(pass, x, y)));
    return {};
  }
  void convolve(std::string_view kind, Call& c) {
    start(kind, c);
    run_convolution(*convolutions_, launcher_, workspace_, *static_cast<const PreparedConv*>(c.state),
                    device().stream(), c);
  }

  static std::size_t loss_ranks(std::int64_t rows) {
    return Workspace::round_up(static_cast<std::size_t>(rows) * sizeof(double));
  }
  void write_scale(const StepScalars& s, DType t = DType::f32) {
    launcher_.op(t, OpKernel::set_scale, dim3(1), 1, scale_.data(), s.loss_scale * s.inv_global_batch);
  }
  // What kernels found wrong in the data.
  void throw_report() {
    int* const r = report_.get();
    if (std::exchange(r[0], 0) != 0)
      fail<DataError>("softmax_cross_entropy", "labels in 0.." + std::to_string(r[2] - 1), std::to_string(r[1]));
  }

  void run_custom(const std::string& custom, Call& c) {
    device().set_op(custom, c.node);
    detail::custom_stream = device().stream();
    (*static_cast<const CustomOp::Kernel*>(c.state))(
        std::span<const TensorRef>(c.in.data(), static_cast<std::size_t>(c.inputs)),
        std::span<const TensorRef>(c.out.data(), static_cast<std::size_t>(c.outputs)));
  }

  CudaOptions options_;
  Launcher launcher_;
  Workspace workspace_;
  StepGraphs graphs_;
  std::shared_ptr<int> report_;  // kernels/loss.hpp
  Buffer<DeviceMemory> scale_, norms_;
  std::unique_ptr<C> convolutions_;
  std::unique_ptr<G> gemms_;
};

}  // namespace cuda

using Cuda = cuda::BasicCuda<cuda::Convolutions, cuda::Gemms>;

static_assert(Backend<Cuda>);

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
#include <tutti/train/executor.hpp>

namespace tutti {
#if !defined(TUTTI_SOURCE_CUDA)
extern
#endif
    template class Executor<Cuda>;
}  // namespace tutti
#endif
