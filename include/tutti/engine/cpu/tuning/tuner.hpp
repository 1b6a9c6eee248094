// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <tutti/core/text_part.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/cpu/tuning/kernel_benchmark.hpp>
#include <tutti/engine/cpu/tuning/tuned_choices.hpp>
#include <tutti/engine/cpu/winograd/shapes.hpp>

namespace tutti::cpu {

// ConvolutionAlgorithm::tune: runs both kernels of a convolution, once for each backend, and keeps the faster one. All
// plans of a backend use the same choice, for any number of rows, because they read the same packed weights.
class Tuner {
 public:
  using Make = FunctionRef<std::unique_ptr<Kernel>(const NodeDesc&)>;

  explicit Tuner(std::shared_ptr<TunedChoices> kept) : kept_(std::move(kept)) {}

  // Returns the algorithm that choose() has chosen; no value if it was not called for this convolution.
  [[nodiscard]] std::optional<ConvolutionAlgorithm> chosen(const Op& op, const winograd::Problem& p) const {
    const auto at = chosen_.find(name_of(op, p));
    if (at == chosen_.end()) return std::nullopt;
    return at->second;
  }

  void choose(Backend& b, const Op& op, const winograd::Problem& p, const NodeDesc& d, Make direct, Make winograd) {
    const std::string name = name_of(op, p);
    if (chosen_.contains(name)) return;
    const NodeDesc few = with_rows(op, d, usual_rows(d), b.shards());
    const std::string key = concat({b.name(), ", ", b.description(), ", ", b.threads(), " threads: ", name});
    if (const auto before = kept_ ? kept_->find(key) : std::nullopt) {
      chosen_[name] = *before;
      return;
    }
    const bool weights = is_weight_gradient(op);
    KernelBenchmark sums(b, direct(few), few, weights), tiles(b, winograd(few), few, weights);
    const auto [direct_ms, winograd_ms] = time(sums, tiles);
    const auto faster = winograd_ms < direct_ms ? ConvolutionAlgorithm::winograd : ConvolutionAlgorithm::direct;
    chosen_[name] = faster;
    if (kept_) kept_->chose(key, faster, direct_ms, winograd_ms);
  }

 private:
  [[nodiscard]] static bool is_weight_gradient(const Op& op) {
    return std::holds_alternative<op::Conv2dBackwardWeights>(op);
  }

  [[nodiscard]] static std::string name_of(const Op& op, const winograd::Problem& p) {
    const int stride = p.window.stride;
    return concat({tutti::name_of(op), " 3x3 ", p.channels, " -> ", p.outputs, " of ", p.h, "x", p.w,
                   stride > 1 ? TextPart{" stride ", stride} : TextPart{}, p.bf16 ? " bf16" : " f32"});
  }

  // Uses a batch of up to 128 images and 16 MiB, not the plan's, because the first plan may have few rows.
  [[nodiscard]] static std::int64_t usual_rows(const NodeDesc& d) {
    const std::size_t most = std::max(d.in[0].row_bytes(), std::max(d.in[1].row_bytes(), d.out[0].row_bytes()));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>((std::size_t{16} << 20) / most), 8, 128);
  }
  [[nodiscard]] static NodeDesc with_rows(const Op& op, NodeDesc d, std::int64_t rows, int shards) {
    d.rows = rows;
    d.in[0].shape[0] = rows;
    (is_weight_gradient(op) ? d.in[1] : d.out[0]).shape[0] = rows;
    d.shards = static_cast<int>(std::min<std::int64_t>(shards, rows));
    d.parts = 1;
    return d;
  }

  // Returns the shortest time of each kernel in milliseconds, because other work on the machine can only add time.
  // Measures them alternately.
  [[nodiscard]] static std::pair<double, double> time(KernelBenchmark& a, KernelBenchmark& b) {
    constexpr int least_turns = 5, most_turns = 200;
    constexpr double enough_ms = 40;
    constexpr double none = std::numeric_limits<double>::infinity();
    a.run();
    b.run();
    double of_a = none, of_b = none, all = 0;
    for (int turn = 0; turn < least_turns || (turn < most_turns && all < enough_ms); ++turn) {
      const double ms_a = a.run(), ms_b = b.run();
      of_a = std::min(of_a, ms_a);
      of_b = std::min(of_b, ms_b);
      all += ms_a + ms_b;
    }
    return {of_a, of_b};
  }

  std::shared_ptr<TunedChoices> kept_;
  std::map<std::string, ConvolutionAlgorithm> chosen_;
};

}  // namespace tutti::cpu
