// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/core.hpp>
#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/backends/cuda/ops/fused_ops.hpp>
#include <tutti/backends/cuda/ops/linear_op.hpp>
#include <tutti/backends/cuda/ops/loss_op.hpp>
#include <tutti/backends/cuda/ops/node_kernel.hpp>
#include <tutti/backends/cuda/ops/norm_choice.hpp>
#include <tutti/backends/cuda/ops/norm_ops.hpp>
#include <tutti/backends/cuda/ops/norm_shortcut.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/backends/cuda/ops/simple_ops.hpp>
#include <tutti/backends/cuda/ops/stem.hpp>
#include <tutti/backends/cuda/ops/weight_gradients.hpp>
#include <tutti/backends/cuda/options.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/custom_kernel.hpp>
#include <tutti/graph/custom.hpp>

namespace tutti {
namespace cuda {

namespace detail {
inline thread_local cudaStream_t custom_stream = nullptr;
}  // namespace detail
// Returns the stream on which a kernel of a custom op (CustomOp::forward["cuda"]) starts its work.
[[nodiscard]] inline cudaStream_t stream_in_use() noexcept { return detail::custom_stream; }

// A library class that takes long to open the library. begin() starts a thread that opens it and creates its handle.
template <class L>
concept HasAsyncBegin = requires(L& library) {
  library.begin();
};

// The backend for one GPU, in f32, bf16 and f16. C computes the convolutions, G the matrix products, and tutti's
// kernels everything else. Ops are started in order on one stream and run asynchronously; copy_out() and synchronise()
// wait. All calls must come from the thread that constructed the backend.
template <class C, class G>
class BasicCudaBackend : public Core {
 public:
  // Throws DeviceError if there is no driver, no GPU, or only a GPU that is too old. Throws UsageError if tf32 is
  // requested and the GPU lacks it. The first operation that needs a missing library reports it.
  explicit BasicCudaBackend(CudaOptions o = {})
      : Core(std::move(o)),
        convolutions_(std::make_unique<C>(device(), convolution_options(options_))),
        gemms_(std::make_unique<G>(device(), gemm_options(options_))) {
    if constexpr (HasAsyncBegin<C>) convolutions_->begin();
  }

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;

  // From now on, only deterministic kernels of the libraries, which no measurement chooses.
  void fix_division() override {
    options_.deterministic = options_.fixed_kernels = true;
    options_.autotune = false;
    norms_once_.keep_separate();
    convolutions_ = std::make_unique<C>(device(), convolution_options(options_));
    if constexpr (HasAsyncBegin<C>) convolutions_->begin();
  }
  [[nodiscard]] std::vector<BitFact> bits_depend_on() const override {
    std::vector<BitFact> facts = Core::bits_depend_on();
    if constexpr (requires { C::version(); }) facts.push_back({"cuDNN", C::version()});
    if constexpr (requires { G::version(); }) facts.push_back({"cuBLASLt", G::version()});
    return facts;
  }
  [[nodiscard]] std::string choices() override {
    if constexpr (SharesChoices<C>) return convolutions_->choices();
    return "";
  }
  bool take_choices(std::string_view choices) override {
    bool changed = false;
    if constexpr (SharesChoices<C>) changed = convolutions_->take_choices(choices);
    if (changed) as_one_ = in_steps_ = 0;
    return changed;
  }

  // Fuses several ops of a training graph into one if that is faster (fused_ops.hpp); fused_layers() returns the layers
  // of these ops. The graph shows which kernels and libraries a run needs: threads start to prepare them here, while
  // cuDNN's plans are built.
  void rewrite(Graph& g, DType compute) override {
    for (const Node& n : g.nodes)
      if (const auto* bn = std::get_if<op::BatchNorm>(&n.op); bn != nullptr && bn->frozen)
        fail<UsageError>(n.name, "a batch norm with the statistics of the batch on backend 'cuda'", "frozen statistics",
                         "use a backend on the processor");
    launcher_.begin(compute);
    if constexpr (HasAsyncBegin<G>)
      if (std::any_of(g.nodes.begin(), g.nodes.end(),
                      [](const Node& n) { return std::holds_alternative<op::Linear>(n.op); }))
        gemms_->begin();
    const auto o = FusesConvolutions<C> || options_.fusion == CudaFusion::on
                       ? norm_fusions(options_, device().architecture(), compute)
                       : NormFusions{false, false, false, !options_.recompute, true, true};
    fused_layers_ = fuse_norms(g, o);
    widen_images(g, compute);
  }
  [[nodiscard]] const FusedLayers& fused_layers() const noexcept { return fused_layers_; }
  // Returns the numbers of fused ops in the plans so far that the library runs as one kernel, and that run step by
  // step.
  [[nodiscard]] std::pair<int, int> fusions() const noexcept { return {as_one_, in_steps_}; }

