// SPDX-License-Identifier: MIT
// Compares the net of the fast CIFAR-10 recipe with PyTorch's numbers. README.md describes the file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/whitening.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "engine/built_backends.hpp"
#include "engine/conformance.hpp"
#include "formula.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t rows = 4, size = 32;
constexpr double output_scale = 1.0 / 9;
const std::vector<float> mean{120, 124, 128}, inv_std{1 / 64.F, 1 / 64.F, 1 / 64.F};

const io::Safetensors& golden() {
  static const auto file =
      io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / "cifar_fast.safetensors");
  return file;
}
std::vector<double> values(const std::string& name) {
  const auto r = golden().record(name);
  return testing::to_doubles({const_cast<std::byte*>(r.bytes.data()), r.dtype, r.shape});
}

std::vector<std::uint8_t> pixels() { return testing::formula_images(static_cast<std::size_t>(rows * size * size * 3)); }

Graph net() {
  Builder b(3, size, size);
  models::CifarFastOptions o;
  o.widths = {8, 16, 24};
  for (const double v : values("whitening")) o.whitening.push_back(static_cast<float>(v));
  o.beta_lr_scale = 4;
  o.label_smoothing = 0.2F;
  models::cifar_fast(b, b.normalize(mean, inv_std), o);
  return std::move(b).take();
}

// Sets all parameters and statistics by formula, except those of the first layer.
inline void fill(Backend& backend, Executor& e) {
  const auto put = [&](const ArenaLayout& l, void* data) {
    for (const Slice& s : l.slices) {
      if (s.name == "whitening.weight" || s.name == "fc.bias") continue;
      const auto from = testing::formula_values(s.name, s.shape);
      const double scale = s.name == "fc.weight" ? output_scale : 1;
      const auto write = [&](auto zero) {
        testing::modify<decltype(zero)>(backend, data, l.count, [&](auto* to) {
          for (std::size_t i = 0; i < s.count; ++i)
            to[s.offset + i] = static_cast<decltype(zero)>(scale * static_cast<double>(from[i]));
        });
      };
      if (l.dtype == DType::f64)
        write(double{});
      else
        write(float{});
    }
  };
  put(e.parameters(), e.parameter_data());
  put(e.states(), e.state_data());
  e.parameters_changed();
}

struct Tolerances {
  double values, gradients, losses;
};

// Compares the norm of a tensor, and its product with a fixed vector, with those in the file.
void check_digest(const std::string& what, const std::string& probe_name, const std::vector<double>& v, double scale,
                  double tolerance) {
  const auto expected = values(what);
  const testing::Bits probe("probe." + probe_name);
  double squares = 0, product = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    squares += v[i] * v[i];
    product += v[i] * probe.uniform(i);
  }
  const double norm = std::sqrt(squares) * scale;
  CHECK_MESSAGE(std::fabs(norm - expected[0]) <= tolerance * expected[0],
                what << ": norm " << norm << ", expected " << expected[0]);
  CHECK_MESSAGE(std::fabs(product * scale - expected[1]) <= tolerance * expected[0],
                what << ": product " << product * scale << ", expected " << expected[1]);
}

