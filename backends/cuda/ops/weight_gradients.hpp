// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cuda {

// Converts gradients of convolution weights from the library's type and order to f32 OIHW, as the graph needs them.
// Each gradient has a place of its own until finish() or until the room is used up, so that one launch converts many.
// The addresses are an argument of the launch, passed by value, so a captured step contains them.
class WeightGradients {
 public:
  // The library's form: [rows, taps, padded columns]. The first `columns` of the padded columns belong to the graph.
  struct Form {
    std::int64_t rows;
    int columns, taps, padded_columns;
    std::size_t bytes;
  };

  // The bytes of two default buckets of gradients in 16 bits.
  static constexpr std::size_t default_room = std::size_t{8} << 20;

  WeightGradients(DeviceMemory& memory, Launcher& launcher, std::size_t room = default_room)
      : memory_(memory), launcher_(launcher), room_(room) {}

  // Call for each gradient before the first run that needs it. Allocates memory for all gradients together, but not
  // more than the larger of the room and the largest gradient. Runs that were captured with the old address must be
  // captured again.
  void reserve(std::size_t bytes) {
    bytes = Workspace::round_up(bytes);
    all_ += bytes;
    largest_ = std::max(largest_, bytes);
    if (std::max(largest_, std::min(all_, room_)) <= places_.bytes()) return;
    const std::size_t grown = std::max(largest_, std::min(std::max(all_, 2 * places_.bytes()), room_));
    places_ = {};
    places_ = Buffer(memory_, grown);
  }
  [[nodiscard]] void* data() const noexcept { return places_.data(); }

  [[nodiscard]] bool waiting() const noexcept { return jobs_.count > 0; }
  // Drops waiting gradients, which an aborted run has left.
  void begin() noexcept { used_ = jobs_.count = 0, blocks_ = 0; }
  // Returns the address to which the library must write a gradient. The next finish() writes the converted gradient to
  // `to`.
  [[nodiscard]] void* place(DType t, const Form& f, void* to) {
    const std::size_t bytes = Workspace::round_up(f.bytes);
    if (jobs_.count == most || used_ + bytes > places_.bytes() || (waiting() && t != type_)) finish();
    type_ = t;
    void* const from = places_.at(used_);
    used_ += bytes;
    const std::int64_t count = f.rows * f.columns * f.taps;
    jobs_.of[static_cast<std::size_t>(jobs_.count++)] = {from,   static_cast<float*>(to), count,  f.columns,
                                                         f.taps, f.padded_columns,        blocks_};
    blocks_ += static_cast<unsigned>((count + piece - 1) / piece);
    return from;
  }
  // Starts the conversion of all waiting gradients.
  void finish() {
    if (waiting()) launcher_.op(type_, OpKernel::unpack_gradients, dim3(blocks_), Launcher::block, jobs_);
    begin();
  }

 private:
  static constexpr int most = 64;
  static constexpr std::int64_t piece = 2048;  // values in a block

  // The struct UnpackJob of kernels/elementwise.hpp.
  struct Job {
    const void* from;
    float* to;
    std::int64_t count;
    int columns, taps, padded_columns;
    unsigned first_block;
  };
  struct Jobs {
    std::array<Job, most> of;
    int count;
  };

  DeviceMemory& memory_;
  Launcher& launcher_;
  std::size_t room_, all_ = 0, largest_ = 0;
  Buffer places_;
  std::size_t used_ = 0;
  DType type_ = DType::f32;
  Jobs jobs_{};
  unsigned blocks_ = 0;
};

}  // namespace tutti::cuda
