// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/backends/cuda/error.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda {

// Returns the oldest architecture that a version of the CUDA runtime supports in NVRTC and its libraries. CUDA 12:
// compute capability 7.0 (Volta); CUDA 13: 7.5 (Turing). bf16 and TF32 need 8.0 or newer; on older GPUs the 16-bit type
// is f16.
[[nodiscard]] constexpr int oldest_architecture(int runtime) noexcept { return runtime < 13000 ? 70 : 75; }
[[nodiscard]] constexpr bool has_bf16(int architecture) noexcept { return architecture >= 80; }
[[nodiscard]] constexpr bool has_tf32(int architecture) noexcept { return architecture >= 80; }
// Returns whether a kernel can start before the kernel before it in the stream has ended (programmatic dependent
// launch), also in a captured graph. Captures keep such an edge since CUDA 12.3 (cudaGraphEdgeData).
[[nodiscard]] constexpr bool starts_early(int architecture, int driver) noexcept {
  return architecture >= 90 && driver >= 12030;
}

// Returns the number of GPUs, without initialising any of them. If there is none, throws a DeviceError that names what
// is missing.
[[nodiscard]] inline int count_devices() {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    fail<DeviceError>("cuda", "an NVIDIA driver", "no driver (libcuda.so.1 is missing or cannot be loaded)",
                      "install the driver (Debian: nvidia-driver), in a container start it with the GPU, or use "
                      "another --backend");
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaErrorInsufficientDriver)
    fail<DeviceError>("cuda", {"a driver for CUDA ", version_text(runtime), " or newer"},
                      {"a driver for CUDA ", version_text(driver)}, "update the NVIDIA driver");
  if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
    fail<DeviceError>("cuda", "a GPU", "no GPU", "check whether CUDA_VISIBLE_DEVICES is set to an empty value");
  check(e, "a list of GPUs",
        "check whether nvidia-smi -L lists them; after an update of the driver, restart the machine");
  return count;
}
inline void require_device(int id) {
  const int count = count_devices();
  if (id < 0 || id >= count)
    fail<DeviceError>("cuda", {"a GPU number in 0..", count - 1}, id, "see nvidia-smi -L and CUDA_VISIBLE_DEVICES");
}

// Throws DeviceError if the GPU is older than oldest_architecture(runtime). gpu: see Device::name_and_capability().
inline void require_architecture(int architecture, int runtime, const std::string& gpu) {
  if (architecture >= oldest_architecture(runtime)) return;
  const bool volta = architecture >= oldest_architecture(12000);
  fail<DeviceError>("cuda",
                    runtime < 13000
                        ? "a GPU of compute capability 7.0 or newer (Volta, 2017)"
                        : "a GPU of compute capability 7.5 or newer (Turing, 2018), because this is a build "
                          "with CUDA " +
                              version_text(runtime),
                    gpu, volta ? "build with CUDA 12.8 or 12.9, or use another --backend" : "use another --backend");
}

// Throws DeviceError if the first call that uses a GPU failed. gpu: "GPU 0".
inline void require_usable(cudaError_t e, const std::string& gpu) {
  const bool in_use = e == cudaErrorDevicesUnavailable || e == cudaErrorDeviceAlreadyInUse;
  check(e, in_use ? gpu + " for this process" : gpu,
        in_use ? "another process uses it alone (compute mode EXCLUSIVE_PROCESS), or no process may (PROHIBITED): see "
                 "nvidia-smi -q -d COMPUTE,PIDS; --gpus chooses another GPU"
        : e == cudaErrorMemoryAllocation ? "end other programs on this GPU: see nvidia-smi"
                                         : "");
}

// One GPU and the stream that computes on it. Neither copyable nor movable: objects that are created for it hold a
// reference to it.
class Device {
 public:
  // Throws DeviceError if there is no driver or no such GPU, if the driver is too old, or if the GPU is older than
  // oldest_architecture().
  explicit Device(int id = 0) : id_(id) {
    require_device(id);
    require_usable(cudaSetDevice(id), "GPU " + std::to_string(id));
    check(cudaGetDeviceProperties(&properties_, id), "the GPU's properties");
    int runtime = 0;
    check(cudaRuntimeGetVersion(&runtime), "the version of the CUDA runtime");
    require_architecture(architecture(), runtime, name_and_capability());
    require_usable(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream on " + name());
  }
  // Ignores errors: a lost device cannot be cleaned up.
  ~Device() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] int id() const noexcept { return id_; }
  // Returns the stream, for any work but tutti's kernels. Call it for each piece of work, right before the work starts:
  // the next kernel of tutti then starts after this work has ended (kernel_stream()).
  [[nodiscard]] cudaStream_t stream() const noexcept {
    kernel_is_last_ = false;
    return stream_;
  }
  // Returns the stream for the launch of one of tutti's kernels. Sets `follows` to whether the last work in the stream
  // is such a kernel too. Call launched_together() after a cooperative launch.
  [[nodiscard]] cudaStream_t kernel_stream(bool& follows) const noexcept {
    follows = std::exchange(kernel_is_last_, true);
    return stream_;
  }
  void launched_together() const noexcept { kernel_is_last_ = false; }
  [[nodiscard]] const cudaDeviceProp& properties() const noexcept { return properties_; }
  // Example: 90 for compute capability 9.0.
  [[nodiscard]] int architecture() const noexcept { return 10 * properties_.major + properties_.minor; }
  [[nodiscard]] int multiprocessors() const noexcept { return properties_.multiProcessorCount; }
  [[nodiscard]] std::string name() const { return properties_.name; }
  // "Tesla T4 of compute capability 7.5"
  [[nodiscard]] std::string name_and_capability() const {
    return name() + " of compute capability " + std::to_string(properties_.major) + "." +
           std::to_string(properties_.minor);
  }

