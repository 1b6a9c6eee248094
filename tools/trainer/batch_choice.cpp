// SPDX-License-Identifier: MIT
#include "tools/trainer/batch_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/strategy/broadcast_text.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/start.hpp"

namespace tutti::trainer {

namespace {

constexpr std::int64_t most = 1024, least = 8, steps = 20;

// Returns whether a rank has the memory for this batch.
bool fits(Trainer& probe, const RunOptions& o, const Schema& seen, std::int64_t batch) {
  RunOptions with = o;
  with.batch_size = batch;
  try {
    MemoryEstimate m = probe.memory(micro_batch_of(with), batch);
    // The sums of the passes of a step, and the images of all passes and of an evaluation.
    if ((o.accumulate > 1 && o.logical_ranks == 0) || o.shares == "rows") m.gradients *= 2;
    const LoaderOptions ring;
    m.batches = static_cast<std::size_t>(batch * (o.accumulate + 1) * ring.slots * largest_image_bytes(o, seen));
    return !probe.executor().backend().memory().on_host() || !memory_shortage(m, with, launched().local_size);
  } catch (const DeviceError&) {
    return false;
  }
}

std::int64_t largest_that_fits(Backend& backend, const RunOptions& o, const Schema& seen, std::int64_t images) {
  const Graph model = make_model(o, seen);
  Solo solo;
  AnyStrategy alone = AnyStrategy::refer(solo);
  TrainerOptions t = trainer_options(o);
  t.micro_batch = 0;
  Trainer probe(backend, alone, model, t);
  const std::int64_t ranks = std::max<std::int64_t>(o.global_batch_size / (o.batch_size * o.accumulate), 1);
  std::int64_t chosen = least;
  for (std::int64_t batch = 2 * least; batch <= most; batch *= 2) {
    if (batch * ranks * o.accumulate * steps > images) break;
    if (!fits(probe, o, seen, batch)) break;
    chosen = batch;
  }
  return chosen;
}

}  // namespace

void choose_batch_size(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Schema& seen,
                       std::int64_t images) {
  std::string chosen;
  if (strategy.rank() == 0) chosen = std::to_string(largest_that_fits(backend, o, seen, images));
  chosen = broadcast_text(strategy, "--batch-size auto", chosen);
  // The notes of the first check are about another batch. Later ones follow them.
  const auto of_check = static_cast<std::ptrdiff_t>(o.with_batch(0).notes.size());
  RunOptions with = o.with_batch(std::stoll(chosen));
  std::copy(o.notes.begin() + of_check, o.notes.end(), std::back_inserter(with.notes));
  o.notes = std::move(with.notes);
  o.batch_size = with.batch_size;
  o.global_batch_size = with.global_batch_size;
  o.evaluation_batch = with.evaluation_batch;
  o.lr = with.lr;
  o.rest_lr = with.rest_lr;
  o.wd = with.wd;
  o.warmup_lr = with.warmup_lr;
  o.lr_end = with.lr_end;
  o.cosine_alpha = with.cosine_alpha;
  char text[128];
  std::snprintf(text, sizeof text, "--batch-size auto: %s images per rank fit the memory, %lld per update; rate %g",
                chosen.c_str(), static_cast<long long>(o.global_batch_size), o.lr.value_or(0));
  o.notes.emplace_back(text);
}

}  // namespace tutti::trainer
