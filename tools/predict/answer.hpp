// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <tutti/io/json/json.hpp>
#include <tutti/io/utf8.hpp>

#include "tools/predict/model_options.hpp"

namespace tutti::predict_tool {

struct Guess {
  std::size_t index = 0;
  double probability = 0;
  float logit = 0;
};

// Returns the most probable classes of an image, the most probable class first. Of two classes with the same
// probability the lower index comes first. Throws NotFiniteError if a logit is not finite.
[[nodiscard]] std::vector<Guess> best_of(std::span<const float> logits, std::size_t most);

[[nodiscard]] std::string text_line(const std::string& image, const std::vector<Guess>& best, const OpenedModel& m);

[[nodiscard]] std::string json_line(const std::string& image, const std::vector<Guess>& best, const OpenedModel& m);

[[nodiscard]] inline std::string json_error(const std::string& image, const std::string& error) {
  return io::write_json(io::Json::object({{"image", utf8_text(image)}, {"error", utf8_text(error)}})) + "\n";
}

}  // namespace tutti::predict_tool
