// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The memory of a model's values, one allocation for each kind. The memory for runs grows to the largest plan.
class Arenas {
 public:
  explicit Arenas(Memory& memory) : memory_(memory) {}

  // place_gradients(parameters, states): returns memory of parameters.bytes() for the gradient arena, or null.
  using PlaceGradients = FunctionRef<void*(const ArenaLayout& parameters, const ArenaLayout& states)>;
  void allocate(const ArenaLayout& parameters, const ArenaLayout& states, PlaceGradients place_gradients) {
    parameters_ = Buffer(memory_, parameters.bytes());
    states_ = Buffer(memory_, states.bytes());
    gradients_ = place_gradients(parameters, states);
    if (gradients_ != nullptr) return;
    own_gradients_ = Buffer(memory_, parameters.bytes());
    gradients_ = own_gradients_.data();
  }
  // Allocates the memory for a run of this plan by `threads` threads.
  void reserve(const Plan& p, int threads) {
    grow(memory_, activations_, p.activation_bytes);
    scratch_stride_ = std::max(scratch_stride_, p.scratch_bytes);
    grow(memory_, scratch_, scratch_stride_ * static_cast<std::size_t>(threads));
  }

  [[nodiscard]] const Buffer& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const Buffer& states() const noexcept { return states_; }
  [[nodiscard]] void* gradients() const noexcept { return gradients_; }
  [[nodiscard]] const Buffer& activations() const noexcept { return activations_; }
  [[nodiscard]] const Buffer& scratch() const noexcept { return scratch_; }
  // Bytes of each worker's part of the scratch.
  [[nodiscard]] std::size_t scratch_stride() const noexcept { return scratch_stride_; }

  // Returns the address of a value; null for values that lie in no arena.
  [[nodiscard]] std::byte* find(const ValuePlace& at) const {
    switch (at.where) {
      case ValueStorage::parameter:
        return parameters_.at(at.offset);
      case ValueStorage::state:
        return states_.at(at.offset);
      case ValueStorage::gradient:
        return static_cast<std::byte*>(gradients_) + at.offset;
      case ValueStorage::activation:
        return activations_.at(at.offset);
      case ValueStorage::scratch:
        return scratch_.at(at.offset);
      case ValueStorage::image:
      case ValueStorage::labels:
      case ValueStorage::nowhere:
        break;
    }
    return nullptr;
  }

  // Replaces the allocation if it is too small; its content is lost.
  static void grow(Memory& memory, Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() >= bytes) return;
    buffer = {};
    buffer = Buffer(memory, bytes);
  }

 private:
  Memory& memory_;
  Buffer parameters_, states_, own_gradients_, activations_, scratch_;
  void* gradients_ = nullptr;
  std::size_t scratch_stride_ = 0;
};

}  // namespace tutti
