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

namespace {

void check_update(Backend& backend, const UpdateOp& o, std::size_t count, std::int64_t step, std::size_t rows = 0) {
  ReferenceBackend reference;
  Rng r(count, Purpose::user);
  std::vector<double> w64(count), g64(count), a64(count), b64(count);
  std::vector<float> w(count), g(count), a(count), b(count);
  for (std::size_t i = 0; i < count; ++i) {
    w64[i] = static_cast<double>(w[i] = static_cast<float>(r.normal()));
    g64[i] = static_cast<double>(g[i] = static_cast<float>(r.normal()));
    a64[i] = static_cast<double>(a[i] = static_cast<float>(r.normal()));
    b64[i] = static_cast<double>(b[i] = static_cast<float>(r.uniform() + 0.01F));
  }
  UpdateCall u;
  u.count = count;
  u.lr = 0.1;
  u.weight_decay = 0.02;
  u.gradient_scale = 0.25;
  u.factor = 1.5;
  u.step = step;
  u.rows = rows;
  u.cols = rows > 0 ? count / rows : 0;
  UpdateCall exact = u;
  exact.dtype = DType::f64;
  exact.weights = w64.data();
  exact.gradients = g64.data();
  exact.slots = {a64.data(), b64.data()};
  const SquaredNorms n64 = reference.squared_norms(exact);
  const Held<float> dw(backend, w), dg(backend, g), da(backend, a), db(backend, b);
  u.weights = dw.data();
  u.gradients = dg.data();
  u.slots = {da.data(), db.data()};
  const SquaredNorms n = backend.squared_norms(u);
  CHECK(n.weights == doctest::Approx(n64.weights).epsilon(1e-6));
  CHECK(n.gradients == doctest::Approx(n64.gradients).epsilon(1e-6));
  CHECK(backend.squared_norms(u).gradients == n.gradients);
  backend.update(o, u);
  reference.update(o, exact);
  w = dw.fetch();
  a = da.fetch();
  b = db.fetch();
  Comparison c;
  for (std::size_t i = 0; i < count; ++i) {
    c.value("weights", i, static_cast<double>(w[i]), w64[i], 2e-6 * (1 + std::fabs(w64[i])));
    c.value("slot 0", i, static_cast<double>(a[i]), a64[i], 1e-6 * (1 + std::fabs(a64[i])));
    c.value("slot 1", i, static_cast<double>(b[i]), b64[i], 1e-6 * (1 + std::fabs(b64[i])));
  }
  CHECK_MESSAGE(c.failures.empty(), c.text());
}

}  // namespace