  // Makes this GPU the calling thread's current device.
  void use() const { check(cudaSetDevice(id_), "GPU " + std::to_string(id_)); }

  // Sets the op of the kernels that are launched from now on, and its layer. Error messages name both.
  void set_op(std::string_view kind, std::string_view node = {}) noexcept {
    kind_ = {kind_text_.data(), kind.copy(kind_text_.data(), kind_text_.size())};
    node_ = {node_text_.data(), node.copy(node_text_.data(), node_text_.size())};
  }
  // Returns the current op, for example "conv2d 'layer1.0.conv1'". Empty before the first set_op().
  [[nodiscard]] std::string op() const {
    return std::string(kind_) + (node_.empty() ? "" : " '" + std::string(node_) + "'");
  }

  // Throws DeviceError if a call failed. Kernels run asynchronously, so an op before the current one may have caused
  // the error. The message says how to find that op.
  void check_op(cudaError_t e, std::string_view what = "success") const {
    if (e == cudaSuccess) return;
    fail<DeviceError>("cuda", what, {error_text(e), (kind_.empty() ? "" : "; the last op started was " + op())},
                      e == cudaErrorMemoryAllocation ? "use a smaller --batch-size or --precision bf16"
                                                     : "kernels run asynchronously; set CUDA_LAUNCH_BLOCKING=1 and "
                                                       "--cuda-graph 0 to get the name of the op that "
                                                       "failed");
  }
  // Captured steps may hold operations of a communicator, so they must be discarded before the communicator is
  // destroyed. The owner of the captured steps registers a function `f` that discards them (null: there is no owner).
  // Code that destroys a communicator calls forget_captured() first.
  void on_forget(std::function<void()> f) { forget_ = std::move(f); }
  void forget_captured() const {
    if (forget_) forget_();
  }
  // The number of ranks whose operations a captured step may hold. NCCL requires that all ranks capture an operation,
  // or none.
  void share_steps(int ranks) const noexcept { ranks_ = ranks; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  // Count memory of this device that tutti allocates with a library's allocator instead of DeviceMemory.
  void hold(std::size_t bytes) const noexcept { held_ += bytes; }
  void hold_less(std::size_t bytes) const noexcept { held_ -= bytes; }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_; }

  // Returns true while the stream records calls for a graph instead of running them.
  [[nodiscard]] bool capturing() const {
    cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_, &s), "whether a graph is captured");
    return s != cudaStreamCaptureStatusNone;
  }

  // Blocks until everything started on the stream has ended.
  void synchronise() const { check_op(cudaStreamSynchronize(stream_), "the ops to end"); }

 private:
  int id_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  // Copies of the names: when an error arrives, the graph that holds the names may already be destroyed.
  std::array<char, 40> kind_text_{};
  std::array<char, 96> node_text_{};
  std::string_view kind_, node_;
  std::function<void()> forget_;
  mutable int ranks_ = 1;
  mutable std::size_t held_ = 0;
  mutable bool kernel_is_last_ = false;  // the last work in the stream is a kernel of tutti
};

// Whether a GPU is usable. why: the problem of an existing GPU, its driver or CUDA; empty if there is no GPU.
struct GpuCheck {
  bool will_do = false;
  std::string why;
};
[[nodiscard]] inline GpuCheck check_gpu(int id) {
  try {
    const Device device(id);
    return {true, {}};
  } catch (const DeviceError& e) {
    int driver = 0, count = 0;
    cudaDriverGetVersion(&driver);
    const cudaError_t listed = driver == 0 ? cudaErrorNoDevice : cudaGetDeviceCount(&count);
    const bool none = listed == cudaErrorNoDevice || (listed == cudaSuccess && count == 0);
    return {false, none ? std::string() : e.what()};
  }
}

}  // namespace tutti::cuda
