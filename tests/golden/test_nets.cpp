// SPDX-License-Identifier: MIT
// Compares the nets of --model besides torchvision's ResNets, and the Wide ResNet for small images, with the results of
// torchvision, timm and the authors' form. README.md describes the file.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/models/imagenet_net.hpp>
#include <tutti/models/wide_resnet.hpp>

#include "net_check.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t size = 64, small = 16;

// Returns the net without dropouts.
Graph net(const std::string& name) {
  constexpr int classes = testing::NetGolden::classes;
  const std::int64_t side = name == "wide_resnet_16_2" ? small : size;
  Builder b(3, side, side);
  const ValueId x = b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  if (name == "wide_resnet_16_2")
    models::wide_resnet(b, x, {.depth = 16, .widen = 2, .classes = classes});
  else if (name == "mobilenet_v2")
    models::mobilenet_v2(b, x, {.classes = classes, .dropout = 0});
  else if (name == "convnext_tiny")
    models::convnext(b, x, {.classes = classes, .drop_path = 0});
  else
    models::imagenet_net(b, x, name, {.classes = classes});
  return std::move(b).take();
}

void check(Backend& backend, DType precision, const std::string& name, const testing::Tolerances& t) {
  static const testing::NetGolden golden("nets.safetensors");
  golden.check(backend, precision, name, net(name), t);
}

std::int64_t parameters(const Graph& g) {
  std::int64_t sum = 0;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) sum += v.shape.numel();
  return sum;
}

}  // namespace

TEST_CASE("logits and gradients of nets are those of PyTorch, in f64") {
  ReferenceBackend reference;
  for (const char* name : {"mobilenet_v2", "wide_resnet_16_2"}) check(reference, DType::f64, name, {1e-6, 1e-6, 1e-5});
}

// 15 s of processor time each.
TEST_CASE("logits and gradients of large nets are those of PyTorch, in f64" * doctest::test_suite("nightly")) {
  ReferenceBackend reference;
  for (const char* name : {"resnext50_32x4d", "wide_resnet50_2", "resnet50d", "seresnet50", "convnext_tiny"})
    check(reference, DType::f64, name, {1e-6, 1e-6, 1e-5});
}

TEST_CASE("logits and gradients of nets are those of PyTorch, in f32") {
  CpuBackend backend({2});
  // If rounding moves the input of a relu to the other side of zero, single gradients change by several percent.
  for (const char* name : {"resnext50_32x4d", "seresnet50", "mobilenet_v2"})
    check(backend, DType::f32, name, {1e-4, 1e-4, 0.1});
  check(backend, DType::f32, "convnext_tiny", {1e-4, 1e-4, 1e-4});
  check(backend, DType::f32, "wide_resnet_16_2", {1e-4, 1e-4, 0.1});
}

TEST_CASE("nets have as many parameters as their originals") {
  // With 1000 classes, as torchvision and timm have them.
  for (const auto& [name, count] : {std::pair{"resnext50_32x4d", 25028904},
                                    {"wide_resnet50_2", 68883240},
                                    {"resnet50d", 25576264},
                                    {"seresnet50", 28088024},
                                    {"mobilenet_v2", 3504872},
                                    {"convnext_tiny", 28589128}}) {
    Builder b(3, 224, 224);
    models::imagenet_net(b, b.normalize({0, 0, 0}, {1, 1, 1}), name);
    CAPTURE(name);
    CHECK(parameters(b.graph()) == count);
  }
  Builder b(3, 32, 32);
  models::wide_resnet(b, b.normalize({0, 0, 0}, {1, 1, 1}));
  CHECK(parameters(b.graph()) == 36479194);
}

TEST_CASE("unknown nets and depths are refused") {
  Builder b(3, 64, 64);
  const ValueId x = b.normalize({0, 0, 0}, {1, 1, 1});
  CHECK_THROWS_AS(models::imagenet_net(b, x, "resnet20"), UsageError);
  CHECK_THROWS_AS(models::wide_resnet(b, x, {.depth = 20}), UsageError);
  CHECK_THROWS_AS(models::resnet(b, x, {.depth = 18, .groups = 32}), UsageError);
}
