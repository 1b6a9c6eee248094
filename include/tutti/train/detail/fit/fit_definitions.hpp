// SPDX-License-Identifier: MIT
#pragma once

// Definitions of fit.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/span.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/evaluation/evaluation_sum.hpp>
#include <tutti/train/detail/evaluation/logical_pass.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/detail/run/fit_run.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/mistakes.hpp>
#include <tutti/train/run_with_heartbeat.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION EvaluationReport evaluate(Trainer& trainer, BatchSource& source, const BatchMetric& metric,
                                              MistakeSum* mistakes) {
  const Stopwatch watch;
  const Span span(Lane::evaluation, "evaluation", {}, source.size());
  Metrics sum;
  EvaluationSum of_batches(trainer.executor(), trainer.options().logical_ranks > 0);
  detail::SumOfParts own(trainer);
  std::vector<int> ranks;  // logical ranks of the parts with logits
  std::size_t passed = 0;
  detail::LogitBuffer logits(trainer.executor(), 1, std::size_t{1} << 20, [&](const detail::LogitBuffer::Batch& b) {
    const std::vector<float> z = b.as_floats();
    if (metric) own.add(ranks[passed++], metric(z, b.labels));
    if (mistakes != nullptr) mistakes->add(z, b.labels, b.indices);
  });
  const bool wants_logits = metric || mistakes != nullptr;
  if (auto images = source.schema()) trainer.set_test_images(std::move(images));
  HeartbeatScope pass(trainer.strategy());
  const detail::LogicalPass logical(trainer, source);
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    logical.parts(batch, [&](std::int64_t begin, std::int64_t end, int rank) {
      of_batches.add(view_of(batch, begin, end));
      if (!wants_logits) return;
      const auto from = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
      ranks.push_back(rank);
      logits.add(0, batch.labels.subspan(from, count), batch.indices.subspan(from, count));
    });
    sum.rows -= static_cast<double>(batch.skipped);
    last = batch.last_of_epoch;
    pass.go_on();
  }
  sum += of_batches.take();
  logits.take();
  source.release();
  pass.end();
  sum = trainer.reduce(sum);
  EvaluationReport report{sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
                          sum.rows / std::max(watch.seconds(), 1e-9)};
  if (metric) {
    const double of_all = own.take(trainer.strategy());
    report.metric = sum.rows > 0 ? of_all / sum.rows : 0;
  }
  return report;
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Coordinator& coordinator,
                                  const FitOptions& o) {
  FitOptions with = o;
  if (with.global_batch == 0) with.global_batch = train.placement().global_batch;
  detail::RunParts parts(trainer, &train, test, nullptr, coordinator, with);
  return detail::run_fit(parts);
}
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, const MakeSources& make, Coordinator& coordinator,
                                  const FitOptions& o) {
  FitOptions with = o;
  if (with.global_batch == 0) with.global_batch = 128;
  detail::RunParts parts(trainer, nullptr, nullptr, &make, coordinator, with);
  return detail::run_fit(parts);
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource& test, Checkpoints& checkpoints,
                                  const FitOptions& o) {
  Coordinator coordinator(trainer, {.checkpoints = &checkpoints});
  return fit(trainer, train, &test, coordinator, o);
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, const FitOptions& o) {
  Coordinator coordinator(trainer);
  return fit(trainer, train, test, coordinator, o);
}

}  // namespace tutti
