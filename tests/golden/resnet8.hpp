// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/models/resnet_cifar.hpp>

#include "engine/conformance.hpp"

// Reads files of golden values, and checks the net of resnet8.safetensors on any backend. README.md describes the
// files.
namespace tutti::golden {

using Doubles = std::vector<double>;

// A file of golden values. Convolutions in the file are NCHW, and tutti's are NHWC.
class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / name)) {}

  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] Shape shape(const std::string& name) const { return file_.record(name).shape; }
  // Returns the values in the order of the file.
  [[nodiscard]] Doubles plain(const std::string& name) const {
    const auto r = file_.record(name);
    return testing::to_doubles({const_cast<std::byte*>(r.bytes.data()), r.dtype, r.shape});
  }
  // Returns activations as NHWC.
  [[nodiscard]] Doubles nhwc(const std::string& name) const {
    const Shape s = shape(name);
    const Doubles in = plain(name);
    if (s.rank() != 4) return in;
    Doubles out(in.size());
    std::size_t i = 0;
    for (std::int64_t n = 0; n < s[0]; ++n)
      for (std::int64_t c = 0; c < s[1]; ++c)
        for (std::int64_t p = 0; p < s[2] * s[3]; ++p)
          out[static_cast<std::size_t>((n * s[2] * s[3] + p) * s[1] + c)] = in[i++];
    return out;
  }
  [[nodiscard]] double number(const std::string& key) const {
    for (const auto& [k, v] : file_.metadata())
      if (k == key) return std::strtod(v.c_str(), nullptr);
    FAIL("no metadata " << key);
    return 0;
  }

 private:
  io::Safetensors file_;
};

// Checks each difference in proportion to the tensor's largest value.
inline void compare(const std::string& name, const Doubles& got, const Doubles& expected, double tolerance) {
  REQUIRE_MESSAGE(got.size() == expected.size(), name);
  double largest = 1e-30, worst = 0;
  for (double v : expected) largest = std::max(largest, std::fabs(v));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - expected[i]) / largest;
    worst = std::isnan(off) ? off : std::max(worst, off);
  }
  CHECK_MESSAGE(worst <= tolerance, name << ": off by " << worst << " of its largest value, allowed " << tolerance);
}

// Checks only the direction of the tensors: 1 - cosine.
inline void compare_direction(const std::string& name, const Doubles& got, const Doubles& expected, double tolerance) {
  REQUIRE_MESSAGE(got.size() == expected.size(), name);
  double dot = 0, a = 0, b = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    dot += got[i] * expected[i];
    a += got[i] * got[i];
    b += expected[i] * expected[i];
  }
  const double off = 1 - dot / std::sqrt(a * b);
  CHECK_MESSAGE(off <= tolerance, name << ": 1 - cosine is " << off << ", allowed " << tolerance);
}

struct Tolerances {
  double forward, gradient, loss, final_weights;
  bool directions = false;  // compares only the directions of the gradients
};

