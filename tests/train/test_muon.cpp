// SPDX-License-Identifier: MIT
// Muon through whole steps, and LAMB, Adam and Muon on any number of threads and across a restore.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

std::vector<AnyOptimizer> optimizers() {
  return {Adam{}, Adamw{}, Lamb{}, Muon{}, MuonAdamw{.rule = {.bf16 = true}, .rest_rate = 0.1}};
}

}  // namespace

TEST_CASE("Muon's step of a convolution has singular values near one, and other parameters follow SGD") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true),
            {.optimizer = Muon{.rule = {.scale = MuonUpdate::Scale::none}}, .weight_decay = 0});
  Trainer sgd(backend, solo, small_net(true), {.optimizer = Sgd{0.9, true}, .weight_decay = 0});
  const auto before = weights(t);
  t.step(data.view(), 12, 0.1);
  sgd.step(data.view(), 12, 0.1);
  bool matrices = false, others = false;
  for (const Slice& s : t.executor().parameters().slices) {
    const auto *a = reinterpret_cast<const float*>(before.data()) + s.offset,
               *b = static_cast<const float*>(t.executor().parameter_data()) + s.offset,
               *plain = static_cast<const float*>(sgd.executor().parameter_data()) + s.offset;
    if (s.shape.rank() != 4) {
      others = true;
      CHECK_MESSAGE(std::equal(b, b + s.count, plain), s.name);
      continue;
    }
    matrices = true;
    double squares = 0;
    for (std::size_t i = 0; i < s.count; ++i)
      squares += std::pow((static_cast<double>(a[i]) - static_cast<double>(b[i])) / 0.1, 2);
    const auto rows = static_cast<double>(s.shape[0]), rank = std::min(rows, static_cast<double>(s.count) / rows);
    // The published coefficients leave each singular value that is not tiny between 0.7 and 1.2.
    CHECK_MESSAGE(squares > 0.3 * rank, s.name);
    CHECK_MESSAGE(squares < 1.45 * rank, s.name);
  }
  CHECK(matrices);
  CHECK(others);
}

TEST_CASE("rest_rate scales the rate of the parameters that Muon does not orthogonalise") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Muon{.rest_rate = 0.25}, .weight_decay = 0});
  Trainer sgd(backend, solo, small_net(true), {.optimizer = Sgd{0.9, true}, .weight_decay = 0});
  t.step(data.view(), 12, 0.4);
  sgd.step(data.view(), 12, 0.1);
  for (const Slice& s : t.executor().parameters().slices) {
    const auto *a = static_cast<const float*>(t.executor().parameter_data()) + s.offset,
               *b = static_cast<const float*>(sgd.executor().parameter_data()) + s.offset;
    if (s.shape.rank() == 4) continue;
    for (std::size_t i = 0; i < s.count; ++i) CHECK_MESSAGE(a[i] == doctest::Approx(b[i]).epsilon(1e-5), s.name);
  }
}

TEST_CASE("weights that are normalised have the norm of an orthogonal matrix before the step") {
  const Data data(12);
  ReferenceBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Muon{.rule = {.normalize = true}}, .weight_decay = 0.5});
  t.step(data.view(), 12, 0);
  for (const Slice& s : t.executor().parameters().slices) {
    if (s.shape.rank() != 4) continue;
    const auto* w = static_cast<const float*>(t.executor().parameter_data()) + s.offset;
    double squares = 0;
    for (std::size_t i = 0; i < s.count; ++i) squares += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    CHECK_MESSAGE(squares == doctest::Approx(static_cast<double>(s.shape[0])).epsilon(1e-5), s.name);
  }
}

TEST_CASE("a step has the same bits on any number of threads") {
  const Data data(12);
  Solo solo;
  for (const AnyOptimizer& optimizer : optimizers()) {
    std::vector<decltype(weights(std::declval<Trainer&>()))> ends;
    for (const int threads : {1, 2, 3}) {
      CpuBackend backend({.threads = threads});
      Trainer t(backend, solo, small_net(true), {.optimizer = optimizer, .weight_decay = 0.01});
      for (int i = 0; i < 3; ++i) t.step(data.view(), 12, 0.02);
      ends.push_back(weights(t));
    }
    CHECK(ends[0] == ends[1]);
    CHECK(ends[0] == ends[2]);
  }
}

TEST_CASE("a restored state, of which each part has its name, repeats the next step to the bit") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  for (const AnyOptimizer& optimizer : optimizers()) {
    Trainer t(backend, solo, small_net(true), {.optimizer = optimizer, .weight_decay = 0.01});
    t.step(data.view(), 12, 0.02);
    t.commit();
    std::vector<std::string> names;
    for (const StateSpan& s : t.committed_tensors(true)) names.push_back(s.name);
    const auto has = [&](const char* n) { return std::find(names.begin(), names.end(), n) != names.end(); };
    CHECK(has("exp_avg.conv1.weight") == (optimizer.slots() == 2));
    CHECK(has("exp_avg_sq.fc.bias") == (optimizer.slots() == 2));
    CHECK(has("momentum.conv1.weight") == (optimizer.slots() == 1));
    t.step(data.view(), 12, 0.02);
    const auto once = weights(t);
    t.step(data.view(), 12, 0.02);
    t.restore();
    t.step(data.view(), 12, 0.02);
    CHECK(weights(t) == once);
  }
}

TEST_CASE("numbers that Muon cannot use are an error") {
  const auto refused = [](MuonUpdate o, const char* text) {
    CHECK_THROWS_WITH_AS(require_valid(o), doctest::Contains(text), UsageError);
  };
  CHECK_NOTHROW(require_valid(MuonUpdate{}));
  refused({.momentum = 1}, "a momentum in [0, 1)");
  refused({.steps = 0}, "1 to 100 steps");
  refused({.eps = 0}, "an eps above 0");
  refused({.rest = AdamwUpdate{.beta2 = 1}}, "a beta2 in [0, 1)");
  CHECK_THROWS_AS(AnyOptimizer(Muon{.rest_momentum = 1}), UsageError);
}
