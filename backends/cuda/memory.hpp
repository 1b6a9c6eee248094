// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/core/error.hpp>
#include <tutti/tensor/memory.hpp>

// Memory of the device, pinned memory of the host, streams and events.
namespace tutti::cuda {

// Returns a size as text, for example "1.50 GiB".
[[nodiscard]] inline std::string size_text(std::size_t bytes) {
  char text[32];
  const auto n = static_cast<double>(bytes);
  if (bytes < 10240)
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  else if (n < 1e9)
    std::snprintf(text, sizeof text, "%.1f MiB", n / 0x1p20);
  else
    std::snprintf(text, sizeof text, "%.2f GiB", n / 0x1p30);
  return text;
}

// The device's memory. All calls take effect in the order of the device's stream. copy_out() and synchronise() wait for
// the stream and therefore report errors of earlier ops.
class DeviceMemory : public Memory {
 public:
  // id: number of the GPU.
  explicit DeviceMemory(int id) : device_(std::make_unique<Device>(id)), unused_at_start_(unused_bytes()) {}

  [[nodiscard]] Device& device() noexcept { return *device_; }
  [[nodiscard]] const Device& device() const noexcept { return *device_; }

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    device_->use();
    void* p = nullptr;
    const cudaError_t e = cudaMalloc(&p, bytes > 0 ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error: it is not sticky
      fail<DeviceError>("cuda", {size_text(bytes), " of memory on ", device_->name()},
                        {size_text(unused_bytes()), " free of ", size_text(device_->properties().totalGlobalMem)},
                        "use a smaller --batch-size or --precision bf16, or end other programs on this GPU");
    }
    device_->check_op(e, size_text(bytes) + " of memory");
    allocated_ += bytes;
    return p;
  }
  // Waits for the ops that may still use the memory. Ignores errors.
  void deallocate(void* p, std::size_t bytes) noexcept override {
    allocated_ -= bytes;
    cudaStreamSynchronize(device_->stream());
    cudaFree(p);
  }
  void zero(void* p, std::size_t n) override {
    if (n > 0) device_->check_op(cudaMemsetAsync(p, 0, n, device_->stream()), "zeros");
  }
  // A copy from pinned memory may continue after the call: `from` must stay valid until the next copy_out() or
  // synchronise().
  void copy_in(void* to, const void* from, std::size_t n) override { transfer(to, from, n, cudaMemcpyHostToDevice); }
  void copy_out(void* to, const void* from, std::size_t n) override {
    transfer(to, from, n, cudaMemcpyDeviceToHost);
    device_->synchronise();
  }
  void copy(void* to, const void* from, std::size_t n) override { transfer(to, from, n, cudaMemcpyDeviceToDevice); }
  void synchronise() override { device_->synchronise(); }

  // Returns the bytes that allocate() returned and deallocate() has not yet freed, and what tutti holds of libraries'
  // allocators (Device::hold).
  [[nodiscard]] std::size_t allocated_bytes() const noexcept override { return allocated_ + device_->held_bytes(); }
  // Returns the bytes that can still be allocated, without the room that the libraries still need.
  [[nodiscard]] std::size_t free_bytes() const override {
    const std::size_t now = unused_bytes();
    return now - std::min(library_bytes(), now);
  }
  // Returns the room that is kept for handles and kernels of cuDNN, cuBLASLt and NCCL, which load them at the first
  // use: 1,536 MiB, or 1,050 MiB before compute capability 8.0, as TensorFlow does (MinSystemMemory() in
  // tensorflow/core/common_runtime/gpu/gpu_device.cc), less what they have taken since this object was constructed; at
  // most a sixteenth of the unused memory.
  [[nodiscard]] std::size_t library_bytes() const {
    const std::size_t most = (device_->architecture() >= 80 ? std::size_t{1536} : std::size_t{1050}) << 20;
    const std::size_t now = unused_bytes(), held = now + allocated_bytes();
    const std::size_t taken = unused_at_start_ > held ? unused_at_start_ - held : 0;  // also by other programs
    return std::min(most > taken ? most - taken : 0, now / 16);
  }

 private:
  [[nodiscard]] std::size_t unused_bytes() const {
    device_->use();
    std::size_t available = 0, total = 0;
    device_->check_op(cudaMemGetInfo(&available, &total), "the amount of free memory");
    return available;
  }
  void transfer(void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
    if (n > 0) device_->check_op(cudaMemcpyAsync(to, from, n, kind, device_->stream()), "a copy");
  }

  std::unique_ptr<Device> device_;
  std::size_t allocated_ = 0, unused_at_start_;
};

// Allocates pinned memory of the host, which the device reads at full speed, also while kernels run. For
// LoaderOptions::allocate. The memory is freed with the last pointer to it, which may outlive the device.
[[nodiscard]] inline std::shared_ptr<void> allocate_pinned(std::size_t bytes) {
  void* p = nullptr;
  check(cudaHostAlloc(&p, bytes > 0 ? bytes : 1, cudaHostAllocPortable), size_text(bytes) + " of pinned host memory",
        "use fewer loader slots or a smaller --batch-size");
  return {p, [](void* q) { cudaFreeHost(q); }};
}

// A stream in addition to the device's own.
class Stream {
 public:
  explicit Stream(const Device& device) {
    device.use();
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), "a stream on " + device.name());
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

[[nodiscard]] inline bool has_happened(cudaEvent_t e) {
  const cudaError_t r = cudaEventQuery(e);
  if (r == cudaErrorNotReady)
    cudaGetLastError();  // clears "not ready", which is an answer: a custom op that queries the last error after its
                         // launch must not get it
  else
    check(r, "an event to happen");
  return r == cudaSuccess;
}

// A point in a stream, for which another stream or the host can wait. A waiting host thread sleeps, so that the CPU
// cores can decode images meanwhile.
class Event {
 public:
  // timing: allows seconds_since(). A host thread that waits for such an event spins instead of sleeping.
  explicit Event(const Device& device, bool timing = false) {
    device.use();
    check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming | cudaEventBlockingSync),
          "an event");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "an event in a stream"); }
  // Makes `stream` wait until the work that was started before record() has ended.
  void hold_up(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "a stream that waits"); }
  void wait() const { check(cudaEventSynchronize(event_), "an event to happen"); }
  [[nodiscard]] bool happened() const { return has_happened(event_); }
  [[nodiscard]] double seconds_since(const Event& start) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "the time between two events");
    return static_cast<double>(ms) * 1e-3;
  }
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tutti::cuda
