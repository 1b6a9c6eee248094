// SPDX-License-Identifier: MIT
// Compares torchvision's ResNets with PyTorch's numbers. README.md describes the file.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/models/resnet.hpp>

#include "engine/built_backends.hpp"
#include "net_check.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t size = 64;
using testing::Tolerances;

Graph net(int depth, bool v1) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}),
                 {.depth = depth, .classes = testing::NetGolden::classes, .stride_in_1x1 = v1});
  return std::move(b).take();
}

inline void check(Backend& backend, DType precision, int depth, bool v1, const Tolerances& t) {
  static const testing::NetGolden golden("resnets.safetensors");
  golden.check(backend, precision, "resnet" + std::to_string(depth) + (v1 ? "_v1" : ""), net(depth, v1), t);
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
  as.tf32 = false;
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
