// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/nvtx.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/backends/cuda/ops/integer_ops.hpp>
#include <tutti/backends/cuda/ops/loss_op.hpp>
#include <tutti/backends/cuda/ops/muon_ops.hpp>
#include <tutti/backends/cuda/ops/update_ops.hpp>
#include <tutti/backends/cuda/ops/weight_gradients.hpp>
#include <tutti/backends/cuda/options.hpp>
#include <tutti/backends/cuda/pack_table.hpp>
#include <tutti/backends/cuda/staging.hpp>
#include <tutti/backends/cuda/step_finisher.hpp>
#include <tutti/backends/cuda/step_graph.hpp>
#include <tutti/backends/cuda/utilisation.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/step/step_finisher.hpp>

namespace tutti::cuda {

// The part of the CUDA backend that does not depend on the ops of graphs (those are in cuda.hpp): its properties,
// memory, batches, captured runs, packed weights and the ends of steps.
class Core : public Backend, public DeviceMemory {
 public:
  // Throws DeviceError if there is no driver, no GPU, or only a GPU that is too old. Throws UsageError if tf32 is
  // requested and the GPU lacks it.
  explicit Core(CudaOptions o)
      : DeviceMemory(o.device),
        options_(std::move(o)),
        launcher_(device(), Compiler(options_.kernel_folder), options_.early_kernels),
        workspace_(*this),
        gradients_(*this, launcher_),
        staging_(*this, launcher_),
        graphs_(device()),
        loss_(*this, launcher_) {
    if (!has_tf32(device().architecture()) && std::exchange(options_.tf32, false).value_or(false))
      fail<UsageError>("--tf32", "a GPU of compute capability 8.0 or newer", device().name_and_capability(),
                       "leave it out, or use --precision f16");
    norms_ = Buffer(*this, squared_norms_bytes);
    NvtxRanges::watch_if_profiled();
  }

  [[nodiscard]] Memory& memory() noexcept override { return *this; }
  [[nodiscard]] std::string name() const override { return "cuda"; }
  [[nodiscard]] bool computes_in(DType t) const override {
    return t == DType::f32 || t == DType::bf16 || t == DType::f16;
  }
  // If the compute type has 16 bits, cuDNN rounds the gradients of convolution weights to it.
  [[nodiscard]] bool rounds_weight_gradients() const override { return true; }
  [[nodiscard]] std::string description() const override {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return device().name() + " (sm_" + std::to_string(device().architecture()) + "), CUDA " + version_text(runtime) +
           ", driver for CUDA " + version_text(driver);
  }
  // Kernels of tutti do not depend on the number of multiprocessors; those of the libraries may.
  [[nodiscard]] std::vector<BitFact> bits_depend_on() const override {
    std::vector<BitFact> facts = Backend::bits_depend_on();
    facts.push_back({"multiprocessors", std::to_string(device().multiprocessors())});
    facts.push_back({"TF32", !options_.tf32 ? "in convolutions" : *options_.tf32 ? "yes" : "no"});
    facts.push_back({"fusion", std::string(name_of(options_.fusion))});
    facts.push_back({"recompute", options_.recompute ? "yes" : "no"});
    return facts;
  }
  // See Utilisation. The first call searches for NVML.
  [[nodiscard]] std::optional<double> utilisation() noexcept override {
    if (!utilisation_) utilisation_.emplace(device().properties());
    return (*utilisation_)();
  }
  [[nodiscard]] const CudaOptions& options() const noexcept { return options_; }
  [[nodiscard]] Launcher& launcher() noexcept { return launcher_; }
  [[nodiscard]] std::size_t chunk_bytes() const override { return std::size_t{1} << 40; }

  void copy_out(void* to, const void* from, std::size_t n) override {
    DeviceMemory::copy_out(to, from, n);
    loss_.throw_report();
  }
  void synchronise() override {
    DeviceMemory::synchronise();
    loss_.throw_report();
  }

  // Uploads a batch into the slot that the steps read (staging.hpp), from the host or from images on the device.
  // Earlier steps continue meanwhile. Images in pinned memory must not change until wait_for_uploads() has returned.
  void upload(const void* images, std::size_t image_bytes, const void* labels, std::size_t label_bytes,
              void* image_slot, void* label_slot) override {
    staging_.upload(images, image_bytes, labels, label_bytes, image_slot, label_slot);
  }
  void wait_for_uploads() override { staging_.wait(); }
  [[nodiscard]] bool gathers_images() const override { return true; }
  void gather_images(const ResidentImages& from, const ImageWindow* windows, std::int64_t rows, void* image_slot,
                     void* label_slot) override {
    staging_.gather(from, windows, rows, image_slot, label_slot);
  }
  [[nodiscard]] bool pins_memory() const override { return true; }
  [[nodiscard]] std::shared_ptr<void> allocate_pinned(std::size_t bytes) override {
    return cuda::allocate_pinned(bytes);
  }

