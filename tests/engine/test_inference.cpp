// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/engine/inference.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/built_backends.hpp"
#include "engine/comparison.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

// A net of one convolution with batch norm: images / 64 -> convolution -> batch norm (+ the images) (+ relu). The
// values that the convolution reads are exact in every type, and not negative.
struct Layer {
  ConvCase conv;
  bool relu = true, residual = false;

  // The output of the batch norm is the net's output.
  [[nodiscard]] Graph graph() const {
    Builder b(conv.channels, conv.height, conv.width);
    const auto channels = static_cast<std::size_t>(conv.channels);
    const ValueId x = b.normalize(std::vector<float>(channels, 0.0F), std::vector<float>(channels, 1 / 64.0F));
    const ValueId w =
        b.parameter("w", Shape{conv.out, conv.channels / conv.groups, conv.window.kernel_h, conv.window.kernel_w}, {});
    const ValueId y = nn::batch_norm(b, "bn", b.conv2d("conv", x, w, conv.window, conv.groups),
                                     {.relu = relu, .residual = residual ? x : no_value});
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 3, {Init::he_uniform, 1}));
    Graph g = inference_graph(b.graph());
    g.logits = y;
    return g;
  }
};

std::vector<Layer> layers() {
  return {{square_conv("tiles", 1, 32, 24, 48, 3, 1)},
          {square_conv("panels", 1, 64, 14, 64, 3, 1), true, true},
          {square_conv("deep", 1, 256, 7, 256, 3, 1), true, true},
          {square_conv("stride 2", 1, 64, 14, 128, 3, 2)},
          {square_conv("stem", 1, 3, 33, 64, 7, 2)},
          {square_conv("1x1", 1, 64, 14, 64, 1, 1), false, true},
          {square_conv("1x1 by channels", 1, 512, 7, 192, 1, 1)},
          {square_conv("1x1 by channels, residual", 1, 256, 5, 256, 1, 1), true, true},
          {square_conv("1x1 with stride", 1, 128, 14, 256, 1, 2), false},
          {square_conv("blocks", 1, 144, 4, 192, 1, 1)},
          {square_conv("few channels", 1, 16, 13, 16, 3, 1), true, true},
          {square_conv("odd channels", 2, 5, 9, 17, 3, 1)},
          {{"wide padding", 2, 16, 5, 5, 16, {3, 3, 1, 2}}},
          {{"no padding", 1, 16, 8, 8, 16, {3, 3, 1, 0}}, false},
          {{"stride that leaves a rest", 2, 3, 10, 8, 4, {3, 3, 3, 0}}},
          {{"one pixel", 1, 64, 1, 1, 128, {1, 1, 1, 0}}},
          {{"depthwise", 1, 24, 9, 8, 24, {3, 3, 1, 1}, 1, 24}, true, true},
          {{"groups", 2, 32, 9, 8, 64, {3, 3, 2, 1}, 1, 4}}};
}

// Fills parameters and statistics with numbers of both signs; variances are from 0.5 to 1.5.
WeightedGraph with_weights(const Graph& g) {
  WeightedGraph net{g, {}};
  Rng r(3, Purpose::init);
  for (const Value& v : g.values) {
    std::vector<float>& to = net.values.emplace_back();
    if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
    to.resize(static_cast<std::size_t>(v.shape.numel()));
    const bool variance = v.name.find("running_var") != std::string::npos;
    const float scale = v.shape.rank() > 1 ? std::sqrt(1 / static_cast<float>(v.shape.row_numel())) : 1;
    for (float& f : to) f = variance ? 0.5F + r.uniform() : scale * (2 * r.uniform() - 1);
  }
  return net;
}

std::vector<std::uint8_t> random_images(const Graph& g, std::int64_t rows) {
  std::vector<std::uint8_t> images(static_cast<std::size_t>(rows * g[g.images].shape.row_numel()));
  Rng r(7, Purpose::synthetic);
  for (auto& p : images) p = static_cast<std::uint8_t>(r.next());
  return images;
}

std::vector<float> run(Backend& b, const WeightedGraph& net, const InferenceOptions& o, std::int64_t rows) {
  Inference inference(b, net, o);
  const auto images = random_images(net.graph, rows);
  const auto y = inference.logits(images);
  return {y.begin(), y.end()};
}