void check_updates(Backend& backend) {
  for (std::size_t count : {1U, 15U, 16U, 1000U, 16384U, 16385U, 70001U})
    for (std::int64_t step : {1, 2, 1000}) {
      check_update(backend, SgdUpdate{0.9, false}, count, step);
      check_update(backend, SgdUpdate{0.9, true}, count, step);
      check_update(backend, SgdUpdate{0, false}, count, step);
      check_update(backend, AdamwUpdate{}, count, step);
      check_update(backend, AdamwUpdate{0.5, 0.75, 1e-3}, count, step);
      check_update(backend, AdamwUpdate{0.9, 0.99, 1e-8, true}, count, step);
      check_update(backend, LambUpdate{}, count, step);
      check_update(backend, LambUpdate{.beta1 = 0.5, .beta2 = 0.75, .eps = 1e-3, .trust_clip = true}, count, step);
    }
  for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 7}, {33, 20}, {16, 144}, {64, 27}})
    for (const bool other : {false, true}) {
      // Three steps: the polynomials amplify rounding differences of the largest singular values.
      MuonUpdate o{.steps = 3, .rest = AdamwUpdate{}};
      if (other) o = {.momentum = 0.6, .nesterov = false, .steps = 2, .limit_eps = false, .normalize = true};
      if (other) o.scale = MuonUpdate::Scale::rms;
      CAPTURE(rows);
      CAPTURE(cols);
      check_update(backend, o, rows * cols, 1, rows);
      check_update(backend, o, rows * cols, 3);
    }
  for (std::size_t count : {1U, 17U, 5000U}) {
    std::vector<float> to(count, 2), from(count);
    for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<float>(i);
    const Held<float> held(backend, to), held_from(backend, from);
    backend.average(DType::f32, held.data(), held_from.data(), count, 0.75);
    CHECK(held.fetch().back() == doctest::Approx(1.5 + 0.25 * static_cast<double>(count - 1)));
    backend.accumulate(DType::f32, held.data(), held_from.data(), count);
    CHECK(held.fetch().back() == doctest::Approx(1.5 + 1.25 * static_cast<double>(count - 1)));
    std::vector<double> to64(count, 2), from64(from.begin(), from.end());
    if (backend.computes_in(DType::f64)) {
      backend.average(DType::f64, to64.data(), from64.data(), count, 0.75);
      backend.accumulate(DType::f64, to64.data(), from64.data(), count);
      CHECK(to64.back() == 1.5 + 1.25 * static_cast<double>(count - 1));
    } else {
      UpdateCall u;
      u.dtype = DType::f64;
      u.weights = to64.data();
      u.gradients = from64.data();
      u.slots[0] = to64.data();
      u.count = count;
      CHECK_THROWS_AS(backend.average(DType::f64, to64.data(), from64.data(), count, 0.75), UsageError);
      CHECK_THROWS_AS(backend.accumulate(DType::f64, to64.data(), from64.data(), count), UsageError);
      CHECK_THROWS_AS(backend.update(SgdUpdate{}, u), UsageError);
      CHECK_THROWS_AS((void)backend.squared_norms(u), UsageError);
    }
  }
}

namespace {

// Returns the net images -> normalize -> pool -> linear -> loss. A test sets the weights to 0, so that the bias gives
// the logits.
Graph loss_only(int classes, float smoothing = 0, int top_k = 5) {
  Builder b(1, 2, 2);
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", b.normalize({0}, {1})), classes, {Init::zeros}),
                          smoothing, top_k);
  return std::move(b).take();
}

}  // namespace

