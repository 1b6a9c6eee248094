// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/async_init.hpp>
#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/backends/cuda/programs.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti::cuda {

// Machine code on a device, and the kernels in it.
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

// Launches tutti's kernels on one device. All calls must come from one thread. If the GPU and the driver can do it
// (starts_early()), a kernel that directly follows another one of tutti starts before that one has ended, and waits in
// its first instruction (kernels/common.hpp). So the time between the two kernels is shorter. A kernel after any other
// work, such as a library's kernel, a copy or a wait for an event, starts after this work has ended. So do kernels
// whose blocks wait for each other, and kernels after them.
class Launcher {
 public:
  static constexpr unsigned block = 256;

  // early: kernels may start early if the GPU and the driver can do it.
  Launcher(const Device& device, Compiler compiler, bool early = true)
      : device_(device), compiler_(std::move(compiler)) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    early_ = early && starts_early(device.architecture(), driver);
  }
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  // Starts threads that compile and load the kernels for this type. The first launch waits for them.
  void begin(DType t) {
    if (!is_compute_type(t))
      fail<UsageError>("cuda", "f32, bf16 or f16", name_of(t), "only the reference backend supports f64");
    if (t == DType::bf16 && !has_bf16(device_.architecture()))
      fail<UsageError>("cuda", {"f16 or f32 on ", device_.name_and_capability(), ", which has no bf16"}, "bf16",
                       "use --precision f16");
    ops_[index(t)].begin([this, t] { return load(op_source(t)); });
    begin_updates();
  }
  void begin_updates() {
    updates_.begin([this] { return load(update_source()); });
  }
  // Blocks until the kernels for this type are loaded. Must not be called while a graph is captured.
  void require(DType t) {
    begin(t);
    (void)ops_[index(t)].get();
    require_updates();
  }
  void require_updates() {
    begin_updates();
    (void)updates_.get();
  }

  // Starts a kernel on the device's stream. The arguments must have exactly the types of the kernel's parameters. If
  // assertions are on, checks their number and sizes.
  template <class... A>
  void op(DType t, OpKernel k, dim3 grid, unsigned threads, A... arguments) {
    require(t);
    launch(ops_[index(t)].made(), op_kernel_names, k, grid, threads, false, arguments...);
  }
  template <class... A>
  void update(UpdateKernel k, dim3 grid, unsigned threads, A... arguments) {
    require_updates();
    launch(updates_.made(), update_kernel_names, k, grid, threads, false, arguments...);
  }

  // Starts a kernel whose blocks wait for each other, with grid.x times at most grid.y blocks, as many as the GPU runs
  // at the same time. Returns false if it does not run grid.x of them at the same time.
  template <class... A>
  [[nodiscard]] bool op_together(DType t, OpKernel k, dim3 grid, unsigned threads, A... arguments) {
    require(t);
    const Module& module = ops_[index(t)].made();
    grid.y = std::min(grid.y, blocks_together(module[static_cast<std::size_t>(k)], threads) / grid.x);
    if (grid.y == 0) return false;
    launch(module, op_kernel_names, k, grid, threads, true, arguments...);
    return true;
  }

  // Starts an input kernel. Compiles their program when the first batch needs it, which is before any capture.
  template <class... A>
  void input(InputKernel k, dim3 grid, unsigned threads, A... arguments) {
    if (!inputs_) inputs_ = load(input_source());
    launch(*inputs_, input_kernel_names, k, grid, threads, false, arguments...);
  }

  // Returns the number of blocks for n threads, at most 16 for each multiprocessor: kernels loop over the rest.
  [[nodiscard]] dim3 blocks(std::int64_t n) const {
    const std::int64_t most = 16 * static_cast<std::int64_t>(device_.multiprocessors());
    return dim3(static_cast<unsigned>(std::clamp<std::int64_t>((n + block - 1) / block, 1, most)));
  }
  [[nodiscard]] const Compiler& compiler() const noexcept { return compiler_; }

 private:
  static std::size_t index(DType t) { return static_cast<std::size_t>(t); }
  // May be called from several threads at once.
  [[nodiscard]] std::unique_ptr<Module> load(const Source& s) {
    return std::make_unique<Module>(device_, compiler_.compile(s, device_.architecture()));
  }

  // Returns the number of blocks of a kernel that the GPU runs at the same time.
  [[nodiscard]] unsigned blocks_together(cudaKernel_t kernel, unsigned threads) {
    unsigned& blocks = blocks_together_.try_emplace(kernel, 0).first->second;
    if (blocks > 0) return blocks;
    int each = 0;
    device_.use();
    device_.check_op(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<const void*>(kernel),
                                                                   static_cast<int>(threads), 0),
                     "the number of blocks that run at the same time");
    return blocks = static_cast<unsigned>(each * device_.multiprocessors());
  }

  // together: a cooperative launch.
  template <class Names, class K, class... A>
  void launch(const Module& module, const Names& names, K which, dim3 grid, unsigned threads, bool together,
              A... arguments) const {
    const auto i = static_cast<std::size_t>(which);
    const auto* const kernel = reinterpret_cast<const void*>(module[i]);
#if !defined(NDEBUG)
    // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is what the kernel gets
    require_parameters(kernel, names[i], std::array<std::size_t, sizeof...(A)>{sizeof(A)...});
#else
    (void)names;
#endif
    std::array<void*, sizeof...(A)> pointers{static_cast<void*>(&arguments)...};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    bool follows = false;
    config.stream = device_.kernel_stream(follows);
    cudaLaunchAttribute attribute{};
    config.attrs = &attribute;
    if (together) {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
      config.numAttrs = 1;
      device_.launched_together();
    } else if (early_ && follows) {
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      config.numAttrs = 1;
    }
    device_.check_op(cudaLaunchKernelExC(&config, kernel, pointers.data()), "a kernel started");
  }
  // The compiler does not know a kernel's parameters: an int passed for a 64-bit parameter would compile, and the
  // kernel would read beyond it.
  static void require_parameters(const void* kernel, std::string_view name, std::span<const std::size_t> sizes) {
    std::string expected, got;
    for (std::size_t i = 0;; ++i) {
      std::size_t offset = 0, size = 0;
      const cudaError_t e = cudaFuncGetParamInfo(kernel, i, &offset, &size);
      if (e != cudaSuccess) {
        cudaGetLastError();                                // clears the error: this is the end of the list
        if (e != cudaErrorInvalidValue || i == 0) return;  // a driver without this information
        break;
      }
      expected += (i > 0 ? ", " : "") + std::to_string(size);
    }
    for (const std::size_t size : sizes) got += (got.empty() ? "" : ", ") + std::to_string(size);
    if (got != expected)
      fail({"kernel ", name}, {"arguments of these bytes: ", expected}, got, "this is a bug in tutti");
  }

  const Device& device_;
  Compiler compiler_;
  std::array<AsyncInit<Module>, static_cast<std::size_t>(DType::f16) + 1> ops_;
  AsyncInit<Module> updates_;
  std::unique_ptr<Module> inputs_;
  std::map<cudaKernel_t, unsigned> blocks_together_;
  bool early_ = false;
};

}  // namespace tutti::cuda