std::vector<std::string> processor_backends() {
  std::vector<std::string> words = built_backends();
  std::erase_if(words, [](const std::string& w) { return w == "cuda" || w == "reference"; });
  return words;
}
std::unique_ptr<Backend> with_threads(const std::string& word, int threads) {
  BackendOptions o;
  o.threads = threads;
  return make_backend(word, o);
}

// f32, and bf16 if the backend computes in it on this processor.
std::vector<DType> types(const Backend& b) {
  std::vector<DType> all{DType::f32};
  if (b.computes_in(DType::bf16)) all.push_back(DType::bf16);
  return all;
}

template <class O>
std::size_t count(const Graph& g) {
  return static_cast<std::size_t>(
      std::count_if(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return op_cast<O>(n.op) != nullptr; }));
}

// Checks that these numbers of threads compute the bits of one thread.
void check_threads(const std::vector<int>& counts) {
  for (const std::string& word : processor_backends()) {
    const auto alone = with_threads(word, 1);
    std::vector<std::unique_ptr<Backend>> several;
    for (const int threads : counts) several.push_back(with_threads(word, threads));
    for (const Layer& l : layers()) {
      const WeightedGraph net = with_weights(l.graph());
      for (const DType t : types(*alone))
        for (const bool fold : {false, true}) {
          CAPTURE(word);
          CAPTURE(l.conv.name);
          CAPTURE(name_of(t));
          CAPTURE(fold);
          const auto one = run(*alone, net, {t, fold}, l.conv.rows);
          for (const auto& b : several) {
            CAPTURE(b->threads());
            CHECK(one == run(*b, net, {t, fold}, l.conv.rows));
          }
        }
    }
  }
}

}  // namespace

TEST_CASE("threads that share an image compute the bits of one thread") { check_threads({2, 5}); }
TEST_CASE("any number of threads that share an image computes the bits of one" * doctest::test_suite("nightly")) {
  check_threads({2, 3, 4, 5, 7});
}

// With finite weights: the first convolution computes infinities, and the second one subtracts them from each other.
TEST_CASE("a NaN that a convolution computes passes its relu") {
  for (const int kernel : {1, 3, 5})
    for (const bool residual : {false, true}) {
      Builder b(64, 6, 6);
      const op::Window window{kernel, kernel, 1, (kernel - 1) / 2};
      ValueId x = b.normalize(std::vector<float>(64, 0.0F), std::vector<float>(64, 1.0F));
      x = nn::batch_norm(b, "bn1", b.conv2d("conv1", x, b.parameter("w1", Shape{64, 64, 1, 1}, {}), {1, 1, 1, 0}),
                         {.relu = true});
      const ValueId w = b.parameter("w2", Shape{64, 64, kernel, kernel}, {});
      const ValueId y = nn::batch_norm(b, "bn2", b.conv2d("conv2", x, w, window),
                                       {.relu = true, .residual = residual ? x : no_value});
      b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 3, {Init::he_uniform, 1}));
      Graph g = inference_graph(b.graph());
      g.logits = y;
      WeightedGraph net = with_weights(g);
      for (std::size_t v = 0; v < net.values.size(); ++v) {
        const std::string& name = g.values[v].name;
        std::vector<float>& to = net.values[v];
        for (std::size_t i = 0; i < to.size(); ++i) {
          if (name == "w1") to[i] = 3e38F;
          if (name == "w2") to[i] = i / static_cast<std::size_t>(kernel * kernel) % 2 == 0 ? 1.0F : -1.0F;
          if (name.ends_with(".weight") || name.ends_with(".running_var")) to[i] = 1;
        }
      }
      for (const std::string& word : processor_backends()) {
        const auto backend = with_threads(word, 2);
        for (const DType t : types(*backend))
          for (const bool fold : {false, true}) {
            CAPTURE(word);
            CAPTURE(kernel);
            CAPTURE(residual);
            CAPTURE(name_of(t));
            CAPTURE(fold);
            const auto got = run(*backend, net, {t, fold}, 1);
            CHECK(std::all_of(got.begin(), got.end(), [](float f) { return std::isnan(f); }));
          }
      }
    }
}