inline void check(Backend& backend, DType precision, const Tolerances& t) {
  CAPTURE(backend.description());
  CAPTURE(name_of(precision));
  const auto images = pixels();
  std::vector<std::int32_t> labels;
  for (const double l : values("labels")) labels.push_back(static_cast<std::int32_t>(l));
  const BatchView batch{images.data(), labels.data(), rows};

  Executor e(backend, net(), {precision, true});
  {
    // The initial values of the first layer are those in the file.
    const Slice* w = e.parameters().find("whitening.weight");
    REQUIRE(w != nullptr);
    CHECK(!w->trainable);
    std::vector<float> given(w->count);
    for (const Value& v : e.graph().values)
      if (v.name == w->name && v.storage == Storage::parameter) initialize(given.data(), w->shape, v.init, 1, v.name);
    const auto expected = values("whitening");
    for (std::size_t i = 0; i < given.size(); ++i) CHECK(given[i] == static_cast<float>(expected[i]));
    const auto put = [&](auto zero) {
      testing::modify<decltype(zero)>(backend, e.parameter_data(), e.parameters().count, [&](auto* to) {
        std::fill_n(to, e.parameters().count, decltype(zero){});
        for (std::size_t i = 0; i < given.size(); ++i) to[w->offset + i] = given[i];
      });
    };
    if (e.parameters().dtype == DType::f64)
      put(double{});
    else
      put(float{});
  }
  fill(backend, e);
  const auto compare = [&](const std::string& what) {
    const auto got = testing::fetch(backend, e.value(e.graph().logits)), expected = values(what);
    REQUIRE(got.size() == expected.size());
    double largest = 0, worst = 0;
    for (const double v : expected) largest = std::max(largest, std::fabs(v));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::fabs(got[i] - expected[i]) / largest;
      worst = std::isnan(off) ? off : std::max(worst, off);
    }
    CHECK_MESSAGE(worst <= t.values, what << ": off by " << worst << " of the largest, allowed " << t.values);
  };
  e.evaluate(batch);
  compare("eval");
  const Metrics m = e.train(batch, {1, 1.0 / rows});
  compare("train");
  CHECK(m.mean_loss() == doctest::Approx(values("loss")[0]).epsilon(t.values));
  int activations = 0;
  for (std::size_t v = 0; v < e.graph().values.size(); ++v) {
    const Value& value = e.graph().values[v];
    if (!value.per_row || value.storage != Storage::activation || !value.name.starts_with("layer") ||
        !value.name.ends_with(".gelu2"))
      continue;
    const std::string layer = value.name.substr(0, 6);
    check_digest("act." + layer, layer, testing::fetch(backend, e.value(static_cast<ValueId>(v))), 1, t.values);
    ++activations;
  }
  CHECK(activations == 3);
  const std::size_t unit = size_of(e.parameters().dtype);
  const auto slice = [&](const ArenaLayout& l, void* data, const Slice& s) {
    return testing::fetch(backend, {static_cast<std::byte*>(data) + s.offset * unit, l.dtype, s.shape});
  };
  int gradients = 0;
  for (const Slice& s : e.parameters().slices) {
    if (!s.trainable) continue;
    // tutti's fc.weight includes the output's scale, so its gradient is larger by 1 / output_scale.
    const double scale = s.name == "fc.weight" ? output_scale : 1;
    check_digest("grad." + s.name, s.name, slice(e.parameters(), e.gradient_data(), s), scale, t.gradients);
    ++gradients;
  }
  CHECK(gradients == 14);
  for (const Slice& s : e.states().slices)
    check_digest("running." + s.name, s.name, slice(e.states(), e.state_data(), s), 1, t.values);

  Solo solo;
  Trainer trainer(backend, solo, net(),
                  {.compute = precision, .optimizer = Sgd{0.85, true}, .weight_decay = 0.02, .seed = 1});
  fill(backend, trainer.executor());
  const auto losses = values("losses");
  for (std::size_t i = 0; i < losses.size(); ++i)
    CHECK_MESSAGE(
        trainer.step(batch, rows, 0.05).wait().metrics.mean_loss() == doctest::Approx(losses[i]).epsilon(t.losses),
        "step " << i + 1);
  for (const Slice& s : trainer.executor().parameters().slices) {
    const auto w = slice(trainer.executor().parameters(), trainer.executor().parameter_data(), s);
    if (s.trainable)
      check_digest("final." + s.name, s.name, w, s.name == "fc.weight" ? 1 / output_scale : 1, t.gradients);
    else if (s.name == "whitening.weight")
      CHECK(w == values("whitening"));
  }
}

// Another rounding may select other maxima. PyTorch's own gradients change by up to 19 % of their norm if all
// activations are rounded to bf16.
constexpr Tolerances single{1e-4, 2e-3, 2e-3}, coarse{0.05, 0.3, 0.05};

}  // namespace

TEST_CASE("fast net, f64") {
  ReferenceBackend backend;
  check(backend, DType::f64, {1e-6, 1e-6, 1e-6});
}
TEST_CASE("fast net, cpu") {
  CpuBackend backend;
  check(backend, DType::f32, single);
  check(backend, DType::bf16, coarse);
}
TEST_CASE("fast net, every CPU backend") {
  testing::on_processor_backends([](Backend& backend) {
    check(backend, DType::f32, single);
    if (backend.computes_in(DType::bf16)) check(backend, DType::bf16, coarse);
  });
}
TEST_CASE("gpu: fast net, cuda") {
  BackendOptions as;
  as.tf32 = false;
  as.graph = false;
  const auto backend = testing::gpu_backend(as);
  if (!backend) return;
  check(*backend, DType::f32, single);
  check(*backend, DType::bf16, coarse);
}

TEST_CASE("whitening weights equal PyTorch's") {
  const auto images = pixels();
  models::PatchMoments moments(3, 2);
  const std::size_t bytes = static_cast<std::size_t>(size * size * 3);
  for (std::size_t n = 0; n < rows; ++n) moments.add({images.data() + n * bytes, bytes}, size, size);
  CHECK(moments.count() == rows * 31 * 31);
  const auto w = models::whitening_weights(moments, mean, inv_std);
  const auto expected = values("whitening");
  REQUIRE(w.size() == expected.size());
  // An eigenvector and its negation are equivalent, and both are among the weights.
  for (std::size_t i = 0; i < 24; ++i) {
    double dot = 0, squares = 0;
    for (std::size_t k = 0; k < 12; ++k) {
      dot += static_cast<double>(w[i * 12 + k]) * expected[i * 12 + k];
      squares += expected[i * 12 + k] * expected[i * 12 + k];
    }
    CHECK(std::fabs(dot) == doctest::Approx(squares).epsilon(1e-5));
  }
}
