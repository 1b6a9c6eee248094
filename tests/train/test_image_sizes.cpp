// SPDX-License-Identifier: MIT
// Tests a net that trains on images of several sizes and is evaluated at another one.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>

using namespace tutti;

namespace {

Graph net(std::int64_t size) {
  Builder b(3, size, size);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {8, 3, 1}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {8, 3, 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 1}));
  return std::move(b).take();
}

Synthetic images(std::int64_t size) {
  return Synthetic({.size = 20, .height = size, .width = size, .classes = 4, .seed = 2, .learnable = true});
}

Loader sizes(std::vector<LaterImages> later, int threads = 1) {
  LoaderOptions o{.placement = {.global_batch = 8}};
  o.threads = threads;
  o.later = std::move(later);
  return Loader(images(12), o);
}

std::vector<float> weights(Trainer& t) {
  std::vector<float> all;
  for (const char* name : {"conv1.weight", "bn1.running_var", "conv2.weight", "fc.weight"}) {
    const Tensor<float> p = t.parameter(name);
    all.insert(all.end(), p.data(), p.data() + p.size());
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("a step on images of another size is that of a net made for this size", B, ReferenceBackend,
                   CpuBackend) {
  B backend;
  Solo solo;
  const auto train = [&](std::int64_t own, int logical) {
    Trainer t(backend, solo, net(own), {.seed = 3, .micro_batch = 3, .logical_ranks = logical});
    LoaderOptions o{.placement = {.global_batch = 8, .logical_ranks = logical}};
    Loader loader(images(12), o);
    for (int i = 0; i < 4; ++i) t.step(loader.next(), 0.1);
    return weights(t);
  };
  CHECK(train(12, 0) == train(17, 0));
  CHECK(train(12, 2) == train(8, 2));
}

TEST_CASE("batches have the size of their epoch, whatever threads and start are") {
  Loader loader = sizes({{1, images(8)}, {3, images(16)}});
  std::vector<std::int64_t> seen;
  std::vector<std::vector<std::uint8_t>> bytes;
  for (int step = 0; step < 12; ++step) {
    const Batch& b = loader.next();
    CHECK(b.schema->height == b.schema->width);
    CHECK(static_cast<std::int64_t>(b.images.size()) == b.count * b.schema->image_bytes());
    seen.push_back(b.schema->height);
    bytes.emplace_back(b.images.begin(), b.images.end());
  }
  CHECK(seen == std::vector<std::int64_t>{12, 12, 12, 8, 8, 8, 8, 8, 8, 16, 16, 16});
  // Continues in the middle of an epoch of another size.
  Loader again = sizes({{1, images(8)}, {3, images(16)}}, 3);
  again.start({2, 8});
  for (std::size_t step = 7; step < 12; ++step) {
    const Batch& b = again.next();
    CHECK(std::vector<std::uint8_t>(b.images.begin(), b.images.end()) == bytes[step]);
  }
}

TEST_CASE("a run trains on several sizes, and evaluates at the net's own") {
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, net(16), {.seed = 3, .image_sizes = {{12, 12}, {8, 8}}});
  const MemoryEstimate memory = t.prepare(8, 10);
  CHECK(memory.activations > 0);
  const std::size_t plans = t.executor().plans();
  CHECK(plans >= 3);
  CHECK(t.executor().has_plan(8, true, {12, 12}));
  CHECK(t.executor().has_plan(8, true, {8, 8}));
  Loader train = sizes({{1, images(8)}});
  Loader test(images(16), {.placement = {.global_batch = 10}, .shuffle = false, .one_pass = true});
  const FitResult r = fit(t, train, &test, {.epochs = 2, .global_batch = 8, .schedule = Constant(0.05)});
  REQUIRE(r.last);
  REQUIRE(r.last->test);
  CHECK(r.last->test->images == 20);
  CHECK(t.test_images()->height == 16);
}

TEST_CASE("a profile has a cell for each node of every size of images") {
  struct Longer : ReferenceBackend {  // has one op more for large images
    void rewrite(Graph& g, DType) override {
      if (g[g.images].shape[2] < 12) return;
      const ValueId more = g.add_value({"more", g[g.logits].shape});
      g.add_node({op::Relu{}, {g.logits}, {more}, "more"});
    }
  } backend;
  Executor e(backend, net(8), {});
  Executor::Profile profile;
  e.profile(&profile);
  const std::size_t nodes = profile.nodes.size();
  (void)e.prepare(2, true, {12, 12});
  CHECK(profile.nodes.size() == nodes + 1);
  e.profile(&profile);
  CHECK(profile.nodes.size() == nodes + 1);
}

TEST_CASE("sizes that do not fit are refused") {
  CHECK_THROWS_AS(sizes({{0, images(8)}}), UsageError);
  CHECK_THROWS_AS(sizes({{2, images(8)}, {2, images(16)}}), UsageError);
  CHECK_THROWS_AS(sizes({{1, Synthetic({.size = 21, .height = 8, .width = 8, .classes = 4})}}), UsageError);
  ReferenceBackend backend;
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({0, 0, 0}, {1, 1, 1});
  const ValueId y = nn::conv_bn(b, "conv", "bn", x, {8, 4, 1, 0}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 4, {Init::he_uniform, 1}));
  Executor e(backend, b.graph());
  CHECK_THROWS_WITH_AS((void)e.prepare(2, true, {3, 3}), doctest::Contains("conv"), ShapeError);
}