// Folding rounds each weight once more, and the kernels may round the sums before they add the end. With A = the same
// sum of absolute values, the result differs from the exact one by at most (n + 8) u A for a sum of n products in f32,
// u A for each number that is rounded on the way to the type with the unit u, and u |y| for the result.
TEST_CASE("folded batch norms give the result of unfolded ones in f64 within their rounding errors") {
  ReferenceBackend reference;
  for (const Layer& l : layers()) {
    const WeightedGraph net = with_weights(l.graph());
    WeightedGraph absolute = net;
    for (std::size_t v = 0; v < net.values.size(); ++v) {
      const bool mean = net.graph.values[v].name.find("running_mean") != std::string::npos;
      for (float& f : absolute.values[v]) f = mean ? -std::fabs(f) : std::fabs(f);
    }
    const auto exact = run(reference, net, {DType::f64}, l.conv.rows);
    const auto size = run(reference, absolute, {DType::f64}, l.conv.rows);
    const double n =
        static_cast<double>(l.conv.channels / l.conv.groups * l.conv.window.kernel_h * l.conv.window.kernel_w);
    for (const std::string& word : processor_backends())
      for (const DType t : types(*with_threads(word, 1))) {
        const auto backend = with_threads(word, 2);
        const auto got = run(*backend, net, {t}, l.conv.rows);
        const double u = t == DType::bf16 ? 0x1p-9 : 0x1p-24;
        Comparison c;
        REQUIRE(got.size() == exact.size());
        for (std::size_t i = 0; i < got.size(); ++i)
          c.value(word + " " + l.conv.name + (t == DType::bf16 ? " bf16" : " f32"), i, static_cast<double>(got[i]),
                  static_cast<double>(exact[i]),
                  ((n + 8) * 0x1p-24 + 2 * u) * static_cast<double>(size[i]) +
                      2 * u * std::fabs(static_cast<double>(exact[i])));
        CHECK_MESSAGE(c.failures.empty(), c.text());
      }
  }
}

TEST_CASE("without folding, the logits have the bits of an evaluation") {
  Builder b(3, 16, 16);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  models::resnet_cifar(b, x, {.depth = 8, .width = 32});
  const Graph model = b.graph();
  for (const std::string& word : processor_backends())
    for (const DType t : types(*with_threads(word, 1))) {
      const auto backend = with_threads(word, 3);
      Executor e(*backend, model, {t});
      randomize(e, 5);
      WeightedGraph net{inference_graph(model), {}};
      for (const Value& v : net.graph.values) {
        std::vector<float>& to = net.values.emplace_back();
        if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
        const bool state = v.storage == Storage::state;
        const Slice& s = *(state ? e.states() : e.parameters()).find(v.name);
        const auto* from = static_cast<const float*>(state ? e.state_data() : e.parameter_data()) + s.offset;
        to.assign(from, from + s.count);
      }
      Inference inference(*backend, net, {t, false});
      for (const std::int64_t rows : {5, 2, 1}) {
        const Batch batch = random_batch(model, rows, 4);
        e.evaluate(batch.evaluation());
        const auto expected = to_doubles(e.value(model.logits));
        const auto got = inference.logits(batch.images);
        CHECK(std::vector<double>(got.begin(), got.end()) == expected);
      }
    }
}

TEST_CASE("a net of convolutions with batch norm becomes one op for each convolution") {
  for (const bool preactivation : {false, true}) {
    Builder b(3, 16, 16);
    ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
    models::resnet_cifar(b, x, {.depth = 8, .preactivation = preactivation});
    const WeightedGraph net = with_weights(inference_graph(b.graph()));
    const auto backend = with_threads("auto", 2);
    const Inference inference(*backend, net);
    const Graph& g = inference.graph();
    CHECK(count<op::Conv2d>(g) + count<cpu::EndedConvolution>(g) == count<op::Conv2d>(net.graph));
    CHECK(count<op::Bias>(g) == 0);
    // A batch norm before a convolution stays.
    CHECK((count<op::BatchNormInference>(g) > 0) == preactivation);
    if (preactivation) continue;
    CHECK(count<cpu::EndedConvolution>(g) == count<op::Conv2d>(net.graph));
    CHECK(count<op::Add>(g) + count<op::Relu>(g) == 0);
  }
}

