// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/evaluation/evaluation_sum.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/fit.hpp>

using namespace tutti;

namespace {

Graph net() {
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 1}), 0.1F, 2);
  return std::move(b).take();
}

Synthetic data(std::int64_t size) {
  return Synthetic({.size = size, .height = 4, .width = 4, .classes = 4, .seed = 2, .learnable = true});
}

}  // namespace

TEST_CASE_TEMPLATE("an evaluation is the sum of its batches, for any number of batches", B, ReferenceBackend,
                   CpuBackend) {
  B backend;
  Solo solo;
  Trainer t(backend, solo, net(), {.seed = 3});
  constexpr std::int64_t kept = Executor::kept_metrics;
  for (const std::int64_t size : {std::int64_t{1}, 3 * kept - 1, 3 * kept, 3 * kept + 1, 7 * kept}) {
    CAPTURE(size);
    Loader loader(data(size), {.placement = {.global_batch = 3}, .shuffle = false, .one_pass = true});
    Metrics one_by_one;
    EvaluationSum sum(t.executor());
    loader.start({0, 0});
    for (bool last = false; !last;) {
      const Batch& b = loader.next();
      last = b.last_of_epoch;
      one_by_one += t.evaluate(view_of(b, 0, b.count));
      sum.add(view_of(b, 0, b.count));
    }
    loader.release();
    const Metrics m = sum.take();
    CHECK(m.loss == one_by_one.loss);
    CHECK(m.top1_hits == one_by_one.top1_hits);
    CHECK(m.topk_hits == one_by_one.topk_hits);
    CHECK(m.rows == static_cast<double>(size));
    const EvaluationReport r = evaluate(t, loader);
    CHECK(r.loss == one_by_one.mean_loss());
    CHECK(r.top1 == one_by_one.top1_rate());
    CHECK(r.images == size);
    // take() empties the sum, so a second call returns no rows.
    CHECK(sum.take().rows == 0);
  }
}
