// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tutti/io/checkpoint/checkpoint.hpp>

namespace tutti::test {

// The content of a checkpoint. It depends only on the step and the number of elements.
class State {
 public:
  State(std::int64_t step, std::size_t elements) : step_(step), weight_(elements), momentum_(elements), half_(3) {
    std::uint32_t x = static_cast<std::uint32_t>(step) * 2654435761U + 1;
    for (auto& w : weight_) w = static_cast<float>(x = x * 1664525U + 1013904223U) * 1e-9F;
    for (auto& m : momentum_) m = static_cast<float>(x = x * 1664525U + 1013904223U) * -1e-9F;
    for (auto& h : half_) h = bf16(static_cast<float>(x = x * 1664525U + 1013904223U));
  }

  // Returns views into this object.
  [[nodiscard]] io::CheckpointData data() const {
    const auto n = static_cast<std::int64_t>(weight_.size());
    io::CheckpointData d;
    d.step = step_;
    d.counters = io::Json::object({{"epoch", step_ / 10}, {"samples", step_ * 128}});
    d.options = io::Json::object({{"lr", 0.1}, {"backend", "reference"}});
    d.model = {io::make_record<float>("conv1.weight", {n}, weight_), io::make_record<bf16>("bn1.weight", {3}, half_)};
    d.optimizer = {io::make_record<float>("conv1.weight.momentum", {n}, momentum_)};
    return d;
  }

  // Describes the difference, or returns "" if the checkpoint holds exactly this state.
  [[nodiscard]] std::string difference(const io::LoadedCheckpoint& c) const {
    const auto d = data();
    if (c.step() != d.step) return "step " + std::to_string(c.step());
    if (c.counters() != d.counters) return "counters";
    if (c.options() != d.options) return "options";
    return difference("model", d.model, c.model()) + difference("optimizer", d.optimizer, c.optimizer());
  }

 private:
  static std::string difference(const std::string& file, std::span<const io::TensorRecord> expected,
                                std::span<const io::TensorRecord> got) {
    if (expected.size() != got.size()) return file + " has other tensors";
    for (const auto& e : expected) {
      const auto& g = io::record_named(got, e.name);
      if (g.dtype != e.dtype || g.shape != e.shape || !std::ranges::equal(g.bytes, e.bytes)) return file + " " + e.name;
    }
    return "";
  }

  std::int64_t step_;
  std::vector<float> weight_;
  std::vector<float> momentum_;
  std::vector<bf16> half_;
};

// Saves State(step, elements).
inline io::Path save(io::CheckpointStore& store, std::int64_t step, std::size_t elements = 100) {
  const State state(step, elements);
  return store.save(state.data());
}

}  // namespace tutti::test
