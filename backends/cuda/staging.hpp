// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/tensor/memory.hpp>

// Uploads batches to the device.
//
// A step reads its batch from one slot at a fixed address, because a captured step keeps its addresses. Uploads have
// buffers and a stream of their own, so that the next batch is transferred while a step computes. Right before a step,
// a copy from such a buffer to the slot is started on the device's stream. The copy is not part of the graph: its
// source changes each time, and each source would need a graph. It costs one launch and a copy within the device:
// estimated from its bytes, some 20 us for 256 images of 224x224 on an H200 (not measured).
namespace tutti::cuda {

// Buffers that the upload stream fills and the device's stream reads, in rotation.
class UploadRing {
 public:
  struct Place {
    Buffer device;
    std::shared_ptr<void> pinned;
    std::size_t pinned_bytes = 0;
    Event uploaded, emptied;
    bool used = false;
    explicit Place(const Device& d) : uploaded(d), emptied(d) {}
  };

  UploadRing(DeviceMemory& memory, const Stream& uploads, int places) : memory_(memory), uploads_(uploads.get()) {
    for (int i = 0; i < places; ++i) places_.push_back(std::make_unique<Place>(memory.device()));
  }

  // Returns the next buffer, with at least these bytes on the device and in pinned memory. Its pinned memory may be
  // written at once. Later work on the upload stream waits until the device's stream has read the buffer's previous
  // contents.
  Place& take(std::size_t device_bytes, std::size_t pinned_bytes) {
    Place& p = *places_[next_];
    next_ = (next_ + 1) % places_.size();
    if (std::exchange(p.used, true)) wait_for(p);
    if (p.device.bytes() < device_bytes) {
      p.device = {};
      p.device = Buffer(memory_, device_bytes);
      emptied(p);  // after the device's stream has written the zeros of the new buffer
    }
    if (p.pinned_bytes < pinned_bytes) {
      p.pinned = allocate_pinned(pinned_bytes);
      p.pinned_bytes = pinned_bytes;
    }
    p.emptied.hold_up(uploads_);
    return p;
  }
  void copy_in(void* to, const void* from, std::size_t n) {
    memory_.device().check_op(cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, uploads_), "an upload");
  }
  // Makes the device's stream wait for this buffer. Call after its work has been started on the upload stream.
  void filled(Place& p) {
    p.uploaded.record(uploads_);
    p.uploaded.hold_up(memory_.device().stream());
    last_ = &p;
  }
  // Call after all work that reads this buffer has been started on the device's stream.
  void emptied(Place& p) { p.emptied.record(memory_.device().stream()); }

  // Blocks until all uploads so far have read the host's memory.
  void wait() const {
    if (last_ != nullptr) wait_for(*last_);
  }

 private:
  // Reports errors of earlier ops too, so the message names the last op.
  void wait_for(const Place& p) const {
    memory_.device().check_op(cudaEventSynchronize(p.uploaded.get()), "an upload to end");
  }

  DeviceMemory& memory_;
  cudaStream_t uploads_;
  std::vector<std::unique_ptr<Place>> places_;
  std::size_t next_ = 0;
  const Place* last_ = nullptr;
};

class Staging {
 public:
  Staging(DeviceMemory& memory, Launcher& launcher)
      : memory_(memory),
        launcher_(launcher),
        uploads_(memory.device()),
        batches_(memory, uploads_, 2),
        windows_(memory, uploads_, 4) {}
  // Ignores errors: a wait for a lost device fails at once.
  ~Staging() { cudaStreamSynchronize(uploads_.get()); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Copies a batch from the host into the slot. May read images in pinned memory after the call: see wait().
  void upload(const void* images, std::size_t image_bytes, const void* labels, std::size_t label_bytes,
              void* image_slot, void* label_slot) {
    const std::size_t at = Workspace::round_up(image_bytes);
    auto& p = batches_.take(at + label_bytes, label_bytes);
    memory_.device().set_op("upload");
    // Labels are rarely pinned, and a copy from pageable memory might wait for the stream. They have few bytes, so a
    // copy in pinned memory costs little.
    std::memcpy(p.pinned.get(), labels, label_bytes);
    batches_.copy_in(p.device.data(), images, image_bytes);
    batches_.copy_in(p.device.at(at), p.pinned.get(), label_bytes);
    batches_.filled(p);
    memory_.copy(image_slot, p.device.data(), image_bytes);
    memory_.copy(label_slot, p.device.at(at), label_bytes);
    batches_.emptied(p);
  }
  // Blocks until the images of all uploads so far have been read.
  void wait() const { batches_.wait(); }

  // Copies windows [rows] of images on the device into the slot.
  void gather(const ResidentImages& from, const ImageWindow* windows, std::int64_t rows, void* image_slot,
              void* label_slot) {
    const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(ImageWindow);
    auto& p = windows_.take(bytes, bytes);
    memory_.device().set_op("gather_images");
    std::memcpy(p.pinned.get(), windows, bytes);
    windows_.copy_in(p.device.data(), p.pinned.get(), bytes);
    windows_.filled(p);
    const Sizes s{from.height,     from.width,     from.channels,
                  from.out_height, from.out_width, from.pad_mode == PadMode::reflect ? 1 : 0};
    const int line = s.out_width * s.channels, row = s.out_height * line;
    const bool wide = row % vector == 0 && s.height * s.width * s.channels % vector == 0;
    // Each thread writes four pieces of a row, of 16 bytes or of 1.
    const int pieces = (row - 1) / (wide ? vector : 1) + 1;
    const auto share = static_cast<unsigned>(std::clamp(pieces / static_cast<int>(4 * Launcher::block), 1, 1024));
    launcher_.input(wide ? InputKernel::gather_images : InputKernel::gather_images_1,
                    dim3(static_cast<unsigned>(rows), share), Launcher::block, from.images, from.labels, from.fill,
                    static_cast<const void*>(p.device.data()), image_slot, label_slot, s);
    windows_.emptied(p);
  }

 private:
  static constexpr int vector = 16;
  // The struct of kernels/input.hpp.
  struct Sizes {
    int height, width, channels, out_height, out_width, reflect;
  };

  DeviceMemory& memory_;
  Launcher& launcher_;
  Stream uploads_;
  UploadRing batches_, windows_;
};

}  // namespace tutti::cuda