inline void check_resnet8(Backend& backend, DType precision, const Tolerances& t) {
  CAPTURE(backend.description());
  CAPTURE(name_of(precision));
  const Golden g("resnet8.safetensors");
  const auto floats = [&](const char* name) {
    const Doubles d = g.plain(name);
    return std::vector<float>(d.begin(), d.end());
  };
  Builder b(3, 16, 16);
  models::resnet_cifar(b, b.normalize(floats("mean"), floats("inv_std")), {.depth = 8, .width = 4});
  const Doubles pixels = g.nhwc("images"), numbers = g.plain("labels");
  const std::vector<std::uint8_t> images(pixels.begin(), pixels.end());
  const std::vector<std::int32_t> labels(numbers.begin(), numbers.end());
  const BatchView batch{images.data(), labels.data(), static_cast<std::int64_t>(labels.size())};
  const StepScalars scalars{1, 1.0 / static_cast<double>(labels.size())};

  Executor e(backend, b.graph(), {precision, true});
  // `values` reads a slice of the backend's memory, and `load` writes all slices.
  const auto values = [&](const ArenaLayout& l, void* data, const Slice& s) {
    auto* const at = static_cast<std::byte*>(data) + s.offset * size_of(l.dtype);
    return testing::fetch(backend, TensorRef{at, l.dtype, {static_cast<std::int64_t>(s.count)}});
  };
  const auto load = [&](const ArenaLayout& l, void* data) {
    for (const Slice& s : l.slices) {
      REQUIRE(g.shape("init." + s.name) == s.shape);
      const Doubles from = g.plain("init." + s.name);
      const std::vector<float> singles(from.begin(), from.end());
      const bool f64 = l.dtype == DType::f64;
      backend.memory().copy_in(static_cast<std::byte*>(data) + s.offset * size_of(l.dtype),
                               f64 ? static_cast<const void*>(from.data()) : static_cast<const void*>(singles.data()),
                               s.count * size_of(l.dtype));
    }
    backend.memory().synchronise();
  };
  const auto start = [&] {
    load(e.parameters(), e.parameter_data());
    load(e.states(), e.state_data());
    e.parameters_changed();
  };
  // Returns the output of a layer, without the channels that a backend adds to images for its vectors.
  const auto output = [&](const std::string& node) {
    for (const Node& n : e.graph().nodes) {
      if (n.name != node || n.backward) continue;
      const TensorRef y = e.value(n.outputs[0]);
      const Doubles all = testing::fetch(backend, y);
      if (node != "normalize" || y.shape[1] == 3) return all;
      Doubles three;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (static_cast<std::int64_t>(i) % y.shape[1] < 3) three.push_back(all[i]);
      return three;
    }
    FAIL("no layer " << node);
    return Doubles{};
  };

  start();
  e.evaluate(batch);
  compare("eval.logits", testing::fetch(backend, e.value(e.graph().logits)), g.plain("eval.logits"), t.forward);

  const Metrics m = e.train(batch, scalars);
  compare("input", output("normalize"), g.nhwc("input"), t.forward);
  compare("stem_conv", output("conv1"), g.nhwc("act.stem_conv"), t.forward);
  compare("stem", output("bn1"), g.nhwc("act.stem"), t.forward);
  for (int i = 1; i <= 3; ++i) {
    const std::string block = "layer" + std::to_string(i) + ".0";
    compare(block, output(block + ".bn2"), g.nhwc("act." + block), t.forward);
  }
  compare("pool", output("avgpool"), g.plain("act.pool"), t.forward);
  compare("logits", output("fc"), g.plain("logits"), t.forward);
  compare("loss", {m.mean_loss()}, g.plain("loss"), t.loss);
  for (const Slice& s : e.parameters().slices)
    (t.directions ? compare_direction : compare)("grad." + s.name, values(e.parameters(), e.gradient_data(), s),
                                                 g.plain("grad." + s.name), t.gradient);
  for (const Slice& s : e.states().slices)
    compare("running." + s.name, values(e.states(), e.state_data(), s), g.plain("running." + s.name), t.forward);

  start();
  Doubles losses;
  const std::size_t count = e.parameters().count;
  Buffer momentum(backend.memory(), count * size_of(e.parameters().dtype));
  for (std::size_t step = 0; step < g.plain("losses").size(); ++step) {
    losses.push_back(e.train(batch, scalars).mean_loss());
    UpdateCall u;
    u.dtype = e.parameters().dtype;
    u.weights = e.parameter_data();
    u.gradients = e.gradient_data();
    u.slots[0] = momentum.data();
    u.count = count;
    u.lr = g.number("lr");
    u.weight_decay = g.number("weight_decay");
    backend.update(SgdUpdate{g.number("momentum"), false}, u);
    e.parameters_changed();
  }
  const Doubles expected = g.plain("losses");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(losses[i] - expected[i]) <= t.loss * expected[i]);
  }
  if (t.final_weights <= 0) return;
  for (const Slice& s : e.parameters().slices)
    compare("final." + s.name, values(e.parameters(), e.parameter_data(), s), g.plain("final." + s.name),
            t.final_weights);
  for (const Slice& s : e.states().slices)
    compare("final." + s.name, values(e.states(), e.state_data(), s), g.plain("final." + s.name), t.final_weights);
}

// The tolerances follow from the f32 storage of the golden values, from f32 arithmetic, and from 16 bits.
inline constexpr Tolerances in_f64{1e-6, 1e-6, 1e-6, 1e-6};
inline constexpr Tolerances in_f32{1e-5, 3e-5, 1e-5, 3e-5};
// In 16 bits, batch norms over a few pixels change single gradients by a third.
inline constexpr Tolerances in_16_bits{3e-2, 0.05, 3e-2, 0, true};

}  // namespace tutti::golden