void check_loss(Backend& backend) {
  const std::vector<std::uint8_t> images(10 * 4, 1);
  const auto run = [&](const Graph& g, const std::vector<float>& logits, const std::vector<std::int32_t>& labels,
                       DType t, StepScalars scalars, std::vector<double>* gradient = nullptr) {
    Executor e(backend, g, {t, true});
    const Slice& s = *e.parameters().find("fc.bias");
    auto* const at = static_cast<std::byte*>(e.parameter_data()) + s.offset * size_of(e.parameters().dtype);
    const std::vector<double> wide(logits.begin(), logits.end());
    if (t == DType::f64)
      backend.memory().copy_in(at, wide.data(), wide.size() * sizeof(double));
    else
      backend.memory().copy_in(at, logits.data(), logits.size() * sizeof(float));
    e.parameters_changed();
    const Metrics m = e.train({images.data(), labels.data(), static_cast<std::int64_t>(labels.size())}, scalars);
    if (gradient != nullptr) {
      const Graph& train = e.graph();
      *gradient =
          fetch(backend, e.value(train.nodes[static_cast<std::size_t>(train[train.metrics].producer)].outputs[1]));
    }
    return m;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (DType t : precisions(backend)) {
    // If all logits are equal, the loss is log(K), and only a row with the first class as its label is a top-1 hit.
    Metrics m = run(loss_only(4), {1, 1, 1, 1}, {0, 1, 2, 3}, t, {});
    CHECK(m.loss == doctest::Approx(4 * std::log(4.0)));
    CHECK(m.top1_hits == 1);
    CHECK(m.topk_hits == 4);
    CHECK(m.rows == 4);
    m = run(loss_only(4, 0, 2), {3, 1, 2, 0}, {0, 1, 2, 3}, t, {});
    CHECK(m.top1_hits == 1);
    CHECK(m.topk_hits == 2);
    // With label smoothing s the loss is (1 - s) (L - z_t) + s (L - mean z), where L = log sum exp z.
    std::vector<double> d;
    const StepScalars scalars{8, 0.25};
    m = run(loss_only(4, 0.25F), {2, 0, 0, 0}, {0}, t, scalars, &d);
    const double log_sum = std::log(std::exp(2.0) + 3);
    CHECK(m.loss == doctest::Approx(0.75 * (log_sum - 2) + 0.25 * (log_sum - 0.5)).epsilon(1e-6));
    REQUIRE(d.size() == 4);
    const double eps = t == DType::bf16 ? 4e-3 : t == DType::f16 ? 1e-3 : 1e-6;
    CHECK(d[0] == doctest::Approx(2 * (std::exp(2 - log_sum) - 0.75 - 0.0625)).epsilon(eps));
    CHECK(d[1] == doctest::Approx(2 * (std::exp(-log_sum) - 0.0625)).epsilon(eps));
    // Large logits do not overflow.
    m = run(loss_only(3), {1e4F, 0, -1e4F}, {0, 1}, t, {});
    CHECK(m.loss == doctest::Approx(1e4).epsilon(5e-3));
    // If a logit is NaN, the loss is NaN and the row is not a hit.
    for (std::int32_t label : {0, 1, 2}) {
      m = run(loss_only(3), {0, nan, 1}, {label}, t, {}, &d);
      CHECK(std::isnan(m.loss));
      CHECK(m.top1_hits == 0);
      CHECK(std::isnan(d[0]));
    }
    m = run(loss_only(3), {nan, nan, nan}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, t, {});
    CHECK(std::isnan(m.loss));
    CHECK(m.top1_hits == 0);
    // At any place in the batch and for any logits, an ignored row adds nothing to the loss, the hits and the gradient.
    for (const std::vector<std::int32_t>& labels :
         {std::vector<std::int32_t>{-1, 0, 2, -1}, std::vector<std::int32_t>{0, -1, -1, 2}}) {
      m = run(loss_only(4, 0.25F), {2, 0, 1, -1}, labels, t, scalars, &d);
      std::vector<double> with, zero(4, 0.0);
      const Metrics only = run(loss_only(4, 0.25F), {2, 0, 1, -1}, {0, 2}, t, scalars, &with);
      CHECK(m.loss == only.loss);
      CHECK(m.top1_hits == 1);
      CHECK(m.topk_hits == 2);
      CHECK(m.rows == 4);
      REQUIRE(d.size() == 16);
      std::size_t next = 0;
      for (std::size_t n = 0; n < 4; ++n) {
        const auto row =
            std::vector<double>(d.begin() + 4 * static_cast<long>(n), d.begin() + 4 * static_cast<long>(n + 1));
        const auto kept = with.begin() + 4 * static_cast<long>(next);
        CHECK(row == (labels[n] < 0 ? zero : std::vector<double>(kept, kept + 4)));
        next += labels[n] < 0 ? 0 : 1;
      }
    }
    m = run(loss_only(3), {nan, 0, 1}, {-1, -1, -1}, t, {}, &d);
    CHECK(m.loss == 0);
    CHECK(m.rows == 3);
    CHECK(d == std::vector<double>(9, 0.0));
    // An invalid label at any place in the batch throws a DataError. The backend can continue afterwards.
    for (std::int32_t label : {-2, 3, 255, std::numeric_limits<std::int32_t>::min()})
      for (std::size_t where : {0U, 9U}) {
        std::vector<std::int32_t> labels(10, 0);
        labels[where] = label;
        CHECK_THROWS_WITH_AS(run(loss_only(3), {0, 0, 0}, labels, t, {}), doctest::Contains("labels in 0..2"),
                             DataError);
      }
    CHECK(run(loss_only(3), {0, 0, 0}, {0}, t, {}).loss == doctest::Approx(std::log(3.0)));
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
}

}  // namespace tutti::testing
