// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/io/safetensors/safetensors.hpp>

#include "engine/comparison.hpp"
#include "formula.hpp"

// Compares a net with results of PyTorch for parameters by formula. README.md describes the files.
namespace tutti::testing {

struct Tolerances {  // in proportion to the largest logit, or to the norm of a gradient; train 0: only evaluation
  double eval, train, gradient;
};

class NetGolden {
 public:
  static constexpr std::int64_t rows = 2;
  static constexpr int classes = 7;

  explicit NetGolden(const std::string& file)
      : file_(io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / file)) {}

  // name: of the net in the file.
  void check(Backend& backend, DType precision, const std::string& name, const Graph& net, const Tolerances& t) const;

 private:
  [[nodiscard]] std::vector<double> values(const std::string& name) const {
    const auto r = file_.record(name);
    return to_doubles({const_cast<std::byte*>(r.bytes.data()), r.dtype, r.shape});
  }

  io::Safetensors file_;
};

inline void NetGolden::check(Backend& backend, DType precision, const std::string& name, const Graph& net,
                             const Tolerances& t) const {
  CAPTURE(name);
  CAPTURE(backend.description());
  Executor e(backend, net, {precision});
  const auto fill = [&](const ArenaLayout& l, void* data) {
    for (const Slice& s : l.slices) {
      const auto from = formula_values(s.name, s.shape);
      const std::vector<double> doubles(from.begin(), from.end());
      const bool f64 = l.dtype == DType::f64;
      backend.memory().copy_in(static_cast<std::byte*>(data) + s.offset * size_of(l.dtype),
                               f64 ? static_cast<const void*>(doubles.data()) : static_cast<const void*>(from.data()),
                               s.count * size_of(l.dtype));
    }
    backend.memory().synchronise();
  };
  fill(e.parameters(), e.parameter_data());
  fill(e.states(), e.state_data());
  e.parameters_changed();
  const auto images = formula_images(static_cast<std::size_t>(rows * net[net.images].shape.row_numel()));
  const std::vector<std::int32_t> labels{3, 5};
  const BatchView batch{images.data(), labels.data(), rows};
  // Compares values in proportion to the largest value.
  const auto compare = [&](const std::string& what, double tolerance) {
    const auto got = fetch(backend, e.value(e.graph().logits)), expected = values(name + what);
    REQUIRE(got.size() == expected.size());
    double largest = 0, worst = 0;
    for (const double v : expected) largest = std::max(largest, std::fabs(v));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::fabs(got[i] - expected[i]) / largest;
      worst = std::isnan(off) ? off : std::max(worst, off);
    }
    CHECK_MESSAGE(worst <= tolerance, what << ": off by " << worst << " of the largest, allowed " << tolerance);
  };
  e.evaluate(batch);
  compare(".eval", t.eval);
  if (t.train <= 0) return;

  const Metrics m = e.train(batch, {1, 1.0 / rows});
  compare(".train", t.train);
  CHECK(m.mean_loss() == doctest::Approx(values(name + ".loss")[0]).epsilon(t.train));
  std::set<std::string> seen;
  const ArenaLayout& l = e.parameters();
  // A bias that a later batch norm cancels has only rounding errors for a gradient.
  double largest = 0;
  for (const Slice& s : l.slices)
    if (s.trainable) largest = std::max(largest, values(name + ".grad." + s.name)[0]);
  const double rest = 1e-4 * t.gradient * largest;
  const auto gradients = fetch(backend, TensorRef{e.gradient_data(), l.dtype, {static_cast<std::int64_t>(l.count)}});
  for (const Slice& s : l.slices) {
    if (!s.trainable) continue;
    const auto expected = values(name + ".grad." + s.name);
    const Bits probe("probe." + s.name);
    double squares = 0, product = 0;
    for (std::size_t i = 0; i < s.count; ++i) {
      const double g = gradients[s.offset + i];
      squares += g * g;
      product += g * probe.uniform(i);
    }
    const double norm = std::sqrt(squares);
    CHECK_MESSAGE(std::fabs(norm - expected[0]) <= t.gradient * expected[0] + rest,
                  s.name << ": gradient's norm " << norm << ", expected " << expected[0]);
    CHECK_MESSAGE(std::fabs(product - expected[1]) <= t.gradient * expected[0] + rest,
                  s.name << ": gradient's product " << product << ", expected " << expected[1]);
    seen.insert(s.name);
  }
  for (const auto& entry : file_.entries())
    if (entry.name.starts_with(name + ".grad."))
      CHECK_MESSAGE(seen.contains(entry.name.substr(name.size() + 6)), entry.name << " has no counterpart");
}

}  // namespace tutti::testing
