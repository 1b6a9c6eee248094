// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/data/audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/version.hpp>

#include "images.hpp"
#include "recipe.hpp"
#include "run_folder.hpp"

// A training program on one backend, from checked options to the exit code.
namespace tutti::examples {

namespace detail {

inline void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

inline Loader make_loader(const AnyDataset& images, const RunOptions& o, bool training) {
  LoaderOptions l;
  l.placement = {training ? o.global_batch_size : *o.evaluation_batch, 0, 1};
  l.seed = o.seed;
  l.shuffle = training;
  l.one_pass = !training;
  l.threads = static_cast<int>(o.data_nthreads);
  return Loader(images, l);
}

template <Backend B>
MemoryEstimate memory_of(Trainer<B>& trainer, const RunOptions& o, const Schema& seen) {
  // The largest plans; shorter batches share their memory.
  trainer.executor().prepare(*o.evaluation_batch, false);
  trainer.executor().prepare(o.batch_size, true);
  const auto used = trainer.executor().memory();
  MemoryEstimate m;
  m.parameters = used.parameters;
  m.gradients = used.gradients * (o.accumulate > 1 ? 2 : 1);
  const auto slots = static_cast<std::size_t>(trainer.options().optimizer.slots());
  m.optimizer = slots * used.parameters + (o.ema_decay > 0 ? used.parameters + used.states : 0);
  m.states = used.states;
  m.activations = used.activations;
  m.scratch = used.scratch;
  m.packed = used.packed;
  m.committed = used.parameters + used.states + m.optimizer;
  m.batches = static_cast<std::size_t>((o.global_batch_size + *o.evaluation_batch) * LoaderOptions{}.slots *
                                       seen.image_bytes());
  return m;
}

// Reads an epoch of training images and says how fast.
inline int test_io(const RunOptions& o, Loader& loader) {
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

// The newest checkpoint of this process, and whether the last attempt at one came to nothing.
struct LastCheckpoint : FitListener {
  std::string path;
  bool failed = false;
  void saved(const std::string& p) override {
    path = p;
    failed = false;
  }
  void warning(const std::string&) override { failed = true; }
};

template <Backend B>
void print_start(const B& backend, const RunOptions& o) {
  std::printf("tutti %s: backend %s (%s), %s, %d threads, strategy %s\n", version, std::string(backend.name()).c_str(),
              std::string(backend.description()).c_str(), o.precision.c_str(), backend.threads(), o.strategy.c_str());
  for (const auto& note : o.notes) std::printf("note: %s\n", note.c_str());
}

inline void print_evaluation(const char* what, const EvaluationReport& e, std::int64_t top_k) {
  std::printf("%s loss %.4f top-1 %.2f %% top-%lld %.2f %%  (%lld images)\n", what, e.loss, 100 * e.top1,
              static_cast<long long>(top_k), 100 * e.topk, static_cast<long long>(e.images));
}

}  // namespace detail

// Prints what will be trained and the memory it takes; then trains, evaluates or stops, as the options say.
template <Backend B>
int run(B& backend, RunOptions& o) {
  const StopSignals signals;
  const Schema seen = image_schema(o);
  detail::print_start(backend, o);
  if (!o.dry_run && !o.test_io) settle_run_folder(o);

  if (o.test_io) {
    Loader loader = detail::make_loader(load_images(o, seen).train, o, true);
    return detail::test_io(o, loader);
  }
  const Graph model = make_model(o, seen);
  Solo solo;
  Trainer<B> trainer(backend, solo, model, trainer_options(o));
  std::string text = summary(model);
  // The table of layers is for who asks; the totals are for everybody.
  if (!o.dry_run) text = text.substr(text.rfind("total:"));
  std::printf("%s %lld on %s images %lldx%lldx%lld, %lld images an update\n%s%s\n", o.network.c_str(),
              static_cast<long long>(o.depth), o.dataset.c_str(), static_cast<long long>(seen.channels),
              static_cast<long long>(seen.height), static_cast<long long>(seen.width),
              static_cast<long long>(o.global_batch_size), text.c_str(),
              to_string(detail::memory_of(trainer, o, seen)).c_str());
  if (o.dry_run) return 0;

  const Images images = load_images(o, seen);
  Loader train = detail::make_loader(images.train, o, true), test = detail::make_loader(images.test, o, false);
  std::printf("%lld training and %lld test images; files in %s\n", static_cast<long long>(images.train.size()),
              static_cast<long long>(images.test.size()), o.run_dir.c_str());

  io::make_directories(o.run_dir);
  const io::Json options = options_json(o);
  Checkpoints checkpoints(o.run_dir, static_cast<int>(*o.keep), options);
  const auto found = find_checkpoint(o, detail::warn);
  if (found) {
    compare_options(found->options(), options, detail::warn);
    // Not after plain --resume: what could not be read just now may be readable later.
    const bool chosen = !o.resume.empty() ? o.resume != "latest" : o.load_epoch.has_value();
    if (!o.eval_only && chosen) give_up_later_checkpoints(o, found->step(), detail::warn);
    checkpoints.resume_from(trainer, found->path());
    std::printf("going on from %s\n", found->path().c_str());
  } else if (!o.resume.empty()) {
    if (o.eval_only) fail<DataError>("--eval-only", "a checkpoint in " + o.run_dir, "none");
    std::printf("no checkpoint in %s yet: beginning anew\n", o.run_dir.c_str());
  }
  if (o.eval_only) {
    detail::print_evaluation("test", evaluate(trainer, test), o.top_k);
    if (trainer.has_ema())
      trainer.with_ema([&] { detail::print_evaluation("test of averaged weights", evaluate(trainer, test), o.top_k); });
    return signals.exit_code();
  }

  ProgressOptions shown;
  shown.terminal = stdout_is_terminal();
  shown.top_k = o.top_k;
  shown.max_steps = o.max_steps;
  ProgressDisplay progress(shown);
  const auto complain = [&](const std::string& w) { progress.warning(w); };
  RunLog log(o.run_dir, o.top_k, complain);
  detail::LastCheckpoint last;
  std::vector<FitListener*> listeners{&progress, &log, &last};
  std::optional<TensorboardLog> tensorboard;
  if (o.tensorboard) listeners.push_back(&tensorboard.emplace(o.run_dir, complain));
  std::optional<AuditLog> audit;
  if (o.audit) audit.emplace(io::Path(o.run_dir) / "audit-rank0.txt");
  const Counters at = trainer.counters();
  log.start(io::Json::object({{"version", version},
                              {"backend", std::string(backend.name())},
                              {"description", std::string(backend.description())},
                              {"threads", backend.threads()},
                              {"world", solo.size()},
                              {"train_images", images.train.size()},
                              {"test_images", images.test.size()},
                              {"options", options}}));
  if (found) log.resume(at.step, at.epoch + 1, found->path().string());
  if (found && audit) audit->rollback(at.epoch, at.step + 1);

  FitOptions fit_as = fit_options(o, train.steps_per_epoch());
  fit_as.stop_requested = [] { return StopSignals::stop_requested(); };
  std::fflush(stdout);
  try {
    const FitResult result = fit(trainer, train, &test, &checkpoints, listeners, fit_as, audit ? &*audit : nullptr);
    progress.end_line();
    log.end(result.interrupted ? "interrupted" : "finished", result.counters.step);
    if (result.interrupted) {
      const bool saved = !last.path.empty() && !last.failed;
      std::printf("interrupted after step %lld, state %s; --run-dir %s --resume goes on\n",
                  static_cast<long long>(result.counters.step), saved ? "saved" : "NOT SAVED", o.run_dir.c_str());
      return saved ? StopSignals::exit_code() : static_cast<int>(ExitCode::data);
    }
    if (result.last && result.last->test) detail::print_evaluation("test", *result.last->test, o.top_k);
    std::printf("done: %lld steps; files in %s\n", static_cast<long long>(result.counters.step), o.run_dir.c_str());
    return 0;
  } catch (const Error& e) {
    log.end("failed", trainer.counters().step, e.what());
    throw;
  }
}

}  // namespace tutti::examples
