// SPDX-License-Identifier: MIT
#include "engine/suite.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include <tutti/core/rng.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/channel_op_cases.hpp"
#include "engine/conformance.hpp"
#include "engine/op_cases.hpp"

namespace tutti::testing {

std::vector<DType> precisions(const Backend& b) {
  std::vector<DType> all;
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (b.computes_in(t)) all.push_back(t);
  return all;
}
std::vector<DType> fast_precisions(const Backend& b) {
  auto all = precisions(b);
  std::erase(all, DType::f64);
  return all;
}

void check_no_f64(Backend& backend) {
  const Graph g = op_case(square_conv("any", 1, 1, 3, 1, 3, 1)).graph();
  const auto run = [&] {
    Executor e(backend, g, {DType::f64});
    e.prepare(1, true);
  };
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("f32 or bf16"), Error);
}

void check_case(Backend& backend, const OpCase& c, DType precision) {
  const Comparison r = check_model(backend, c.graph(), c.rows, precision);
  CHECK_MESSAGE(r.failures.empty(), c.name << ", " << name_of(precision) << ", " << backend.description() << ":\n"
                                           << r.text());
  CHECK(r.compared > 0);
}

void check_convolutions(Backend& backend, const std::vector<ConvCase>& cases) {
  for (DType t : fast_precisions(backend))
    for (const ConvCase& c : cases) check_case(backend, op_case(c), t);
}

void check_other_ops(Backend& backend, DType precision) {
  for (const OpCase& c : other_op_cases()) check_case(backend, c, precision);
  if (!backend.memory().on_host()) return;
  for (const OpCase& c : channel_op_cases()) check_case(backend, c, precision);
}

Graph small_resnet(bool preactivation, std::int64_t width, std::int64_t size) {
  Builder b(3, size, size);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  models::resnet_cifar(b, x, {.depth = 8, .width = width, .preactivation = preactivation});
  return std::move(b).take();
}

Graph small_grouped_net(std::int64_t size) {
  Builder b(3, size, size);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv_bn(b, "stem", "bn", x, {.out = 16}, {.relu = true});
  x = nn::conv_bn(b, "depthwise", "bn1", x, {.out = 16, .groups = 16}, {.relu = true, .residual = x});
  x = nn::avg_pool(b, "avg", nn::hard_swish(b, "act", nn::silu(b, "act1", x)), {3, 3, 1, 1}, false);
  x = nn::conv_bn(b, "grouped", "bn2", x, {.out = 32, .stride = 2, .groups = 4}, {.relu = true});
  x = nn::conv(b, "down", x, {.out = 24, .stride = 2, .blur = true});
  x = nn::concat(b, "concat", {x, nn::layer_scale(b, "gamma", nn::squeeze_excitation(b, "se", x, 4), 0.5)});
  x = b.add("sum", x, nn::drop_path(b, "path", nn::layer_norm(b, "ln", nn::relu6(b, "r6", x)), 0.3));
  x = nn::dropout(b, "drop", b.global_avg_pool("pool", x), 0.2);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 5, {Init::he_uniform, 1}));
  return std::move(b).take();
}

void check_models(Backend& backend) {
  for (DType t : fast_precisions(backend)) {
    for (bool preactivation : {false, true}) {
      const Comparison r = check_model(backend, small_resnet(preactivation), 11, t);
      CHECK_MESSAGE(r.failures.empty(), "resnet_cifar, " << name_of(t) << ":\n" << r.text());
    }
    Builder b(3, 64, 64);
    models::resnet(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}), {.depth = 50, .classes = 7});
    const Comparison r = check_model(backend, b.graph(), 3, t);
    CHECK_MESSAGE(r.failures.empty(), "resnet50, " << name_of(t) << ":\n" << r.text());
    if (!backend.memory().on_host()) continue;
    const Comparison grouped = check_model(backend, small_grouped_net(16), 11, t);
    CHECK_MESSAGE(grouped.failures.empty(), "net of groups, " << name_of(t) << ":\n" << grouped.text());
  }
}

namespace {

// The complete state after several SGD steps, and the loss of each step.
struct RunResult {
  std::vector<std::byte> bytes;
  std::vector<double> losses;
};

RunResult short_run(Backend& backend, const Graph& model, std::int64_t rows, DType precision, int steps) {
  Executor e(backend, model, {precision});
  randomize(e, 9);
  RunResult r;
  const Held<float> momentum(backend, std::vector<float>(e.parameters().count));
  for (int i = 0; i < steps; ++i) {
    // Every third batch is short. Its plan uses the same arenas as the plan of the full batch.
    const std::int64_t n = i % 3 == 2 ? rows / 2 : rows;
    const Batch batch = random_batch(model, n, static_cast<std::uint64_t>(i));
    r.losses.push_back(e.train(batch.view(), {1, 1.0 / static_cast<double>(n)}).loss);
    UpdateCall u;
    u.weights = e.parameter_data();
    u.gradients = e.gradient_data();
    u.slots[0] = momentum.data();
    u.count = e.parameters().count;
    u.lr = 0.05;
    u.weight_decay = 1e-4;
    backend.update(SgdUpdate{0.9, true}, u);
    e.parameters_changed();
    r.losses.push_back(e.evaluate(batch.view()).loss);
  }
  const auto append = [&](const void* p, std::size_t n) {
    const auto b = fetch(backend, p, n);
    r.bytes.insert(r.bytes.end(), b.begin(), b.end());
  };
  append(e.parameter_data(), e.parameters().bytes());
  append(e.gradient_data(), e.parameters().bytes());
  append(e.state_data(), e.states().bytes());
  append(momentum.data(), e.parameters().count * sizeof(float));
  return r;
}

}  // namespace

