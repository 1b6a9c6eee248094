// SPDX-License-Identifier: MIT
#include "tools/trainer/without_training.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include <tutti/core/clock.hpp>
#include <tutti/train/signals.hpp>

#include "tools/trainer/recipe.hpp"

namespace tutti::trainer {

int test_io(const RunOptions& o, Loader& loader) {
  Stopwatch all, window;
  std::int64_t images = 0, seen = 0, step = 0;
  loader.start({});
  for (bool last = false; !last && !StopSignals::stop_requested();) {
    const Batch& batch = loader.next();
    last = batch.last_of_epoch;
    images += batch.count;
    if (++step % o.disp_batches != 0) continue;
    std::printf("batch %lld  %.1f images/s\n", static_cast<long long>(step),
                static_cast<double>(images - seen) / window.seconds());
    seen = images;
    window.restart();
  }
  std::printf("%lld images, %.1f images/s\n", static_cast<long long>(images),
              static_cast<double>(images) / all.seconds());
  return StopSignals::exit_code();
}

void print_schedule(const RunOptions& o, std::int64_t images) {
  const FitOptions f = fit_options(o, images);
  const EpochEnd end = epoch_end_of(o);
  const std::int64_t of_all = steps_of_all(o);
  const std::int64_t per_epoch = steps_per_epoch(images, o.global_batch_size, end) * of_all;
  const std::int64_t total =
      f.total_steps > 0 ? f.total_steps : steps_left({}, images, o.global_batch_size, end, o.epochs) * of_all;
  const std::int64_t last = f.max_steps > 0 ? std::min(total, f.max_steps) : total;
  const auto ranks =
      static_cast<int>(o.logical_ranks > 0 ? o.logical_ranks : o.global_batch_size / (o.batch_size * o.accumulate));
  std::printf("%lld images, %lld images per update, %lld updates per epoch, %lld updates, %lld of them warmup\n",
              static_cast<long long>(images), static_cast<long long>(o.global_batch_size / of_all),
              static_cast<long long>(per_epoch), static_cast<long long>(total),
              static_cast<long long>(warmup_steps(o, per_epoch)));
  std::printf("Using a learning rate of %g\n  Step Epoch   LR\n", *o.lr);
  for (std::int64_t step = 1; step <= last; ++step) {
    if (step != 1 && step != last && step % o.disp_batches != 0) continue;
    std::printf(
        "%6lld %5.1f %7.5f\n", static_cast<long long>(step),
        static_cast<double>(step) * static_cast<double>(o.global_batch_size) / static_cast<double>(images * of_all),
        f.schedule(SchedulePoint{step, per_epoch, total, o.global_batch_size, ranks}));
  }
}

}  // namespace tutti::trainer
