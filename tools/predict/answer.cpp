// SPDX-License-Identifier: MIT
#include "tools/predict/answer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::predict_tool {

std::vector<Guess> best_of(std::span<const float> logits, std::size_t most) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - static_cast<double>(top));
  if (!std::isfinite(sum))
    fail<NotFiniteError>("net", "finite logits", "others", "check that the training of these weights succeeded");
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count = std::min(most, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
      [&](std::size_t a, std::size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<Guess> best;
  for (std::size_t k = 0; k < count; ++k)
    best.push_back(
        {order[k], std::exp(static_cast<double>(logits[order[k]]) - static_cast<double>(top)) / sum, logits[order[k]]});
  return best;
}

std::string text_line(const std::string& image, const std::vector<Guess>& best, const OpenedModel& m) {
  std::string line = shown(image) + ":";
  for (std::size_t k = 0; k < best.size(); ++k) {
    char share[32];
    std::snprintf(share, sizeof share, " %.2f %%", 100 * best[k].probability);
    line += std::string(k > 0 ? ", " : " ") + (m.card.classes.empty() ? "class " : "") +
            shown(m.class_name(best[k].index)) + share;
  }
  return line + "\n";
}

std::string json_line(const std::string& image, const std::vector<Guess>& best, const OpenedModel& m) {
  io::Json::Array classes;
  for (const Guess& g : best)
    classes.push_back(io::Json::object(
        {{"class", m.class_name(g.index)}, {"index", g.index}, {"probability", g.probability}, {"logit", g.logit}}));
  return io::write_json(io::Json::object({{"image", utf8_text(image)}, {"classes", std::move(classes)}})) + "\n";
}

}  // namespace tutti::predict_tool
