// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/backends/cuda/programs.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti::cuda {

// Machine code loaded onto a device, and its kernels.
class Module {
 public:
  Module(const Device& device, const Binary& binary) {
    device.use();
    check(cudaLibraryLoadData(&library_, binary.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          "kernels loaded onto " + device.name());
    for (const auto& symbol : binary.symbols) {
      cudaKernel_t k = nullptr;
      check(cudaLibraryGetKernel(&k, library_, symbol.c_str()), "the kernel " + symbol);
      kernels_.push_back(k);
    }
  }
  ~Module() {
    if (library_ != nullptr) cudaLibraryUnload(library_);
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  [[nodiscard]] cudaKernel_t operator[](std::size_t i) const { return kernels_[i]; }

 private:
  cudaLibrary_t library_ = nullptr;
  std::vector<cudaKernel_t> kernels_;
};

// Our kernels on one device, compiled when a type is first asked for.
class Launcher {
 public:
  static constexpr unsigned block = 256;

  Launcher(const Device& device, Compiler compiler) : device_(device), compiler_(std::move(compiler)) {}

  // Compiles and loads what a run in this type needs; not while a graph is captured.
  void require(DType t) {
    if (!is_compute_type(t))
      fail<UsageError>("cuda", "f32 or bf16 or f16", std::string(name_of(t)),
                       "f64 runs on the reference backend alone");
    if (t == DType::bf16 && !has_bf16(device_.architecture()))
      fail<UsageError>("cuda", "f16 or f32 on " + device_.name_and_capability() + ", which has no bf16", "bf16",
                       "use --precision f16");
    if (!ops_[index(t)]) ops_[index(t)] = std::make_unique<Module>(device_, compile(op_source(t)));
    require_updates();
  }
  void require_updates() {
    if (!updates_) updates_ = std::make_unique<Module>(device_, compile(update_source()));
  }

  // Starts a kernel on the device's stream. The arguments' types are exactly those of the kernel's parameters.
  template <class... A>
  void op(DType t, OpKernel k, dim3 grid, unsigned threads, A... arguments) {
    require(t);
    launch((*ops_[index(t)])[static_cast<std::size_t>(k)], grid, threads, arguments...);
  }
  template <class... A>
  void update(UpdateKernel k, dim3 grid, unsigned threads, A... arguments) {
    require_updates();
    launch((*updates_)[static_cast<std::size_t>(k)], grid, threads, arguments...);
  }

  // Their program is compiled when the first batch wants it, ahead of any capture.
  template <class... A>
  void input(InputKernel k, dim3 grid, unsigned threads, A... arguments) {
    if (!inputs_) inputs_ = std::make_unique<Module>(device_, compile(input_source()));
    launch((*inputs_)[static_cast<std::size_t>(k)], grid, threads, arguments...);
  }

  // Blocks for n threads that take strides over what is more than the device holds at once.
  [[nodiscard]] dim3 blocks(std::int64_t n) const {
    const std::int64_t most = 16 * static_cast<std::int64_t>(device_.multiprocessors());
    return dim3(static_cast<unsigned>(std::clamp<std::int64_t>((n + block - 1) / block, 1, most)));
  }
  [[nodiscard]] const Compiler& compiler() const noexcept { return compiler_; }

 private:
  static std::size_t index(DType t) { return static_cast<std::size_t>(t); }
  [[nodiscard]] Binary compile(const Source& s) { return compiler_.compile(s, device_.architecture()); }

  template <class... A>
  void launch(cudaKernel_t k, dim3 grid, unsigned threads, A... arguments) const {
    std::array<void*, sizeof...(A)> pointers{static_cast<void*>(&arguments)...};
    device_.check_op(
        cudaLaunchKernel(reinterpret_cast<const void*>(k), grid, dim3(threads), pointers.data(), 0, device_.stream()),
        "a kernel started");
  }

  const Device& device_;
  Compiler compiler_;
  std::array<std::unique_ptr<Module>, static_cast<std::size_t>(DType::f16) + 1> ops_;
  std::unique_ptr<Module> updates_, inputs_;
};

}  // namespace tutti::cuda
