// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/engine/executor.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// An exponential moving average of a model's weights and running statistics.
class WeightAverage {
 public:
  WeightAverage() = default;
  WeightAverage(Backend& backend, const Executor& e)
      : b_(&backend),
        e_(&e),
        weights_(backend.memory(), e.parameters().bytes()),
        states_(backend.memory(), e.states().bytes()) {}

  [[nodiscard]] std::byte* weights() const noexcept { return weights_.at(0); }
  [[nodiscard]] std::byte* states() const noexcept { return states_.at(0); }

  // Starts again at the current weights.
  void restart() {
    b_->memory().copy(weights_.data(), e_->parameter_data(), weights_.bytes());
    b_->memory().copy(states_.data(), e_->state_data(), states_.bytes());
  }
  // Exchanges the average and the weights.
  void swap() {
    swap(weights_, e_->parameter_data());
    swap(states_, e_->state_data());
  }

 private:
  void swap(Buffer& a, void* b) {
    Buffer t(b_->memory(), a.bytes());
    b_->memory().copy(t.data(), b, a.bytes());
    b_->memory().copy(b, a.data(), a.bytes());
    b_->memory().copy(a.data(), t.data(), a.bytes());
  }

  Backend* b_ = nullptr;
  const Executor* e_ = nullptr;
  Buffer weights_, states_;
};

}  // namespace tutti
