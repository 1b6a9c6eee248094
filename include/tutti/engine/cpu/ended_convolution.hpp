// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/convolution_end.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/norm/norm_kernels.hpp>

// A convolution with its end, by the backend's kernel of the convolution. If that kernel does not compute the end, this
// one adds it to what the kernel has just written, while it is in the cache.
namespace tutti::cpu {

class EndedConvolutionKernel final : public Kernel {
 public:
  using Make = std::function<std::unique_ptr<Kernel>(const Op&, const NodeDesc&)>;  // Backend::kernel

  // Throws UsageError if the kernel of the convolution does not compute whole lines in each task.
  EndedConvolutionKernel(const EndedConvolution& o, Isa isa, const NodeDesc& d, const Make& make)
      : end_(static_cast<const ConvolutionEnd&>(o)),
        isa_(isa),
        parts_(d.parts),
        ones_(static_cast<std::size_t>(d.out[0].shape[1]), 1.0F) {
    NodeDesc plain = d;
    plain.in.resize(2);
    kernel_ = need(o, make(o.convolution, plain));
    if (auto* const takes = dynamic_cast<TakesEnd*>(kernel_.get())) {
      takes->take_end(end_);
      adds_ = false;
      return;
    }
    bands_ = dynamic_cast<const ComputesBands*>(kernel_.get());
    if (bands_ != nullptr) return;
    plain.parts = 1;
    kernel_ = need(o, make(o.convolution, plain));
    // The end is added to all of a call's output.
    const Partition cut = kernel_->cut();
    if (cut.division != Division::rows && (cut.division != Division::whole || cut.tasks != 1))
      fail<UsageError>(tutti::name_of(o.convolution), "a kernel that computes rows independently, or all in one task",
                       "another division", "let the backend's ends_convolutions() return false");
  }

  [[nodiscard]] Partition cut() override { return kernel_->cut(); }
  [[nodiscard]] std::size_t packed_bytes() override { return kernel_->packed_bytes(); }
  void pack(const TensorRef& w, void* to) override { kernel_->pack(w, to); }
  void prepare(const PrepareInfo& i) override {
    PrepareInfo of_kernel = i;
    if (adds_ && bands_ == nullptr) of_kernel.desc.parts = 1;
    kernel_->prepare(of_kernel);
  }
  [[nodiscard]] bool is_fallback() const override { return kernel_->is_fallback(); }
  void run(Call& c) override {
    kernel_->run(c);
    if (!adds_) return;
    const Shape& y = c.out[0].shape;
    const std::int64_t line = y[3] * y[1];
    Band b{0, 0, y[0] * y[2]};
    if (parts_ > 1 && bands_ != nullptr) {
      b = bands_->band(c.task, c.tasks);
      b.first += b.image * y[2];
      b.end += b.image * y[2];
    }
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      T* const to = static_cast<T*>(c.out[0].data) + b.first * line;
      const T* const residual = end_.residual ? static_cast<const T*>(c.in[3].data) + b.first * line : nullptr;
      norm_apply<T>(isa_, static_cast<const T*>(to), residual, to, (b.end - b.first) * y[3], y[1],
                    static_cast<const float*>(ones_.data()), static_cast<const float*>(c.in[2].as<float>()), end_.relu);
    });
  }

 private:
  [[nodiscard]] static std::unique_ptr<Kernel> need(const EndedConvolution& o, std::unique_ptr<Kernel> k) {
    if (k == nullptr) fail<UsageError>(tutti::name_of(o.convolution), "a kernel of the backend", "no kernel");
    return k;
  }

  ConvolutionEnd end_;
  Isa isa_;
  int parts_;
  std::vector<float> ones_;  // factors of norm_apply
  std::unique_ptr<Kernel> kernel_;
  const ComputesBands* bands_ = nullptr;
  bool adds_ = true;
};

}  // namespace tutti::cpu