TEST_CASE("a net whose folded weights are too large for f32 runs unfolded") {
  const Layer l{square_conv("any", 1, 16, 8, 16, 3, 1)};
  WeightedGraph net = with_weights(l.graph());
  const auto backend = with_threads("auto", 2);
  for (std::size_t v = 0; v < net.values.size(); ++v)
    for (float& f : net.values[v]) {
      const std::string& name = net.graph.values[v].name;
      if (name == "w") f *= 1e-30F;
      if (name == "bn.weight") f = 3e38F;
      if (name == "bn.running_var") f = 0;
    }
  const Inference inference(*backend, net);
  CHECK(count<op::BatchNormInference>(inference.graph()) == 1);
  CHECK(count<op::Conv2d>(inference.graph()) == 1);

  WeightedGraph broken = with_weights(l.graph());
  for (std::size_t v = 0; v < broken.values.size(); ++v)
    if (broken.graph.values[v].name == "w") broken.values[v][0] = std::numeric_limits<float>::quiet_NaN();
  const auto y = run(*backend, broken, {}, 1);
  CHECK(std::any_of(y.begin(), y.end(), [](float f) { return std::isnan(f); }));
}

TEST_CASE("two batch norms with one beta are not folded") {
  Builder b(4, 6, 6);
  const ValueId x = b.normalize({0, 0, 0, 0}, {1, 1, 1, 1});
  const ValueId c = b.conv2d("a", x, b.parameter("a.w", Shape{4, 4, 1, 1}, {}), {1, 1, 1, 0});
  ValueId y = nn::batch_norm(b, "bn", c);
  y = nn::batch_norm(b, "bn2", b.conv2d("b", y, b.parameter("b.w", Shape{4, 4, 1, 1}, {}), {1, 1, 1, 0}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 3, {Init::he_uniform, 1}));
  WeightedGraph net = with_weights(inference_graph(b.graph()));
  std::vector<Node*> norms;
  for (Node& n : net.graph.nodes)
    if (std::holds_alternative<op::BatchNormInference>(n.op)) norms.push_back(&n);
  REQUIRE(norms.size() == 2);
  norms[1]->inputs[2] = norms[0]->inputs[2];
  CHECK(count<op::BatchNormInference>(fold_norms(net).graph) == 2);
}

TEST_CASE("bad input is refused") {
  const Layer l{square_conv("any", 1, 3, 5, 4, 3, 1)};
  const WeightedGraph net = with_weights(l.graph());
  const auto backend = with_threads("auto", 2);
  CHECK_THROWS_WITH_AS(Inference(*backend, net, {DType::f64}), doctest::Contains("compute type"), UsageError);
  WeightedGraph few = net;
  few.values.pop_back();
  CHECK_THROWS_WITH_AS(Inference(*backend, few), doctest::Contains("values of the graph"), UsageError);
  WeightedGraph wrong = net;
  for (std::size_t v = 0; v < wrong.values.size(); ++v)
    if (wrong.graph.values[v].name == "w") wrong.values[v].pop_back();
  CHECK_THROWS_WITH_AS(Inference(*backend, wrong), doctest::Contains("expected 108 values of w, got 107"), UsageError);
  Inference inference(*backend, net);
  const std::vector<std::uint8_t> images(static_cast<std::size_t>(5 * 5 * 3 + 1));
  CHECK_THROWS_WITH_AS((void)inference.logits(images), doctest::Contains("whole images of 75 bytes"), UsageError);
  CHECK_THROWS_WITH_AS((void)inference.logits(std::span<const std::uint8_t>()), doctest::Contains("whole images"),
                       UsageError);
  CHECK_THROWS_WITH_AS((void)inference.logits(images.data(), 0), doctest::Contains("a batch of 1 row"), UsageError);
  CHECK_THROWS_WITH_AS(inference.prepare(-1), doctest::Contains("a batch of 1 row"), UsageError);
}
