// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include <tutti/engine/cpu/winograd/shapes.hpp>

namespace tutti::cpu {

// Stores the choices of ConvolutionAlgorithm::tune and reports new ones.
class TunedChoices {
 public:
  TunedChoices() = default;
  TunedChoices(const TunedChoices&) = delete;
  TunedChoices& operator=(const TunedChoices&) = delete;
  virtual ~TunedChoices() = default;
  // Returns the algorithm that was chosen before: direct or winograd. `key`: the backend, its libraries, instruction
  // set and threads, and the convolution.
  [[nodiscard]] virtual std::optional<ConvolutionAlgorithm> find(const std::string& key) = 0;
  virtual void chose(const std::string& key, ConvolutionAlgorithm a, double direct_ms, double winograd_ms) = 0;
};

}  // namespace tutti::cpu
