// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tutti/core/math.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/optim/update.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The perturbation of the weights that a step with SAM trains, between the two passes over the images of a rank.
// Copies of the weights and of the running statistics restore both to the bit.
class WeightPerturbation {
 public:
  // elements: of the trainable parameters, which come first in the arena.
  WeightPerturbation(Backend& backend, Executor& executor, std::size_t elements)
      : b_(backend),
        e_(executor),
        weights_(backend.memory(), elements * unit()),
        states_(backend.memory(), executor.states().bytes()),
        spare_(backend.memory(), block * unit()) {}

  // Call after the first pass, whose gradients are in the arena. Adds rho * g / |g| to the weights, where g is
  // `scale` times these gradients. Leaves out weights that step `step` does not train. Has no effect on weights if g is
  // zero or not finite.
  void perturb(double rho, double scale, const UpdateRules& rules, std::int64_t step) {
    b_.memory().copy(states_.data(), e_.state_data(), states_.bytes());
    double squares = 0;
    rules.for_trained(step, [&](std::size_t begin, std::size_t end) {
      UpdateCall u = call(begin, end);
      u.gradient_scale = scale;
      squares += b_.squared_norms(u).gradients;
    });
    const double norm = math::sqrt(squares);
    if (!(norm > 0) || !math::is_finite(norm)) return;
    b_.memory().copy(weights_.data(), e_.parameter_data(), weights_.bytes());
    perturbed_ = true;
    // An SGD step whose momentum is the weights: w = 1 * w + scale * g. The weights of this step are other memory.
    rules.for_trained(step, [&](std::size_t begin, std::size_t end) {
      for (; begin < end; begin += block) {
        UpdateCall u = call(begin, std::min(begin + block, end));
        u.slots[0] = u.weights;
        u.weights = spare_.data();
        u.gradient_scale = rho * scale / (norm + 1e-12);
        b_.update(SgdUpdate{1, false}, u);
      }
    });
    e_.parameters_changed();
  }
  // Sets the running statistics to those of the first pass: the second one must not count its images again.
  void restore_states() { b_.memory().copy(e_.state_data(), states_.data(), states_.bytes()); }
  // Sets the weights to those before perturb().
  void restore() {
    if (!std::exchange(perturbed_, false)) return;
    b_.memory().copy(e_.parameter_data(), weights_.data(), weights_.bytes());
    e_.parameters_changed();
  }

 private:
  static constexpr std::size_t block = std::size_t{1} << 15;  // elements

  [[nodiscard]] std::size_t unit() const { return size_of(e_.parameters().dtype); }
  [[nodiscard]] UpdateCall call(std::size_t begin, std::size_t end) const {
    UpdateCall u;
    u.dtype = e_.parameters().dtype;
    u.weights = static_cast<std::byte*>(e_.parameter_data()) + begin * unit();
    u.gradients = static_cast<const std::byte*>(e_.gradient_data()) + begin * unit();
    u.count = end - begin;
    return u;
  }

  Backend& b_;
  Executor& e_;
  Buffer weights_, states_;
  Buffer spare_;  // weights of an SGD step that does not change them
  bool perturbed_ = false;
};

}  // namespace tutti
