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

// What lies in a run's folder of checkpoints, by its names. Where the members of the job change, these hold the
// generation, so that nobody replaces what another generation has written, and a reader tells which of two counts:
//     step-000000007          a checkpoint; step-000000007.g3 one of generation 3
//     step-000000007.old      while another one takes its place
//     best.json, best.g3.json which is the best
//     generation-3-behind-7   generation 3 began behind step 7: what earlier ones wrote of later steps does not count
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

struct CheckpointName {  // what the name of a folder says
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

[[nodiscard]] inline std::string best_name(std::int64_t generation) {  // of the folder of the best
  return generation > 0 ? "best.g" + std::to_string(generation) + ".json" : "best.json";
}
// The generation of a best file; nothing for another name.
[[nodiscard]] inline std::optional<std::int64_t> parse_best_name(std::string_view name) {
  std::string_view rest = name;
  if (!detail::take(rest, "best.")) return std::nullopt;
  const auto generation = detail::take(rest, "g") ? detail::take_number(rest) : 0;
  return generation && best_name(*generation) == name ? generation : std::nullopt;
}

// The beginning of a generation.
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

// Everything of such a folder.
struct CheckpointNames {
  std::vector<CheckpointName> checkpoints;  // the newest first; of one step that of the latest generation
  std::vector<std::int64_t> bests;          // generations, the latest first
  std::vector<GenerationBegin> begins;

  // Whether what `generation` wrote of a step counts.
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

  // Nothing where there is no folder.
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