  // Runs `f`, which starts ops. Later calls with the same key replay captured ops instead (StepGraphs). The key holds
  // the addresses and everything else on which the ops depend. Numbers that change from step to step are written before
  // the replay. Host code of custom ops does not run in a replay. scalars: null if `f` handles the scale of the loss
  // itself (StepFinisher::begin).
  void replay(std::span<const std::uint64_t> key, const StepScalars* scalars, FunctionRef<void()> f) override {
    if (!options_.graph) return f();
    if (scalars != nullptr) loss_.write_scale(*scalars);
    graphs_.run(key, {workspace_.data(), gradients_.data()}, f);
  }

  // Returns an option that reduces the memory use, or an empty string if that option is set.
  [[nodiscard]] std::string memory_hint() const override { return options_.recompute ? "" : "--recompute"; }

  // Gradients of convolution weights are collected: one launch converts many of them to their final layout.
  void begin_gradients() noexcept override { gradients_.begin(); }
  void finish_gradients() override {
    if (!gradients_.waiting()) return;
    device().set_op("unpack_gradients");
    gradients_.finish();
  }

  [[nodiscard]] std::size_t pack_bytes(const Op&, const NodeDesc& d) const {
    const DType t = d.compute;
    if (d.in[1].shape.rank() == 4) {
      const PackedWeights p(t, d.in[1].shape);
      return p.is_master(t) ? 0 : static_cast<std::size_t>(p.count()) * size_of(t);
    }
    return t == DType::f32 ? 0 : static_cast<std::size_t>(d.in[1].shape.numel()) * size_of(t);
  }
  void pack(const Op&, const NodeDesc& d, const TensorRef& weights, void* to) {
    const PackTarget one{weights, to};
    cuda::PackTable(*this, d.compute, {&one, 1}).run(launcher_, d.compute);
  }
  // Forward and backward passes read the same packed weights.
  [[nodiscard]] bool packs_once() const override { return true; }
  [[nodiscard]] std::unique_ptr<Backend::PackTable> pack_table(DType compute,
                                                               std::span<const PackTarget> targets) override {
    struct Packs final : Backend::PackTable {
      Packs(Core& b, DType t, std::span<const PackTarget> to) : backend(b), compute(t), table(b, t, to) {}
      void run() override {
        backend.device().set_op("pack");
        table.run(backend.launcher_, compute);
      }
      Core& backend;
      DType compute;
      cuda::PackTable table;
    };
    return std::make_unique<Packs>(*this, compute, targets);
  }

  void update(const UpdateOp& any, const UpdateCall& u) override {
    device().set_op("update");
    auto* const sums = static_cast<double*>(norms_.data());
    if (const auto* muon = std::get_if<MuonUpdate>(&any)) {
      require_master(u.dtype);
      if (u.rows == 0) return std::visit([&](const auto& o) { run_update(launcher_, o, u, sums); }, muon->rest);
      muon_.reserve(*this, u.rows, u.cols);
      return muon_.step(launcher_, *muon, u, sums, nullptr, nullptr);
    }
    std::visit(
        [&](const auto& o) {
          if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(o)>, MuonUpdate>)
            run_update(launcher_, o, u, sums);
        },
        any);
  }
  // Blocks until the result is on the host.
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) override {
    device().set_op("squared_norms");
    run_squared_norms(launcher_, u, static_cast<double*>(norms_.data()));
    std::array<double, 2> r{};
    copy_out(r.data(), norms_.data(), sizeof r);
    return {r[0], r[1]};
  }
  void average(DType t, void* to, const void* from, std::size_t n, double decay) override {
    device().set_op("average");
    run_average(launcher_, t, to, from, n, decay);
  }
  void accumulate(DType t, void* to, const void* from, std::size_t n) override {
    device().set_op("accumulate");
    run_accumulate(launcher_, t, to, from, n);
  }
  void to_integers(const ToIntegers& c) override {
    device().set_op("to_integers");
    run_to_integers(launcher_, c);
  }
  void from_integers(const FromIntegers& c) override {
    device().set_op("from_integers");
    run_from_integers(launcher_, c);
  }
  // Returns the object that ends training steps on the device, without the host. It must not outlive this backend.
  [[nodiscard]] std::unique_ptr<StepFinisher> step_finisher(const ModelState& state,
                                                            const UpdateRules& rules) override {
    return std::make_unique<CudaStepFinisher>(
        *this, launcher_, loss_.scale(), [this] { loss_.throw_report(); }, state, rules);
  }

 protected:
  CudaOptions options_;
  Launcher launcher_;
  Workspace workspace_;
  WeightGradients gradients_;
  Staging staging_;
  StepGraphs graphs_;
  LossOp loss_;

 private:
  std::optional<Utilisation> utilisation_;
  Buffer norms_;
  MuonRoom muon_;
};

}  // namespace tutti::cuda
