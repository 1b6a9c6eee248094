// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/io/file.hpp>
#include <tutti/io/file_error.hpp>

// The names in a run's folder of checkpoints. If the members of the job change, a name contains the generation. So a
// generation does not replace checkpoints of another one, and readers know which of two checkpoints counts.
//     step-000000007          a checkpoint; step-000000007.g3 is one of generation 3
//     step-000000007.old      the previous one, while a new one replaces it
//     best.json, best.g3.json the mark of the best checkpoint
//     generation-3-behind-7   generation 3 started after step 7: later steps of earlier generations do not count
namespace tutti::io {

namespace detail {

inline std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return n;
}
inline bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

}  // namespace detail

struct CheckpointName {  // The content of a checkpoint folder's name.
  std::int64_t step = 0, generation = 0;
  bool replaced = false;

  [[nodiscard]] std::string text() const {
    const std::string digits = std::to_string(step);
    return "step-" + std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits +
           (generation > 0 ? ".g" + std::to_string(generation) : "") + (replaced ? ".old" : "");
  }
  [[nodiscard]] static std::optional<CheckpointName> parse(std::string_view name) {
    std::string_view rest = name;
    if (!detail::take(rest, "step-")) return std::nullopt;
    CheckpointName found;
    const auto step = detail::take_number(rest);
    const auto generation = detail::take(rest, ".g") ? detail::take_number(rest) : 0;
    if (!step || !generation) return std::nullopt;
    found.step = *step;
    found.generation = *generation;
    found.replaced = detail::take(rest, ".old");
    return found.text() == name ? std::optional(found) : std::nullopt;
  }
};

// Returns the name of the file that marks the best checkpoint.
[[nodiscard]] inline std::string best_name(std::int64_t generation) {
  return generation > 0 ? "best.g" + std::to_string(generation) + ".json" : "best.json";
}
// Returns the generation in the name of such a file, or no value for another name.
[[nodiscard]] inline std::optional<std::int64_t> parse_best_name(std::string_view name) {
  std::string_view rest = name;
  if (!detail::take(rest, "best.")) return std::nullopt;
  const auto generation = detail::take(rest, "g") ? detail::take_number(rest) : 0;
  return generation && best_name(*generation) == name ? generation : std::nullopt;
}

// The start of a generation: its number and the last step before it.
struct GenerationBegin {
  std::int64_t generation = 0, step = 0;

  [[nodiscard]] std::string text() const {
    return "generation-" + std::to_string(generation) + "-behind-" + std::to_string(step);
  }
  [[nodiscard]] static std::optional<GenerationBegin> parse(std::string_view name) {
    std::string_view rest = name;
    if (!detail::take(rest, "generation-")) return std::nullopt;
    const auto generation = detail::take_number(rest);
    if (!generation || !detail::take(rest, "-behind-")) return std::nullopt;
    const auto step = detail::take_number(rest);
    const GenerationBegin found{*generation, step.value_or(0)};
    return step && found.text() == name ? std::optional(found) : std::nullopt;
  }
};

// All names in such a folder.
struct CheckpointNames {
  std::vector<CheckpointName> checkpoints;  // newest first; for the same step, the latest generation first
  std::vector<std::int64_t> bests;          // generations, latest first
  std::vector<GenerationBegin> begins;

  // Returns whether a checkpoint of `step` that `generation` wrote counts.
  [[nodiscard]] bool counts(std::int64_t generation, std::int64_t step) const {
    for (const auto& b : begins)
      if (b.generation > generation && b.step < step) return false;
    return true;
  }
  [[nodiscard]] std::int64_t latest_generation() const {
    std::int64_t latest = 0;
    for (const auto& b : begins) latest = std::max(latest, b.generation);
    for (const auto& c : checkpoints) latest = std::max(latest, c.generation);
    return latest;
  }

  // Reads the names in `folder`. Returns an object without names if the folder does not exist.
  [[nodiscard]] static CheckpointNames in(const Path& folder) {
    CheckpointNames found;
    if (!path_exists(folder)) return found;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (const auto c = CheckpointName::parse(name)) found.checkpoints.push_back(*c);
      if (const auto b = parse_best_name(name)) found.bests.push_back(*b);
      if (const auto g = GenerationBegin::parse(name)) found.begins.push_back(*g);
    }
    if (error) fail_file("list the folder", folder, error.value());
    auto& c = found.checkpoints;
    std::sort(c.data(), c.data() + c.size(), [](const CheckpointName& a, const CheckpointName& b) {
      return a.step != b.step               ? a.step > b.step
             : a.generation != b.generation ? a.generation > b.generation
                                            : a.replaced < b.replaced;
    });
    auto& b = found.bests;
    std::sort(b.data(), b.data() + b.size(), [](std::int64_t one, std::int64_t other) { return one > other; });
    return found;
  }
};

}  // namespace tutti::io
