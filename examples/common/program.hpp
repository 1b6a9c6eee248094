// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/host_memory.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/io/checkpoint.hpp>
#include <tutti/io/json.hpp>
#include <tutti/job/job_facts.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/train/chief.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/load_weights.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/resident_source.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/train/while_ranks_work.hpp>
#include <tutti/version.hpp>

#include "batches.hpp"
#include "recipe.hpp"
#include "run_folder.hpp"
#include "task.hpp"

// A training program on one backend, from checked options to the exit code.
namespace tutti::examples {

namespace detail {

inline void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

inline LoaderOptions loader_options(const RunOptions& o, bool training, int rank, int world) {
  LoaderOptions l;
  l.placement = {training ? o.global_batch_size : *o.evaluation_batch * world, rank, world};
  if (training && !o.test_io) l.placement.epoch_end = epoch_end_of(o);
  l.seed = o.seed;
  l.shuffle = training;
  l.one_pass = !training;
  l.threads = static_cast<int>(o.data_nthreads);
  l.skip_bad_records = o.on_bad_record == "skip";
  return l;
}

// Says before the first step, not in the middle of it, that the memory will not do. Ranks of a host share it.
inline void check_memory(const MemoryEstimate& m, const RunOptions& o, int ranks_here) {
  const auto need = static_cast<std::int64_t>(m.total()) - resident_memory(), there = available_memory() / ranks_here;
  if (need <= there) return;
  const auto each = static_cast<std::int64_t>(m.activations + m.batches) / std::max<std::int64_t>(o.batch_size, 1);
  const std::int64_t fits =
      std::max<std::int64_t>(o.batch_size - (need - there) / std::max<std::int64_t>(each, 1) - 1, 0);
  fail<DeviceError>("memory", format_bytes(static_cast<double>(m.total())) + " for this rank",
                    format_bytes(static_cast<double>(there + resident_memory())),
                    fits > 0 ? "--batch-size " + std::to_string(fits) + " fits" : "no batch fits");
}

inline MemoryEstimate memory_of(Trainer& trainer, const RunOptions& o, const Schema& seen) {
  const std::int64_t rows = std::max(o.batch_size, *o.evaluation_batch), few = std::min<std::int64_t>(rows, 4);
  // A device has memory of its own, of which its executor says itself what is lacking, before it allocates any.
  const bool on_host = trainer.executor().backend().memory().on_host();
  trainer.executor().prepare(on_host ? few : o.batch_size, true);
  if (!on_host) trainer.executor().prepare(*o.evaluation_batch, false);
  auto used = trainer.executor().memory();
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
  m.batches = static_cast<std::size_t>((o.batch_size * o.accumulate + *o.evaluation_batch) * LoaderOptions{}.slots *
                                       seen.image_bytes());
  if (!on_host) return m;
  // What is taken in vain ends the process, so it is reckoned from a small plan first.
  m.activations = used.activations * static_cast<std::size_t>(rows) / static_cast<std::size_t>(few);
  if (!o.dry_run) check_memory(m, o, launched().local_size);
  if (!o.dry_run || static_cast<std::int64_t>(m.activations) < available_memory()) {
    // The largest plans; shorter batches share their memory.
    trainer.executor().prepare(*o.evaluation_batch, false);
    trainer.executor().prepare(o.batch_size, true);
    used = trainer.executor().memory();
    m.activations = used.activations;
    m.scratch = used.scratch;
    m.packed = used.packed;
  }
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

inline std::string versions(const Backend& backend, const RunOptions& o, int world) {
  std::string precision = o.precision;
  if (o.backend == "cuda" && precision == "f32")
    precision += o.tf32 ? " by TF32" : " (--tf32 and --precision bf16 are several times as fast)";
  return std::string("tutti ") + version + ": backend " + std::string(backend.name()) + " (" +
         std::string(backend.description()) + "), " + precision + ", " + std::to_string(backend.threads()) +
         " threads, strategy " + o.strategy + (world > 1 ? ", " + std::to_string(world) + " ranks" : "");
}
inline void print_start(const Backend& backend, const RunOptions& o, int world) {
  std::printf("%s\n", versions(backend, o, world).c_str());
  for (const auto& note : o.notes) std::printf("note: %s\n", note.c_str());
}

// The steps of a run, and the columns of train_imagenet's table that follow from them, without a run.
inline void print_schedule(const RunOptions& o, std::int64_t images) {
  const FitOptions f = fit_options(o, images);
  const EpochEnd end = epoch_end_of(o);
  const std::int64_t per_epoch = steps_per_epoch(images, o.global_batch_size, end);
  const std::int64_t total =
      f.total_steps > 0 ? f.total_steps : steps_left({}, images, o.global_batch_size, end, o.epochs);
  const std::int64_t last = f.max_steps > 0 ? std::min(total, f.max_steps) : total;
  const auto ranks = static_cast<int>(o.global_batch_size / (o.batch_size * o.accumulate));
  std::printf("%lld images, %lld of them an update, %lld updates an epoch, %lld updates, %lld of them warmup\n",
              static_cast<long long>(images), static_cast<long long>(o.global_batch_size),
              static_cast<long long>(per_epoch), static_cast<long long>(total),
              static_cast<long long>(warmup_steps(o, per_epoch)));
  std::printf("Using a learning rate of %g\n  Step Epoch   LR\n", *o.lr);
  for (std::int64_t step = 1; step <= last; ++step) {
    if (step != 1 && step != last && step % o.disp_batches != 0) continue;
    std::printf("%6lld %5.1f %7.5f\n", static_cast<long long>(step),
                static_cast<double>(step) * static_cast<double>(o.global_batch_size) / static_cast<double>(images),
                f.schedule(Progress{step, per_epoch, total, o.global_batch_size, ranks}));
  }
}

// What all ranks must have alike beside the trainer's own options: the data and what the run is to do.
inline JobFacts facts(const RunOptions& o, const Images& images) {
  JobFacts f;
  // These may differ from rank to rank or do not shape the training.
  static constexpr std::string_view own[] = {"data",          "data-dir",
                                             "data-train",    "data-train-idx",
                                             "data-val",      "data-val-idx",
                                             "data-nthreads", "num-parallel-calls",
                                             "run-dir",       "log-dir",
                                             "resume",        "model-prefix",
                                             "threads",       "disp-batches",
                                             "display-every", "keep",
                                             "tensorboard",   "decoder",
                                             "log-name",      "data-on-device",
                                             "gpus",          "intra-op-parallelism-threads"};
  const io::Json json = options_json(o);
  for (const auto& [name, value] : json.as_object())
    if (std::find(std::begin(own), std::end(own), name) == std::end(own) &&
        std::find(o.derived.begin(), o.derived.end(), name) == o.derived.end())
      f.add("--" + name, io::write_json(value));
  const auto sample = [&](const char* what, const AnyDataset& d) {
    std::string text;
    std::vector<std::uint8_t> image(static_cast<std::size_t>(d.schema().image_bytes()));
    constexpr std::int64_t looks = 16;
    for (std::int64_t k = 0; k < std::min(looks, d.size()); ++k) {
      std::int32_t label = 0;
      Rng rng(0, Purpose::user);
      try {
        d.read(k * d.size() / looks, rng, Slot{image, label});
      } catch (const DataError& e) {
        if (o.on_bad_record == "fail") throw;
        text += e.what();
        continue;
      }
      text.append(reinterpret_cast<const char*>(image.data()), image.size()).append(std::to_string(label));
    }
    f.add(what, std::to_string(d.size()) + " images, sample " + std::to_string(JobFacts::hash_of(text)));
  };
  sample("training data", images.train);
  if (images.test) sample("test data", *images.test);
  return f;
}

// Rank 0 settles the run's folder; the others learn it.
inline void agree_on_run_folder(AnyStrategy& strategy, RunOptions& o) {
  if (strategy.rank() == 0) settle_run_folder(o);
  if (strategy.size() == 1) return;
  std::vector<std::byte> name(4096);
  if (o.run_dir.size() >= name.size())
    fail<UsageError>("--run-dir", "a path of less than 4096 bytes", std::to_string(o.run_dir.size()));
  std::memcpy(name.data(), o.run_dir.data(), o.run_dir.size());
  std::vector<StateSpan> state{{"run folder", DType::u8, {static_cast<std::int64_t>(name.size())}, name}};
  strategy.synchronise(state);
  o.run_dir = reinterpret_cast<const char*>(name.data());
}

// With --local-ckpt the first rank on every host saves beside rank 0, in that host's own folder. Ranks whose folder is
// rank 0's, over a network file system, leave it to that. All ranks call it.
inline bool saves_beside_chief(AnyStrategy& strategy, const RunOptions& o) {
  if (strategy.size() == 1) return false;
  const bool chief = strategy.rank() == 0;
  double word = chief ? static_cast<double>(::getpid()) : 0;
  strategy.sum({&word, 1});
  const io::Path mark = io::Path(o.run_dir) / (".rank-0-saves-here-" + std::to_string(std::llround(word)));
  if (chief) io::atomic_write_file(mark, "");
  strategy.sum({&word, 1});  // it is there
  const bool saves = !chief && launched().local_rank == 0 && !io::path_exists(mark);
  while_ranks_work(strategy, "making a run folder", [&] {
    if (!saves) return;
    if (o.clear_log) clear_run(o.run_dir);
    io::make_directories(o.run_dir);
  });
  // Nobody looks for it any more.
  if (chief) io::remove_tree(mark);
  return saves;
}

inline void print_evaluation(const char* what, const EvaluationReport& e, std::int64_t top_k) {
  std::printf("%s loss %.4f top-1 %.2f %% top-%lld %.2f %%  (%lld images)\n", what, e.loss, 100 * e.top1,
              static_cast<long long>(top_k), 100 * e.topk, static_cast<long long>(e.images));
}

inline void print_views(const ViewsReport& v, std::int64_t top_k) {
  const std::string what = v.averaged ? "test of averaged weights, " : "test, ";
  print_evaluation((what + std::to_string(v.views) + " views of each image:").c_str(), v.test, top_k);
}

// By several views of each image, with the averaged weights where there are any.
inline ViewsReport evaluate_views_of(Trainer& trainer, BatchSource& test, const RunOptions& o) {
  const auto views = test_views(static_cast<int>(o.tta));
  ViewsReport v{trainer.counters().step, static_cast<std::int64_t>(views.size()), trainer.has_ema(), {}};
  const auto evaluate = [&] { v.test = evaluate_views(trainer, test, views); };
  if (v.averaged)
    trainer.with_ema(evaluate);
  else
    evaluate();
  return v;
}

// Rank 0's; the others take them from it.
inline void load_pretrained(Trainer& trainer, const RunOptions& o) {
  const LoadedWeights w = load_weights(trainer, o.pretrained, {.skip_classifier = !o.eval_only});
  std::printf("%zu tensors from %s%s\n", w.loaded, o.pretrained.c_str(),
              w.skipped.empty() ? "" : "; the classifier begins anew, for another number of classes");
}

// The epoch of a checkpoint, from 1: ceil(step * batch / images). --num-gpus ranks of --batch-size made it, or as many
// as it tells.
inline std::int64_t epoch_of(const RunOptions& o, const Counters& at, const io::Json& made_with) {
  const auto told = [&](const char* name) {
    const io::Json* v = made_with.find(name);
    return v != nullptr ? v->as_integer() : 0;
  };
  std::int64_t images = told("train_images"), batch = told("global-batch-size");
  if (images == 0 && at.epoch > 0) images = (at.samples - at.consumed) / at.epoch;  // earlier checkpoints do not tell
  if (o.num_gpus) batch = o.batch_size * *o.num_gpus;
  if (images <= 0 || batch <= 0) return at.epoch + (at.consumed > 0 ? 1 : 0);
  return at.step * (batch / images) + (at.step * (batch % images) + images - 1) / images;
}

// The checkpoint that the trainer holds already, and before it with --eval-interval every k-th of those before, counted
// from the oldest, on all ranks.
inline void evaluate_checkpoints(Trainer& trainer, BatchSource& test, Checkpoints& checkpoints, const RunOptions& o,
                                 const Task& task, const io::LoadedCheckpoint* newest, std::int64_t images) {
  const bool chief = trainer.strategy().rank() == 0;
  const auto chief_reads = [&](const std::function<void()>& f) {
    while_ranks_work(trainer.strategy(), "reading a checkpoint", chief ? f : nullptr);
  };
  std::vector<io::Path> before;
  chief_reads([&] {
    if (o.eval_interval <= 0) return;
    const auto all = io::CheckpointStore(o.run_dir).list();
    std::int64_t index = 0;
    for (auto path = all.rbegin(); path != all.rend(); ++path)
      if (index++ % o.eval_interval == 0 && newest != nullptr && path->filename() < newest->path().filename())
        before.push_back(*path);
  });
  double count = static_cast<double>(before.size());
  trainer.strategy().sum({&count, 1});
  if (chief && task.evaluating) task.evaluating(o, images);
  const auto shown = [&](const EvaluatedCheckpoint& c) {
    const EvaluationReport e = evaluate(trainer, test);
    if (!chief) return;
    if (task.evaluated)
      task.evaluated(e, c);
    else
      print_evaluation(c.averaged ? "test of averaged weights" : "test", e, o.top_k);
  };
  // `loaded`: rank 0's, which the trainer holds; null for weights of no run.
  const auto both = [&](const io::LoadedCheckpoint* loaded, const io::Path& path) {
    EvaluatedCheckpoint c;
    c.path = path;
    if (loaded != nullptr) {
      c.step = trainer.counters().step;
      c.epoch = epoch_of(o, trainer.counters(), loaded->options());
    }
    shown(c);
    c.averaged = true;
    if (trainer.has_ema()) trainer.with_ema([&] { shown(c); });
  };
  const auto load = [&](const io::LoadedCheckpoint* loaded) {
    if (loaded != nullptr) checkpoints.resume_from(trainer, *loaded);
    if (trainer.strategy().size() > 1) trainer.synchronise();
  };
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(count); ++k) {
    std::optional<io::LoadedCheckpoint> loaded;
    chief_reads([&] { loaded = io::load_checkpoint(before[static_cast<std::size_t>(k)]); });
    load(loaded ? &*loaded : nullptr);
    both(loaded ? &*loaded : nullptr, loaded ? loaded->path() : io::Path());
  }
  if (count > 0) load(newest);
  both(newest, newest != nullptr ? newest->path() : io::Path(o.pretrained));
  if (chief && task.evaluation_done) task.evaluation_done();
}

}  // namespace detail

// Prints what will be trained and the memory it takes; then trains, evaluates or stops, as the options say.
inline int run(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Task& task) {
  const StopSignals signals;
  const Schema seen = task.schema(o);
  // check() knows no size that only the records tell.
  if (o.network == "resnet" && std::max(seen.height, seen.width) <= 28) o.network = "resnet_preact";
  const int rank = strategy.rank(), world = strategy.size();
  const bool chief = rank == 0;  // prints, logs and saves
  if (chief) detail::print_start(backend, o, world);
  if (!o.dry_run && !o.test_io) detail::agree_on_run_folder(strategy, o);

  if (o.test_io) {
    Loader loader(task.images(o, seen).train, detail::loader_options(o, true, rank, world));
    return detail::test_io(o, loader);
  }
  if (o.print_schedule) {
    const std::int64_t there = task.images(o, seen).train.size();
    if (chief) detail::print_schedule(o, there);
    return 0;
  }
  TrainerOptions trainer_as = trainer_options(o);
  std::optional<Images> images;
  if (!o.dry_run) {
    images = task.images(o, seen);
    trainer_as.must_agree = detail::facts(o, *images);
  }
  const Graph model = make_model(o, seen, images ? &images->train : nullptr);
  Trainer trainer(backend, strategy, model, trainer_as);
  std::string text = summary(model);
  // The table of layers is for who asks; the totals are for everybody.
  if (!o.dry_run) text = text.substr(text.rfind("total:"));
  const MemoryEstimate memory = detail::memory_of(trainer, o, seen);
  if (!o.pretrained.empty() && !o.dry_run && chief) detail::load_pretrained(trainer, o);
  if (chief)
    std::printf("%s %lld on %s images %lldx%lldx%lld, %lld images an update\n%s%s\n", o.network.c_str(),
                static_cast<long long>(o.depth), o.dataset.c_str(), static_cast<long long>(seen.channels),
                static_cast<long long>(seen.height), static_cast<long long>(seen.width),
                static_cast<long long>(o.global_batch_size), text.c_str(), to_string(memory).c_str());
  if (o.dry_run) {
    const std::int64_t rows = std::min<std::int64_t>(o.batch_size, 4);
    if (chief)
      for (const std::string& f : trainer.executor().fallbacks(rows))
        std::printf("on one thread, by the loops of backend reference: %s\n", f.c_str());
    return 0;
  }

  std::unique_ptr<BatchSource> train, test;
  std::size_t resident = 0;
  const auto source = [&](const AnyDataset& d, bool training) {
    return make_source(backend, d, detail::loader_options(o, training, rank, world), o, resident);
  };
  if (!o.eval_only && steps_left({}, images->train.size(), o.global_batch_size, epoch_end_of(o),
                                 fit_options(o, images->train.size()).epochs) == 0)
    fail<UsageError>("--batch-size",
                     "a batch of all ranks of no more than the images of --num-epochs passes, " +
                         std::to_string(images->train.size() * o.epochs),
                     std::to_string(o.global_batch_size));
  if (!o.eval_only) train = source(images->train, true);
  if (images->test) test = source(*images->test, false);
  const std::int64_t tests = images->test ? images->test->size() : 0;
  if (chief)
    std::printf("%lld training and %lld test images; files in %s%s\n", static_cast<long long>(images->train.size()),
                static_cast<long long>(tests), o.run_dir.c_str(),
                log_folder(o) == o.run_dir ? "" : (", log in " + o.log_dir).c_str());
  if (chief && resident > 0)
    std::printf("the device's memory holds their %s\n", format_bytes(static_cast<double>(resident)).c_str());

  io::make_directories(o.run_dir);
  const io::Path logs = log_folder(o);
  if (chief) io::make_directories(logs);
  const io::Json options = options_json(o);
  io::Json saved_with = options;
  saved_with.set("train_images", images->train.size());
  Checkpoints checkpoints(o.run_dir, static_cast<int>(*o.keep), saved_with);
  std::optional<io::LoadedCheckpoint> found;
  while_ranks_work(strategy, "reading a checkpoint", [&] {
    if (chief) found = find_checkpoint(o, detail::warn);
  });
  if (found) {
    compare_options(found->options(), options, detail::warn);
    // Not after plain --resume: what could not be read just now may be readable later.
    const bool chosen = !o.resume.empty() ? o.resume != "latest" : o.load_epoch.has_value();
    if (!o.eval_only && chosen) give_up_later_checkpoints(o, found->step(), detail::warn);
    checkpoints.resume_from(trainer, *found);
    std::printf("going on from %s\n", found->path().c_str());
  } else if (!o.resume.empty()) {
    if (o.eval_only && chief) fail<DataError>("--eval-only", "a checkpoint in " + o.run_dir, "none");
    if (chief) std::printf("no checkpoint in %s yet: beginning anew\n", o.run_dir.c_str());
  }
  if (world > 1) trainer.synchronise();
  if (o.eval_only) {
    if (!test) fail<DataError>("--eval", "validation images in " + o.data_dir, "none");
    detail::evaluate_checkpoints(trainer, *test, checkpoints, o, task, found ? &*found : nullptr, tests);
    if (o.tta > 0) {
      const ViewsReport of_views = detail::evaluate_views_of(trainer, *test, o);
      if (chief) detail::print_views(of_views, o.top_k);
    }
    return signals.exit_code();
  }

  FitOptions fit_as = fit_options(o, images->train.size());
  ProgressOptions shown;
  shown.terminal = stdout_is_terminal();
  shown.top_k = o.top_k;
  shown.max_steps = o.max_steps;
  ProgressDisplay progress(shown);
  const Counters at = trainer.counters();
  ChiefDuties duties;
  duties.checkpoints = &checkpoints;
  if (task.shows_progress) duties.listeners.push_back(&progress);
  if (o.local_ckpt) duties.saves_too = [&] { return detail::saves_beside_chief(strategy, o); };
  if (o.audit) duties.audit = o.run_dir;
  duties.open = [&](bool takes_over) {
    const auto complain = [&](const std::string& w) { progress.warning(w); };
    io::make_directories(logs);
    std::vector<std::unique_ptr<FitListener>> all;
    auto log = std::make_unique<RunLog>(logs, o.top_k, complain);
    if (!takes_over)
      log->start(io::Json::object({{"version", version},
                                   {"backend", std::string(backend.name())},
                                   {"description", std::string(backend.description())},
                                   {"threads", backend.threads()},
                                   {"world", world},
                                   {"train_images", images->train.size()},
                                   {"test_images", tests},
                                   {"options", options}}));
    if (found && !takes_over) log->resume(at.step, at.epoch + 1, found->path().string());
    all.push_back(std::move(log));
    const int ranks = strategy.size();
    const RunStart start{detail::versions(backend, o, ranks), images->train.size(), ranks, fit_as.save_every_steps,
                         fit_as.summary_every};
    if (task.listeners)
      for (auto& l : task.listeners(o, start, [&] { return trainer.decay_term(); })) all.push_back(std::move(l));
    if (o.tensorboard) all.push_back(std::make_unique<TensorboardLog>(logs, complain, fit_as.summary_every > 0));
    return all;
  };
  Chief office(trainer, duties);

  // The signal may have come to another rank only.
  const auto interrupted_code = [] {
    return StopSignals::stop_requested() ? StopSignals::exit_code() : static_cast<int>(ExitCode::interrupted);
  };
  fit_as.stop_requested = [] { return StopSignals::stop_requested(); };
  fit_as.record_skipped = [&](const std::string& m) {
    detail::warn("rank " + std::to_string(strategy.rank()) + " skips a record: " + m);
  };
  std::fflush(stdout);
  try {
    const FitResult result = fit(trainer, *train, test.get(), office, fit_as);
    std::optional<ViewsReport> of_views;
    if (o.tta > 0 && test && !result.interrupted) of_views = detail::evaluate_views_of(trainer, *test, o);
    if (!office.here()) return result.interrupted ? interrupted_code() : 0;
    const std::int64_t step = result.counters.step;
    office.tell([&](FitListener& l) {
      if (of_views) l.views(*of_views);
      l.ended({result.interrupted ? "interrupted" : "finished", step});
    });
    if (result.interrupted) {
      std::printf("interrupted after step %lld, state %s; --run-dir %s%s --resume goes on\n",
                  static_cast<long long>(step), result.saved ? "saved" : "NOT SAVED", o.run_dir.c_str(),
                  logs == o.run_dir ? "" : (" --log-dir " + logs.string()).c_str());
      return result.saved ? interrupted_code() : static_cast<int>(ExitCode::data);
    }
    if (result.last && result.last->test) detail::print_evaluation("test", *result.last->test, o.top_k);
    if (of_views) detail::print_views(*of_views, o.top_k);
    std::printf("done: %lld steps; files in %s\n", static_cast<long long>(step), o.run_dir.c_str());
    return 0;
  } catch (const Error& e) {
    office.tell([&](FitListener& l) { l.ended({"failed", trainer.counters().step, e.what()}); });
    throw;
  }
}

}  // namespace tutti::examples
