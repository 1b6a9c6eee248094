// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <tutti/graph/plan.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The memory that a model's values lie in, one allocation a kind. That of the runs grows to the largest plan.
template <class B>
class Arenas {
 public:
  explicit Arenas(B& backend) : b_(backend) {}

  // gradients: memory of parameters.bytes() to use as gradient arena, or null.
  void allocate(const ArenaLayout& parameters, const ArenaLayout& states, void* gradients) {
    parameters_ = Buffer<B>(b_, parameters.bytes());
    states_ = Buffer<B>(b_, states.bytes());
    if (gradients == nullptr) {
      own_gradients_ = Buffer<B>(b_, parameters.bytes());
      gradients = own_gradients_.data();
    }
    gradients_ = gradients;
  }
  // Room for a run of this plan.
  void reserve(const Plan& p) {
    grow(b_, activations_, p.activation_bytes);
    scratch_stride_ = std::max(scratch_stride_, p.scratch_bytes);
    grow(b_, scratch_, scratch_stride_ * static_cast<std::size_t>(b_.threads()));
  }

  [[nodiscard]] const Buffer<B>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const Buffer<B>& states() const noexcept { return states_; }
  [[nodiscard]] void* gradients() const noexcept { return gradients_; }
  [[nodiscard]] const Buffer<B>& activations() const noexcept { return activations_; }
  [[nodiscard]] const Buffer<B>& scratch() const noexcept { return scratch_; }
  // Of each worker's part of the scratch.
  [[nodiscard]] std::size_t scratch_stride() const noexcept { return scratch_stride_; }

  // Where a value begins; null for those that lie in no arena.
  [[nodiscard]] std::byte* find(const ValuePlace& at) const {
    switch (at.where) {
      case Where::parameter:
        return parameters_.at(at.offset);
      case Where::state:
        return states_.at(at.offset);
      case Where::gradient:
        return static_cast<std::byte*>(gradients_) + at.offset;
      case Where::activation:
        return activations_.at(at.offset);
      case Where::scratch:
        return scratch_.at(at.offset);
      case Where::image:
      case Where::labels:
      case Where::nowhere:
        break;
    }
    return nullptr;
  }

  // Another allocation where this one is too small; what was there is lost.
  static void grow(B& backend, Buffer<B>& buffer, std::size_t bytes) {
    if (buffer.bytes() >= bytes) return;
    buffer = {};
    buffer = Buffer<B>(backend, bytes);
  }

 private:
  B& b_;
  Buffer<B> parameters_, states_, own_gradients_, activations_, scratch_;
  void* gradients_ = nullptr;
  std::size_t scratch_stride_ = 0;
};

}  // namespace tutti
