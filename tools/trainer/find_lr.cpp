// SPDX-License-Identifier: MIT
#include "tools/trainer/find_lr.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/signals.hpp>

namespace tutti::trainer {

namespace {

constexpr double kept = 0.9;       // share of the smooth loss that a step keeps
constexpr double diverges = 4;     // the ramp ends when the smooth loss is so many times its least value
constexpr std::size_t first = 10;  // steps that do not end it

void write(const RunOptions& o, const std::vector<RatePoint>& points, double suggested) {
  io::Json::Array lr, loss, smooth;
  for (const RatePoint& p : points) {
    lr.emplace_back(p.lr);
    loss.push_back(tutti::detail::finite(p.loss));
    smooth.push_back(tutti::detail::finite(p.smooth));
  }
  const io::Json file = io::Json::object({{"format", std::int64_t{1}},
                                          {"suggested", suggested},
                                          {"optimizer", o.optimizer},
                                          {"batch", o.global_batch_size},
                                          {"lr", std::move(lr)},
                                          {"loss", std::move(loss)},
                                          {"smooth", std::move(smooth)}});
  io::make_directories(o.run_dir);
  io::atomic_write_file(io::Path(o.run_dir) / "find_lr.json", io::write_json(file) + "\n");
}

void print(const RunOptions& o, const std::vector<RatePoint>& points, double suggested) {
  std::printf("      rate     loss\n");
  const std::size_t every = std::max<std::size_t>(points.size() / 20, 1);
  for (std::size_t i = every - 1; i < points.size(); i += every)
    std::printf("%10.3g %8.4f\n", points[i].lr, points[i].smooth);
  if (suggested > 0)
    std::printf("--lr %.2g is suggested for %lld images per update: there the loss falls fastest\n", suggested,
                static_cast<long long>(o.global_batch_size));
  else
    std::printf("no rate is suggested, because the loss did not fall; use more --find-lr-steps, or check the images\n");
  std::printf("the weights were not kept; 'tutti-report %s' draws the curve of %s/find_lr.json\n", o.run_dir.c_str(),
              o.run_dir.c_str());
}

}  // namespace

double detail::suggested_rate(const std::vector<RatePoint>& points) {
  if (points.size() < first) return 0;
  const auto least =
      std::min_element(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.smooth < b.smooth; });
  const auto end = static_cast<std::size_t>(least - points.begin());
  const std::size_t reach = std::max<std::size_t>(points.size() / 20, 1);
  double steepest = 0, rate = 0;
  for (std::size_t i = reach; i + reach <= end; ++i) {
    const double slope = points[i + reach].smooth - points[i - reach].smooth;
    if (slope >= steepest) continue;
    steepest = slope;
    rate = points[i].lr;
  }
  return rate;
}

int find_rate(Trainer& trainer, BatchSource& train, const RunOptions& o) {
  const bool here = trainer.strategy().rank() == 0;
  const bool small = o.optimizer.starts_with("adam") || o.optimizer == "lamb";
  const double low = small ? 1e-7 : 1e-5, high = small ? 1 : 10;
  std::vector<RatePoint> points;
  double mean = 0, least = 0;
  bool stopped = false;
  train.start({trainer.counters().epoch, trainer.counters().consumed});
  try {
    for (std::int64_t i = 0; i < o.find_lr_steps && !stopped; ++i) {
      const double lr = low * std::pow(high / low, static_cast<double>(i) / static_cast<double>(o.find_lr_steps - 1));
      const Batch& batch = train.next();
      const StepResult r =
          trainer.step(batch, lr, StopSignals::stop_requested() ? step_flag::stop : std::uint32_t{0}).wait();
      stopped = (r.flags & step_flag::stop) != 0;
      // With logical ranks each rank knows the sums of all.
      Metrics m = trainer.take_metrics();
      if (o.logical_ranks == 0) m = trainer.reduce(m);
      const double loss = m.mean_loss();
      mean = kept * mean + (1 - kept) * loss;
      const double smooth = mean / (1 - std::pow(kept, static_cast<double>(i + 1)));
      points.push_back({lr, loss, smooth});
      least = i == 0 ? smooth : std::min(least, smooth);
      if (points.size() > first && smooth > diverges * least) break;
    }
  } catch (const NotFiniteError&) {
    if (points.size() < first) throw;
  }
  train.release();
  // The signal may have been sent only to another rank.
  if (stopped)
    return StopSignals::stop_requested() ? StopSignals::exit_code() : static_cast<int>(ExitCode::interrupted);
  if (!here) return 0;
  const double suggested = detail::suggested_rate(points);
  write(o, points, suggested);
  print(o, points, suggested);
  return 0;
}

}  // namespace tutti::trainer
