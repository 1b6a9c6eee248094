// SPDX-License-Identifier: MIT
#pragma once

// Definitions of run_shares.hpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/train/detail/run/run_shares.hpp>

namespace tutti::detail {

TUTTI_CORE_FUNCTION RunShares::RunShares(RunContext& run)
    : run_(run), measured_(run.options.shares != Shares::equal), controller_(units_of(run)) {
  if (!measured_) return;
  require_shares();
  owners_.resize(static_cast<std::size_t>(units_of(run)));
}

TUTTI_CORE_FUNCTION void RunShares::require_shares() const {
  const int logical = run_.trainer.options().logical_ranks;
  if (run_.strategy.owns_weights())
    fail<UsageError>("fit", "equal shares, because workers do not wait for each other",
                     by_rows() ? "shares of rows" : "measured shares",
                     "leave the shares out, or use a strategy in which all workers do each step together");
  if (!by_rows() && logical == 0)
    fail<UsageError>("fit", "logical ranks, which measured shares divide", "no logical ranks",
                     "set logical_ranks, or use Shares::rows, with which batch norm sees other rows if shares change");
  if (!by_rows()) return;
  if (logical > 0)
    fail<UsageError>("fit", "no logical ranks with shares of rows", logical,
                     "use Shares::measured, which keeps the bits");
  if (run_.options.batch_per_worker > 0)
    fail<UsageError>("fit", "a global batch that does not follow the number of workers, for shares of rows",
                     {"a batch of ", run_.options.batch_per_worker, " for each worker"},
                     "leave batch_per_worker or the shares out");
  Backend& backend = run_.trainer.executor().backend();
  if (!backend.memory().on_host())
    fail<UsageError>("fit", "a backend on the processor, for shares of rows", backend.name(),
                     "set logical_ranks and use Shares::measured, or leave the shares out");
}

TUTTI_CORE_FUNCTION void RunShares::begin() {
  if (!measured_) return;
  controller_.begin(run_.at.step, std::vector<std::int64_t>(static_cast<std::size_t>(run_.strategy.size())));
  run_.trainer.set_shares({});
  restart();
}

TUTTI_CORE_FUNCTION void RunShares::end() {
  if (measured_) run_.trainer.set_shares({});
}

TUTTI_CORE_FUNCTION std::vector<std::int32_t> RunShares::begin_generation() {
  if (!measured_) return {};
  controller_.begin(run_.at.step, exchange());
  std::vector<std::int32_t> bounds = controller_.bounds();
  run_.trainer.set_shares(bounds);
  // Equal shares are not news.
  const int world = run_.strategy.size(), ranks = units_of(run_);
  unreported_ = false;
  for (int r = 0; r < world; ++r)
    unreported_ = unreported_ || bounds[static_cast<std::size_t>(r)] != part_of(ranks, r, world).begin;
  return bounds;
}

TUTTI_CORE_FUNCTION void RunShares::restart() {
  if (!measured_) return;
  window_.restart();
  waited_ = run_.sources.train() != nullptr ? run_.train().seconds_waited() : 0;
}

TUTTI_CORE_FUNCTION void RunShares::step(const Batch& batch) {
  if (!measured_) return;
  remember_owners();
  const std::size_t rank = static_cast<std::size_t>(run_.strategy.rank());
  const std::int32_t share = controller_.shares()[rank];
  const double waited = run_.train().seconds_waited();
  double seconds = run_.trainer.seconds_computed() + waited - std::exchange(waited_, waited);
  // A short last step of an epoch has less work for each logical rank.
  const Placement& p = run_.train().placement();
  if (batch.global_count < step_count({}, run_.train().size(), p.global_batch, p.epoch_end)) {
    controller_.skip_step();
    return;
  }
  if (run_.options.share_seconds) seconds = run_.options.share_seconds(run_.at.step, share);
  window_.add(seconds, share);
}

TUTTI_CORE_FUNCTION void RunShares::remember_owners() {
  std::size_t v = 0;
  const std::vector<std::int32_t>& shares = controller_.shares();
  for (std::size_t r = 0; r < shares.size(); ++r)
    for (std::int32_t n = 0; n < shares[r]; ++n) owners_[v++] = static_cast<std::int64_t>(r);
}

TUTTI_CORE_FUNCTION std::vector<std::int64_t> RunShares::exchange() {
  const Span span(Lane::communication, "speeds");
  std::vector<double> all(static_cast<std::size_t>(run_.strategy.size()));
  all[static_cast<std::size_t>(run_.strategy.rank())] = static_cast<double>(window_.nanoseconds());
  run_.strategy.sum(span_of(all));
  std::vector<std::int64_t> nanoseconds;
  nanoseconds.reserve(all.size());
  for (const double v : all) nanoseconds.push_back(math::llround(v));
  return nanoseconds;
}

TUTTI_CORE_FUNCTION void RunShares::follow() {
  if (!active()) return;
  if (std::exchange(unreported_, false)) {
    const std::int64_t time = step_time(controller_.shares(), controller_.nanoseconds());
    report({.before = time, .after = time});
  }
  if (!controller_.due(run_.at.step)) return;
  const ShareController::Decision d = controller_.decide(run_.at.step, exchange());
  if (d.changes) change();
  if (d.changes || d.slow >= 0) report(d);
}

// The new shares begin with the next step, from the same position.
TUTTI_CORE_FUNCTION void RunShares::change() {
  const Span span(Lane::membership, "shares change", {}, run_.at.step);
  BatchSource& train = run_.train();
  Placement to = train.placement();
  to.bounds = controller_.bounds();
  run_.trainer.set_shares(to.bounds);
  train.start(run_.position(), to);
  restart();
}

TUTTI_CORE_FUNCTION void RunShares::report(const ShareController::Decision& d) {
  SharesReport r;
  r.step = run_.at.step;
  r.by_rows = by_rows();
  r.shares = controller_.shares();
  for (const std::int64_t t : controller_.nanoseconds()) r.seconds.push_back(static_cast<double>(t) * 1e-9);
  r.before = static_cast<double>(d.before) * 1e-9;
  r.after = static_cast<double>(d.after) * 1e-9;
  if (d.slow >= 0) {
    const std::string who = "rank " + std::to_string(d.slow) + " (host " + host_of(d.slow) + ") ";
    const double own = r.seconds[static_cast<std::size_t>(d.slow)], others = static_cast<double>(d.others) * 1e-9;
    const char* const unit = r.by_rows ? "row" : "logical rank";
    char text[256];
    if (r.shares[static_cast<std::size_t>(d.slow)] == 0)
      std::snprintf(text, sizeof text, "computes nothing: one %s takes it %.3g s, a whole step takes the others %.3g s",
                    unit, own, others);
    else
      std::snprintf(text, sizeof text,
                    "is too slow for one %s: it takes %.3g s, without it a step takes the others %.3g s. hint: %s",
                    unit, own, others, r.by_rows ? "stop this process" : "more logical ranks are smaller");
    r.note = who + text;
  }
  run_.coordinator.tell([&](FitListener& l) { l.shares(r); });
}

// All ranks call it.
TUTTI_CORE_FUNCTION std::string RunShares::host_of(int rank) {
  std::array<double, 64> text{};
  if (run_.strategy.rank() == rank) {
    const std::string name = io::detail::host_name();
    for (std::size_t i = 0; i < std::min(name.size(), text.size()); ++i) text[i] = static_cast<unsigned char>(name[i]);
  }
  run_.strategy.sum(text);
  std::string name;
  for (const double c : text)
    if (c > 0) name.push_back(static_cast<char>(static_cast<unsigned char>(c)));
  return name;
}

TUTTI_CORE_FUNCTION std::vector<std::int32_t> RunShares::bounds_of_step(int world) const {
  if (owners_.empty()) return {};
  std::vector<std::int32_t> bounds(static_cast<std::size_t>(world) + 1, 0);
  for (const std::int64_t owner : owners_)
    if (owner >= 0 && owner < world) ++bounds[static_cast<std::size_t>(owner) + 1];
  for (std::size_t r = 1; r < bounds.size(); ++r) bounds[r] += bounds[r - 1];
  return bounds;
}

}  // namespace tutti::detail
