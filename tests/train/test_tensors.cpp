// SPDX-License-Identifier: MIT
// Tests reading tensors from a trainer, reading them from files, and writing them to files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/tensor_files.hpp>
#include <tutti/train/trainer.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

Graph net() {
  Builder b(3, 8, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 4}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 5, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

Tensor<std::uint8_t> images(std::int64_t rows) {
  Tensor<std::uint8_t> t(Shape{rows, 8, 6, 3});
  Rng r(3, Purpose::user);
  for (auto& p : t) p = static_cast<std::uint8_t>(r.next());
  return t;
}

}  // namespace

TEST_CASE("a parameter is read by its name, before and after a step") {
  CpuBackend backend({1});
  Solo solo;
  Trainer trainer(backend, solo, net(), {.seed = 5});
  const Tensor<float> before = trainer.parameter("fc.weight");
  CHECK(before.shape() == Shape{5, 4});
  CHECK(trainer.parameter("bn1.running_var") == Tensor<float>(Shape{4}, 1.F));
  trainer.commit();
  for (const StateSpan& s : trainer.committed_tensors(false))
    CHECK(std::ranges::equal(std::as_bytes(trainer.parameter(s.name).view()), s.bytes));
  const auto some = images(4);
  const std::vector<std::int32_t> labels{0, 1, 2, 3};
  trainer.step({some.data(), labels.data(), 4}, 4, 0.1);
  CHECK(trainer.parameter("fc.weight") != before);
  CHECK(trainer.parameter("bn1.running_var") != Tensor<float>(Shape{4}, 1.F));
  CHECK_THROWS_WITH_AS((void)trainer.parameter("fc.wieght"), doctest::Contains("got 'fc.wieght'. hint: it has fc."),
                       UsageError);
}

TEST_CASE("the logits of images are returned, also for partial batches") {
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, net(), {.compute = DType::f64, .seed = 5});
  const auto all = images(7);
  const Tensor<float> logits = trainer.predict(all);
  CHECK(logits.shape() == Shape{7, 5});
  CHECK(trainer.predict(all, 3) == logits);
  CHECK(trainer.predict(all, 7) == logits);
  // The loss computed from these logits equals the loss that evaluate() returns.
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 4, 0, 1};
  double loss = 0;
  for (std::int64_t i = 0; i < 7; ++i) {
    double sum = 0;
    for (const float z : logits.row(i)) sum += std::exp(static_cast<double>(z));
    loss += std::log(sum) - static_cast<double>(logits(i, labels[static_cast<std::size_t>(i)]));
  }
  CHECK(trainer.evaluate({all.data(), labels.data(), 7}).loss == doctest::Approx(loss).epsilon(1e-5));
  CHECK(trainer.predict(images(0)).shape() == Shape{0, 5});
  CHECK_THROWS_WITH_AS((void)trainer.predict(Tensor<std::uint8_t>(Shape{7, 3, 8, 6})),
                       doctest::Contains("expected images [rows, 8, 6, 3], got [7, 3, 8, 6]"), ShapeError);
  CHECK_THROWS_AS((void)trainer.predict(all, 0), UsageError);
}

TEST_CASE("tensors in a file are read by name and type") {
  const test::TempFolder folder;
  const std::string path = folder / "t.safetensors";
  Tensor<float> a(Shape{2, 3}, 0.5F);
  a(1, 1) = 2;
  const Tensor<std::int64_t> b(Shape{}, 9);
  save_tensors(path, {{"a", a}, {"b", b}});
  CHECK(load_tensor<float>(path, "a") == a);
  CHECK(load_tensor<std::int64_t>(path, "b") == b);
  CHECK(io::Safetensors::open(path).entries().size() == 2);
  CHECK_THROWS_WITH_AS((void)load_tensor<double>(path, "a"), doctest::Contains("expected f64, got f32"), DataError);
  CHECK_THROWS_WITH_AS((void)load_tensor<float>(path, "c"), doctest::Contains("a tensor 'c'"), DataError);
  CHECK_THROWS_AS((void)load_tensor<float>(path + "x", "a"), DataError);
  CHECK_THROWS_AS(save_tensors(path, {{"a", a}, {"a", a}}), UsageError);
}
