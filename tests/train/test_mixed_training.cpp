// SPDX-License-Identifier: MIT
// Tests steps on batches whose images and labels are mixed.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/data/augment/mix.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/trainer/batch_view.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

Graph net(bool mixed) {
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  if (mixed) b.mix_labels();
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 1}), 0.1F, 2);
  return std::move(b).take();
}

Loader loader(bool mixes, int logical = 0) {
  LoaderOptions o{.placement = {.global_batch = 11, .logical_ranks = logical}};
  if (mixes) o.mix = mixer({.mixup_alpha = 0.4, .cutmix_alpha = 1});
  return Loader(Synthetic({.size = 30, .height = 4, .width = 4, .classes = 4, .seed = 2, .learnable = true}), o);
}

std::vector<float> weights(Trainer& t) {
  const Tensor<float> p = t.parameter("fc.weight");
  return {p.data(), p.data() + p.size()};
}

}  // namespace

TEST_CASE("micro-batches of mixed images take their own labels") {
  CpuBackend backend;
  Solo solo;
  for (const int logical : {0, 3}) {
    const auto train = [&](std::int64_t micro_batch) {
      Trainer t(backend, solo, net(true), {.seed = 3, .micro_batch = micro_batch, .logical_ranks = logical});
      Loader from = loader(true, logical);
      for (int i = 0; i < 5; ++i) t.step(from.next(), 0.1);
      const Metrics m = t.take_metrics();
      CHECK(m.rows == 52);
      CHECK(m.loss > 0);
      return weights(t);
    };
    const auto whole = train(0), cut = train(2);
    for (std::size_t i = 0; i < whole.size(); ++i) REQUIRE(cut[i] == doctest::Approx(whole[i]).epsilon(1e-4));
  }
}

TEST_CASE("training with mixed labels differs, and does not change an evaluation") {
  CpuBackend backend;
  Solo solo;
  Trainer mixed(backend, solo, net(true), {.seed = 3}), plain(backend, solo, net(false), {.seed = 3});
  Loader test = loader(false);
  const Batch& b = test.next();
  CHECK(mixed.evaluate(view_of(b, 0, b.count)).loss == plain.evaluate(view_of(b, 0, b.count)).loss);
  Loader mixes = loader(true), same = loader(false);
  mixed.step(mixes.next(), 0.1);
  plain.step(same.next(), 0.1);
  CHECK(weights(mixed) != weights(plain));
}

TEST_CASE("a net and a loader must agree on mixed labels") {
  CpuBackend backend;
  Solo solo;
  Trainer mixed(backend, solo, net(true), {}), plain(backend, solo, net(false), {});
  Loader mixes = loader(true), same = loader(false);
  CHECK_THROWS_WITH_AS(mixed.step(same.next(), 0.1), doctest::Contains("mix_labels"), UsageError);
  CHECK_THROWS_WITH_AS(plain.step(mixes.next(), 0.1), doctest::Contains("mix_labels"), UsageError);
}
