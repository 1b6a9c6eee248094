// SPDX-License-Identifier: MIT
// Compares torchvision's ResNets with PyTorch's numbers. README.md describes the file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/models/resnet.hpp>

#include "engine/built_backends.hpp"
#include "engine/conformance.hpp"
#include "formula.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t rows = 2, size = 64;
constexpr int classes = 7;

const io::Safetensors& golden() {
  static const auto file =
      io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / "resnets.safetensors");
  return file;
}
std::vector<double> values(const std::string& name) {
  const auto r = golden().record(name);
  return testing::to_doubles({const_cast<std::byte*>(r.bytes.data()), r.dtype, r.shape});
}

Graph net(int depth, bool v1) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}),
                 {.depth = depth, .classes = classes, .stride_in_1x1 = v1});
  return std::move(b).take();
}

struct Tolerances {
  double eval, train, gradient;
};

inline void check(Backend& backend, DType precision, int depth, bool v1, const Tolerances& t) {
  const std::string name = "resnet" + std::to_string(depth) + (v1 ? "_v1" : "");
  CAPTURE(name);
  CAPTURE(backend.description());
  Executor e(backend, net(depth, v1), {precision});
  const auto fill = [&](const ArenaLayout& l, void* data) {
    for (const Slice& s : l.slices) {
      const auto from = testing::formula_values(s.name, s.shape);
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
  const auto images = testing::formula_images(static_cast<std::size_t>(rows * size * size * 3));
  const std::vector<std::int32_t> labels{3, 5};
  const BatchView batch{images.data(), labels.data(), rows};
  // Compares values in proportion to the largest value.
  const auto compare = [&](const std::string& what, double tolerance) {
    const auto got = testing::fetch(backend, e.value(e.graph().logits)), expected = values(name + what);
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
  const auto gradients =
      testing::fetch(backend, TensorRef{e.gradient_data(), l.dtype, {static_cast<std::int64_t>(l.count)}});
  for (const Slice& s : l.slices) {
    const auto expected = values(name + ".grad." + s.name);
    const testing::Bits probe("probe." + s.name);
    double squares = 0, product = 0;
    for (std::size_t i = 0; i < s.count; ++i) {
      const double g = gradients[s.offset + i];
      squares += g * g;
      product += g * probe.uniform(i);
    }
    const double norm = std::sqrt(squares);
    CHECK_MESSAGE(std::fabs(norm - expected[0]) <= t.gradient * expected[0],
                  s.name << ": gradient's norm " << norm << ", expected " << expected[0]);
    CHECK_MESSAGE(std::fabs(product - expected[1]) <= t.gradient * expected[0],
                  s.name << ": gradient's product " << product << ", expected " << expected[1]);
    seen.insert(s.name);
  }
  for (const auto& entry : golden().entries())
    if (entry.name.starts_with(name + ".grad."))
      CHECK_MESSAGE(seen.contains(entry.name.substr(name.size() + 6)), entry.name << " has no counterpart");
}

// If rounding moves the input of a relu to the other side of zero, single gradients change by some percent.
inline void check_all(Backend& backend) {
  for (const int depth : {18, 34, 50}) check(backend, DType::f32, depth, false, {1e-5, 1e-4, 5e-2});
  check(backend, DType::f32, 50, true, {1e-5, 1e-4, 5e-2});
  for (const int depth : {101, 152}) check(backend, DType::f32, depth, false, {1e-5, 0, 0});
}

}  // namespace

TEST_CASE("ResNet-18 and 50, f64") {
  ReferenceBackend backend;
  check(backend, DType::f64, 18, false, {1e-6, 1e-6, 1e-6});
  check(backend, DType::f64, 50, false, {1e-6, 1e-6, 1e-6});
}
TEST_CASE("every ResNet depth with every CPU backend") {
  testing::on_processor_backends([](Backend& backend) { check_all(backend); });
}

TEST_CASE("gpu: every depth, cuda") {
  BackendOptions as;
  as.graph = false;
  const auto backend = testing::gpu_backend(as);
  if (!backend) return;
  for (const int depth : {18, 34, 50}) check(*backend, DType::f32, depth, false, {1e-4, 1e-3, 5e-2});
  check(*backend, DType::f32, 50, true, {1e-4, 1e-3, 5e-2});
  for (const int depth : {101, 152}) check(*backend, DType::f32, depth, false, {1e-4, 0, 0});
  // On the CPU, bf16 has an error of 0.9 %.
  check(*backend, DType::bf16, 50, false, {0.03, 0, 0});
  check(*backend, DType::f16, 50, false, {0.01, 0, 0});
}

TEST_CASE("each ResNet depth has as many parameters as in torchvision") {
  // The numbers of parameters with 1000 classes, as torchvision has them.
  for (const auto& net : {std::pair{18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}}) {
    const int depth = net.first;
    Builder b(3, 224, 224);
    models::resnet(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = depth});
    std::int64_t sum = 0;
    for (const Value& v : b.graph().values)
      if (v.storage == Storage::parameter) sum += v.shape.numel();
    CAPTURE(depth);
    CHECK(sum == net.second);
  }
}

TEST_CASE("batch norm options apply to all batch norms") {
  Builder b(3, 64, 64);
  models::resnet(b, b.normalize({0, 0, 0}, {1, 1, 1}),
                 {.depth = 50, .zero_gamma = true, .bn_eps = 1e-4F, .bn_momentum = 0.25F});
  int norms = 0, zeros = 0;
  for (const Node& n : b.graph().nodes)
    if (const auto* bn = std::get_if<op::BatchNorm>(&n.op)) {
      ++norms;
      CHECK(bn->eps == 1e-4F);
      CHECK(bn->momentum == 0.25F);
      const Value& gamma = b.graph()[n.inputs[1]];
      const bool last = gamma.name.find(".bn3.") != std::string::npos;
      CHECK((gamma.init.kind == Init::zeros) == last);
      zeros += gamma.init.kind == Init::zeros;
    }
  CHECK(norms == 53);
  CHECK(zeros == 16);
}

TEST_CASE("ResNet v1.5 strides in the 3x3 convolution, v1 in the 1x1 convolution before the 3x3") {
  for (const bool v1 : {false, true}) {
    const Graph g = net(50, v1);
    for (const Node& n : g.nodes)
      if (const auto* c = std::get_if<op::Conv2d>(&n.op); c != nullptr && c->stride == 2 && n.name != "conv1") {
        CAPTURE(n.name);
        CHECK((n.name.ends_with("downsample.0") || n.name.ends_with(v1 ? "conv1" : "conv2")));
      }
  }
}

TEST_CASE("an unknown depth is refused") {
  Builder b(3, 64, 64);
  CHECK_THROWS_AS(models::resnet(b, b.images(), {.depth = 20}), UsageError);
}
