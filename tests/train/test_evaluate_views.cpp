// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t side = 8, classes = 4;

Graph net() {
  Builder b(3, side, side);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  // With these layers the result depends on positions, so each view has different logits.
  x = b.max_pool("pool", x, {2, 2, 2, 0});
  x = nn::conv(b, "conv2", x, {.out = 8, .kernel = 4, .padding = 0});
  b.softmax_cross_entropy(nn::linear(b, "fc", x, classes, {Init::he_uniform, 1}), 0.1F, 2);
  return std::move(b).take();
}

Synthetic data() {
  return Synthetic({.size = 37, .height = side, .width = side, .classes = classes, .seed = 2, .learnable = true});
}

std::vector<double> logits(Trainer& t, const std::vector<std::uint8_t>& image) {
  const std::int32_t label = 0;
  t.evaluate({image.data(), &label, 1});
  const TensorRef z = t.executor().value(t.executor().graph().logits);
  const auto* at = static_cast<const float*>(z.data);
  return {at, at + classes};
}

}  // namespace

TEST_CASE("a view is shifted, with mirrored pixels beyond the edge, and then mirrored as a whole") {
  // An image with one row of four pixels and two channels.
  const std::vector<std::uint8_t> row{10, 11, 20, 21, 30, 31, 40, 41};
  std::vector<std::uint8_t> out(row.size());
  const auto pixels = [&](const TestView& v) {
    make_view(row.data(), 1, Shape{1, 2, 1, 4}, v, out.data());
    std::string text;
    for (std::size_t i = 0; i < out.size(); i += 2) {
      CHECK(out[i + 1] == out[i] + 1);
      text += static_cast<char>('0' + out[i] / 10);
    }
    return text;
  };
  CHECK(pixels({}) == "1234");
  CHECK(pixels({0, 0, true, 1}) == "4321");
  CHECK(pixels({0, 1, false, 1}) == "2343");
  CHECK(pixels({0, -1, false, 1}) == "2123");
  CHECK(pixels({0, 1, true, 1}) == "3432");
  CHECK(pixels({0, -2, false, 1}) == "3212");
  CHECK_THROWS_AS(pixels({0, 4, false, 1}), ShapeError);
  CHECK_THROWS_AS(pixels({1, 0, false, 1}), ShapeError);

  const std::vector<std::uint8_t> two{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  std::vector<std::uint8_t> moved(two.size());
  make_view(two.data(), 2, Shape{1, 1, 3, 3}, {1, 0, false, 1}, moved.data());
  CHECK(moved == std::vector<std::uint8_t>{4, 5, 6, 7, 8, 9, 4, 5, 6, 14, 15, 16, 17, 18, 19, 14, 15, 16});
}

TEST_CASE("each level of test views has the right number of views and weights") {
  CHECK(test_views(0).size() == 1);
  CHECK(test_views(1).size() == 2);
  CHECK(test_views(2).size() == 6);
  for (const int level : {0, 1, 2}) {
    double sum = 0;
    for (const TestView& v : test_views(level)) sum += v.weight;
    CHECK(sum == doctest::Approx(1));
  }
  CHECK_THROWS_AS((void)test_views(3), UsageError);
}

TEST_CASE("loss and hits come from the mean logits, and one view gives the results of a plain evaluation") {
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, net(), {.seed = 3});
  Loader loader(data(), {.placement = {.global_batch = 10}, .shuffle = false, .one_pass = true});
  const EvaluationReport plain = evaluate(t, loader), one = evaluate_views(t, loader, test_views(0));
  CHECK(one.images == 37);
  CHECK(one.loss == doctest::Approx(plain.loss).epsilon(1e-5));
  CHECK(one.top1 == plain.top1);
  CHECK(one.topk == plain.topk);

  const EvaluationReport six = evaluate_views(t, loader, test_views(2));
  CHECK(six.images == 37);
  CHECK(six.loss != plain.loss);
  double loss = 0, hits = 0;
  const Synthetic images = data();
  for (std::int64_t i = 0; i < images.size(); ++i) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(side * side * 3)), view(image.size());
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    images.read(i, rng, Sample{image, label});
    std::vector<double> mean(classes, 0.0);
    for (const TestView& v : test_views(2)) {
      make_view(image.data(), 1, Shape{1, 3, side, side}, v, view.data());
      const auto z = logits(t, view);
      for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += v.weight * z[k];
    }
    double sum = 0;
    std::size_t best = 0;
    for (std::size_t k = 0; k < mean.size(); ++k) {
      sum += std::exp(mean[k]);
      if (mean[k] > mean[best]) best = k;
    }
    for (std::size_t k = 0; k < mean.size(); ++k) {
      const double target = 0.1 / classes + (static_cast<std::int32_t>(k) == label ? 0.9 : 0);
      loss -= target * (mean[k] - std::log(sum));
    }
    hits += static_cast<std::int32_t>(best) == label ? 1 : 0;
  }
  CHECK(six.loss == doctest::Approx(loss / 37).epsilon(1e-5));
  CHECK(six.top1 == doctest::Approx(hits / 37));

  CHECK_THROWS_AS(evaluate_views(t, loader, {}), UsageError);
  CHECK_THROWS_AS(evaluate_views(t, loader, {{0, 0, false, 0.7}}), UsageError);
}