  template <class O>
  [[nodiscard]] std::shared_ptr<void> prepare(const O&, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    return {};
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::Normalize& o, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    const std::size_t bytes = o.mean.size() * sizeof(float);
    auto b = std::make_shared<Buffer>(*this, 2 * bytes);
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
  [[nodiscard]] std::shared_ptr<void> prepare(const Conv2dStatistics& o, const PrepareInfo& i) {
    const auto& d = i.desc;
    return fusion(o.activate ? FusedPass::activated_statistics : FusedPass::statistics, o, d, d.in[0], d.in[1].shape,
                  d.out[0]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const Conv2dBackwardWeightsActivated& o, const PrepareInfo& i) {
    const auto& d = i.desc;
    return fusion(FusedPass::activated_backward_weights, o, d, d.in[0], d.out[0].shape, d.in[1]);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const Conv2dBackwardDataNorm& o, const PrepareInfo& i) {
    const auto& d = i.desc;
    return fusion(FusedPass::backward_data_norm, o, d, d.out[0], d.in[1].shape, d.in[0]);
  }
  template <ChosenNorm O>
  [[nodiscard]] std::shared_ptr<void> prepare(const O& o, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    return prepare_norm(*convolutions_, launcher_, norms_once_, workspace_, device(), options_, o, i.desc);
  }
  template <ShortcutOp O>
  [[nodiscard]] std::shared_ptr<void> prepare(const O& o, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    return prepare_shortcut(shortcuts_, *convolutions_, launcher_, norms_once_, workspace_, device(), options_, o,
                            i.desc);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const BatchNormBackwardFromMask&, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    workspace_.reserve(mask_tiles(i.desc.in[0].shape).workspace_bytes());
    norms_once_.reserve();
    return {};
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BiasBackward&, const PrepareInfo& i) {
    launcher_.begin(i.desc.compute);
    workspace_.reserve(norm_tiles(i.desc.in[0].dtype, i.desc.in[0].shape).workspace_bytes());
    return {};
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
    launcher_.begin(i.desc.compute);
    workspace_.reserve(LossOp::workspace_bytes(i.desc.in[0].shape[0]));
    return {};
  }

  void run(const op::Normalize& o, Call& c) {
    start("normalize", c);
    const auto& constants = *static_cast<Buffer*>(c.prepared);
    const TensorRef& x = c.out[0];
    const auto channels = static_cast<std::int64_t>(o.mean.size());
    const bool padded = x.shape[1] != channels;  // by widen_images() (stem.hpp)
    const std::int64_t n = padded ? x.shape.numel() / x.shape[1] : x.shape.numel();
    launcher_.op(x.dtype,
                 !padded           ? OpKernel::normalize
                 : x.shape[1] == 4 ? OpKernel::normalize_padded_4
                                   : OpKernel::normalize_padded_8,
                 launcher_.blocks(padded ? n : n / vector_of(x.dtype)), Launcher::block, c.in[0].data, x.data,
                 constants.data(), static_cast<void*>(constants.at(o.mean.size() * sizeof(float))),
                 static_cast<int>(channels), n);
  }
  void run(const op::Conv2d&, Call& c) { convolve("conv2d", c); }
  void run(const op::Conv2dBackwardData&, Call& c) { convolve("conv2d_backward_data", c); }
  void run(const op::Conv2dBackwardWeights&, Call& c) { convolve("conv2d_backward_weights", c); }
  template <ChosenNorm O>
  void run(const O& o, Call& c) {
    start(O::info.name, c);
    run_chosen_norm(launcher_, norms_once_, workspace_, o, c);
  }
  template <ShortcutOp O>
  void run(const O& o, Call& c) {
    start(O::info.name, c);
    run_shortcut(launcher_, norms_once_, workspace_, o, c);
  }
  void run(const op::BatchNormInference& o, Call& c) {
    start("batch_norm_inference", c);
    run_batch_norm_inference(launcher_, o, c);
  }
  void run(const BatchNormBackwardFromMask& o, Call& c) {
    start("batch_norm_backward_from_mask", c);
    run_batch_norm_backward(launcher_, norms_once_, workspace_, {true, true, o.second}, c, true);
  }
  void run(const Conv2dStatistics&, Call& c) { fused("conv2d_statistics", c); }
  void run(const Conv2dBackwardWeightsActivated&, Call& c) { fused("conv2d_backward_weights_activated", c); }
  void run(const Conv2dBackwardDataNorm&, Call& c) { fused("conv2d_backward_data_norm", c); }
  void run(const BatchNormFromSums& o, Call& c) {
    start("batch_norm_from_sums", c);
    run_batch_norm_from_sums(launcher_, o, c);
  }
  void run(const BatchNormBackwardApply&, Call& c) {
    start("batch_norm_backward_apply", c);
    run_batch_norm_backward_apply(launcher_, c);
  }
  void run(const op::Relu&, Call& c) {
    start("relu", c);
    run_map(launcher_, OpKernel::relu_forward, c.out[0], c.in[0].data);
  }
  void run(const op::ReluBackward&, Call& c) {
    start("relu_backward", c);
    run_map(launcher_, OpKernel::relu_backward, c.out[0], c.in[0].data, c.in[1].data);
  }
  void run(const op::Activation& o, Call& c) {
    start(op::name_of(o.kind, false), c);
    run_map(launcher_, kernel_of_activation(o.kind, false), c.out[0], c.in[0].data);
  }
  void run(const op::ActivationBackward& o, Call& c) {
    start(op::name_of(o.kind, true), c);
    run_map(launcher_, kernel_of_activation(o.kind, true), c.out[0], c.in[0].data, c.in[1].data);
  }
  void run(const op::Add&, Call& c) {
    start("add", c);
    run_map(launcher_, OpKernel::add, c.out[0], c.in[0].data, c.in[1].data);
  }
  void run(const op::Bias&, Call& c) {
    start("bias", c);
    run_bias(launcher_, c);
  }
  void run(const op::BiasBackward&, Call& c) {
    start("bias_backward", c);
    run_column_sums(launcher_, workspace_, c.in[0], c.in[0].shape[1], c.out[0].data);
  }
  void run(const op::MaxPool& o, Call& c) {
    start("max_pool", c);
    run_max_pool(launcher_, o, c);
  }
  void run(const op::MaxPoolBackward& o, Call& c) {
    start("max_pool_backward", c);
    run_max_pool_backward(launcher_, o, c);
  }
  void run(const op::AvgPool& o, Call& c) {
    start(o.global() ? "global_avg_pool" : "avg_pool", c);
    const Shape &x = c.in[0].shape, &y = c.out[0].shape;
    if (o.global()) return run_average_pool(launcher_, forms::average_pool, x, c);
    run_window_average(launcher_, forms::window_average, o, x, y, c);
  }
  void run(const op::AvgPoolBackward& o, Call& c) {
    start(o.global() ? "global_avg_pool_backward" : "avg_pool_backward", c);
    const Shape &x = c.out[0].shape, &y = c.in[0].shape;
    if (o.global()) return run_average_pool(launcher_, forms::average_pool_backward, x, c);
    run_window_average(launcher_, forms::window_average_backward, o, x, y, c);
  }
  void run(const op::Linear&, Call& c) {
    start("linear", c);
    run_linear(*gemms_, launcher_, workspace_, c);
  }
  void run(const op::LinearBackwardData&, Call& c) {
    start("linear_backward_data", c);
    run_linear_backward_data(*gemms_, workspace_, device().stream(), c);
  }
  void run(const op::LinearBackwardWeights&, Call& c) {
    start("linear_backward_weights", c);
    run_linear_backward_weights(*gemms_, launcher_, workspace_, c);
  }
  void run(const op::SoftmaxCrossEntropy& o, Call& c) {
    start("softmax_cross_entropy", c);
    loss_.run(workspace_, o, c, c.scalars != nullptr && !graphs_.capturing());
  }

 private:
  void start(std::string_view kind, const Call& c) noexcept { device().set_op(kind, c.node); }

  std::shared_ptr<void> convolution(ConvPass pass, const op::Window& o, const PrepareInfo& i, const TensorDesc& x,
                                    const Shape& w, const TensorDesc& y) {
    launcher_.begin(i.desc.compute);
    auto k = std::make_shared<PreparedConv>(pass, o, x.dtype, x.shape, w, y.shape);
    k->lay_out(convolutions_->workspace_bytes(pass, k->problem));
    workspace_.reserve(k->workspace_bytes);
    if (pass == ConvPass::backward_weights && k->unpacks()) gradients_.reserve(k->gradient_form().bytes);
    return k;
  }
  std::shared_ptr<void> fusion(FusedPass pass, const op::Window& o, const NodeDesc& d, const TensorDesc& x,
                               const Shape& w, const TensorDesc& y) {
    launcher_.begin(d.compute);
    auto k = prepare_fusion(*convolutions_, launcher_, workspace_, gradients_, device(), options_, pass, o, d, x.shape,
                            w, y.shape);
    ++(k->fused ? as_one_ : in_steps_);
    return k;
  }
  void fused(std::string_view kind, Call& c) {
    start(kind, c);
    run_fusion(*convolutions_, launcher_, workspace_, gradients_, *static_cast<const PreparedFusion*>(c.prepared), c);
  }
  std::shared_ptr<void> product(LinearPass pass, const PrepareInfo& i, const TensorDesc& x, const TensorDesc& y) {
    launcher_.begin(i.desc.compute);
    workspace_.reserve(linear_workspace_bytes(*gemms_, pass, linear_problem(pass, x, y)));
    return {};
  }
  void convolve(std::string_view kind, Call& c) {
    start(kind, c);
    run_convolution(*convolutions_, launcher_, workspace_, gradients_, *static_cast<const PreparedConv*>(c.prepared),
                    c);
  }

  class Custom final : public Kernel {
   public:
    Custom(Device& device, std::string name, const CustomOp::Kernel& code)
        : device_(device), name_(std::move(name)), code_(code) {}
    void run(Call& c) override {
      device_.set_op(name_, c.node);
      detail::custom_stream = device_.stream();
      run_custom(code_, c);
    }

   private:
    Device& device_;
    std::string name_;
    CustomOp::Kernel code_;
  };

  NormOnce norms_once_{*this, launcher_};
  ShortcutChoices shortcuts_;
  FusedLayers fused_layers_;
  int as_one_ = 0, in_steps_ = 0;
  std::unique_ptr<C> convolutions_;
  std::unique_ptr<G> gemms_;
};

template <class C, class G>
std::unique_ptr<Kernel> BasicCudaBackend<C, G>::kernel(const Op& op, const NodeDesc& desc) {
  if (const auto* code = custom_code(op, std::array<std::string_view, 1>{"cuda"}))
    return std::make_unique<Custom>(device(), custom_op(op)->name, *code);
  if (const auto* conv = std::get_if<op::Conv2d>(&op); conv != nullptr && conv->groups > 1)
    fail<UsageError>("backend cuda", "a convolution in one group", {"op 'conv2d' in ", conv->groups, " groups"},
                     "--backend onednn and --backend eigen run it on the processor");
  if (const auto* loss = std::get_if<op::SoftmaxCrossEntropy>(&op);
      loss != nullptr && (loss->binary || desc.in[1].shape.rank() > 1))
    fail<UsageError>("backend cuda", "softmax cross entropy with one label for each image",
                     {"op '", name_of(op), desc.in[1].shape.rank() > 1 ? "' with mixed labels" : "'"},
                     "--backend onednn and --backend eigen run it on the processor");
  const auto activation = [&](const auto* o) { return o != nullptr && o->kind == op::ActivationKind::relu6; };
  if (activation(std::get_if<op::Activation>(&op)) || activation(std::get_if<op::ActivationBackward>(&op)))
    return nullptr;
  return kernel_of<Conv2dStatistics, Conv2dBackwardWeightsActivated, BatchNormFromSums, Conv2dBackwardDataNorm,
                   BatchNormBackwardApply, BatchNormWithMask, BatchNormBackwardFromMask, BatchNormOfShortcut,
                   BatchNormAddShortcut, BatchNormBackwardAddShortcut, BatchNormBackwardOfShortcut>(*this, op, desc);
}

}  // namespace cuda

using CudaBackend = cuda::BasicCudaBackend<cuda::Convolutions, cuda::Gemms>;

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
namespace tutti {
#if !defined(TUTTI_SOURCE_CUDA) && !defined(TUTTI_IMPLEMENTATION)
extern
#endif
    template class cuda::BasicCudaBackend<cuda::Convolutions, cuda::Gemms>;
}  // namespace tutti
#endif