void check_determinism(const MakeBackend& make, std::int64_t width, std::int64_t size) {
  std::vector<Graph> models{small_resnet(false, width, size), small_resnet(true, width, size)};
  if (make(1)->memory().on_host()) models.push_back(small_grouped_net(size));
  for (DType t : fast_precisions(*make(1)))
    for (const Graph& model : models) {
      auto one = make(1), two = make(2), three = make(3);
      const RunResult a = short_run(*two, model, 21, t, 4);
      CHECK(a.bytes == short_run(*two, model, 21, t, 4).bytes);
      CHECK(a.bytes == short_run(*one, model, 21, t, 4).bytes);
      const RunResult c = short_run(*three, model, 21, t, 4);
      CHECK(a.bytes == c.bytes);
      CHECK(a.losses == c.losses);
      for (double l : a.losses) CHECK(std::isfinite(l));
    }
}

void check_keep_all(Backend& backend, std::int64_t width, std::int64_t size) {
  const Graph model = small_resnet(false, width, size);
  for (DType t : fast_precisions(backend)) {
    std::vector<std::vector<std::byte>> gradients;
    for (bool keep : {false, true}) {
      Executor e(backend, model, {t, keep});
      randomize(e, 2);
      const Batch batch = random_batch(model, 13, 4);
      e.train(batch.view(), {1, 1.0 / 13});
      gradients.push_back(fetch(backend, e.gradient_data(), e.parameters().bytes()));
    }
    CHECK(gradients[0] == gradients[1]);
  }
}

void check_fixed_division(const MakeBackend& make, const std::vector<int>& threads) {
  const auto fixed = [&](int n) {
    auto b = make(n);
    b->fix_division();
    CHECK(b->shards() == make(4)->shards());
    return b;
  };
  // The convolutions have large gradients, which are divided among the threads.
  Builder builder(3, 8, 8);
  ValueId x = builder.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  const auto layer = [&](const char* name, const nn::ConvOptions& o) {
    x = nn::conv_bn(builder, name, std::string("bn_") + name, x, o, {.relu = true});
  };
  layer("a", {.out = 256, .kernel = 3});
  layer("b", {.out = 1024, .kernel = 1});
  layer("c", {.out = 512, .kernel = 1, .stride = 2});
  builder.softmax_cross_entropy(nn::linear(builder, "fc", builder.global_avg_pool("pool", x), 200, {}), 0, 5);
  const Graph model = std::move(builder).take();
  for (DType t : fast_precisions(*make(1))) {
    const RunResult first = short_run(*fixed(threads.at(0)), model, 11, t, 2);
    const auto facts = fixed(threads.at(0))->bits_depend_on();
    for (std::size_t i = 1; i < threads.size(); ++i) {
      CAPTURE(threads[i]);
      CHECK(first.bytes == short_run(*fixed(threads[i]), model, 11, t, 2).bytes);
      CHECK(facts == fixed(threads[i])->bits_depend_on());
    }
  }
}

void check_nan_is_not_lost(Backend& backend) {
  for (DType t : fast_precisions(backend)) {
    Builder b(3, 8, 8);
    ValueId x = nn::conv(b, "c", b.normalize({0, 0, 0}, {1 / 255.F, 1 / 255.F, 1 / 255.F}), {.out = 16});
    x = b.max_pool("p", b.gelu("ge", b.relu("r", x)), {3, 3, 2, 1});
    x = nn::avg_pool(b, "ap", nn::hard_swish(b, "h", nn::silu(b, "si", x)), {3, 3, 1, 1});
    x = nn::sigmoid(b, "sg", x);
    x = nn::batch_norm(b, "bn", x, {.relu = true});
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("g", x), 3, {}));
    Executor e(backend, b.graph(), {t});
    randomize(e, 1);
    const Batch batch = random_batch(b.graph(), 3, 1);
    CHECK(std::isfinite(e.train(batch.view(), {}).loss));
    modify<float>(backend, e.parameter_data(), e.parameters().count, [&](float* w) {
      w[e.parameters().find("c.weight")->offset + 5] = std::numeric_limits<float>::quiet_NaN();
    });
    e.parameters_changed();
    CHECK(std::isnan(e.train(batch.view(), {}).loss));
  }
  // One NaN among numbers, at each place of a window: max pooling keeps it, as in PyTorch. The pixels are infinite, or
  // a NaN for 0 * infinity, and sigmoid makes ones of the infinite ones.
  constexpr std::int64_t size = 5;
  for (const DType t : fast_precisions(backend))
    for (const std::int64_t channels : {3, 16}) {
      CAPTURE(channels);
      const auto all = [&](float v) { return std::vector<float>(static_cast<std::size_t>(channels), v); };
      Builder b(channels, size, size);
      ValueId x = b.normalize(all(100), all(std::numeric_limits<float>::infinity()));
      x = b.max_pool("p", nn::sigmoid(b, "s", x), {3, 3, 2, 1});
      b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("g", x), 3, {}));
      Executor e(backend, b.graph(), {t});
      randomize(e, 1);
      Batch batch = random_batch(b.graph(), 1, 1);
      std::fill(batch.images.begin(), batch.images.end(), std::uint8_t{200});
      CHECK(std::isfinite(e.evaluate(batch.view()).loss));
      int lost = 0;
      for (std::int64_t pixel = 0; pixel < size * size; ++pixel) {
        std::uint8_t& value = batch.images[static_cast<std::size_t>(pixel * channels + pixel * 7 % channels)];
        value = 100;
        lost += std::isnan(e.evaluate(batch.view()).loss) ? 0 : 1;
        value = 200;
      }
      CHECK(lost == 0);
    }
}

}  // namespace tutti::testing
