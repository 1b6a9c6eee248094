// SPDX-License-Identifier: MIT
#include "tools/trainer/run.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/io/append_file.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/evaluation_file.hpp>
#include <tutti/train/make_source.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/run_with_heartbeat.hpp>
#include <tutti/version.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/check_batch.hpp"
#include "tools/trainer/evaluate_run.hpp"
#include "tools/trainer/find_lr.hpp"
#include "tools/trainer/fine_tuning.hpp"
#include "tools/trainer/hardest_source.hpp"
#include "tools/trainer/mxnet_lines.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/run_folder.hpp"
#include "tools/trainer/run_handoff.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/start.hpp"
#include "tools/trainer/watched_source.hpp"

namespace tutti::trainer {

Run::Run(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Task& task, Loaded loaded)
    : backend_(backend),
      strategy_(strategy),
      o_(o),
      task_(task),
      images_(std::move(loaded.images)),
      model_(make_model(o, loaded.seen, images_.plain ? &*images_.plain : &images_.train)),
      trainer_(backend, strategy, trained_net(model_, o, loaded.seen, backend, images_), options()),
      joins_(strategy.rank() < 0) {
  if (o.patience > 0 && !o.eval_only && !images_.test)
    fail<DataError>("--patience", "validation images, whose accuracy it follows", "none", "leave the option out");
  if (!o.evaluate_every) o.evaluate_every = images_.evaluate_each_epoch ? 1 : 0;
  const MemoryEstimate memory = memory_of(trainer_, o, loaded.seen);
  find();
  // A run that goes on has weights of its own.
  if (!o.pretrained.empty() && here() && !found_) {
    load_pretrained(trainer_, o);
    if (const std::string note = of_other_classes(o, loaded.seen); !note.empty()) images_.notes.push_back(note);
  }
  if (!o.pretrained.empty() && found_)
    images_.notes.emplace_back("no effect: --pretrained, because the run goes on with its own weights");
  if (here()) print_net(model_, memory, o, loaded.seen);
  make_sources(loaded.seen);
  io::make_directories(o.run_dir);
  io::Json saved_with = options_json(o);
  saved_with.set("train_images", images_.train.size());
  if (images_.held_out) saved_with.set("not_held_out", static_cast<std::int64_t>(images_.not_held_out));
  checkpoints_.emplace(o.run_dir, static_cast<int>(*o.keep), saved_with,
                       model_metadata(o, loaded.seen, model_, task.preparation(o, loaded.seen)));
  begin();
}

void Run::evaluate() {
  if (!test_) fail<DataError>("--eval", "validation images in " + o_.data_dir, "none");
  evaluate_checkpoints(trainer_, *test_, *checkpoints_, o_, task_, found_ ? &*found_ : nullptr, tests());
  if (o_.tta == 0) return;
  const ViewsReport of_views = evaluate_views_of(trainer_, *test_, o_);
  if (here()) print_views(of_views, o_.top_k);
}

int Run::train() {
  FitOptions how = fit_options(o_, images_.train.size());
  if (o_.find_lr) {
    if (strategy_.members() != nullptr)
      fail<UsageError>("--find-lr", "a job whose members stay the same", "tutti-launch --elastic",
                       "find the rate with one process");
    return find_rate(trainer_, *train_, o_);
  }
  // If members may change, a signal stops only the process that gets it. The whole job is stopped over its channel, or
  // by SIGINT if it has no channel.
  ElasticMembership* const members = strategy_.members();
  const bool anew = members != nullptr && members->restarts_processes();
  auto& asked = members != nullptr ? how.leave_requested : how.stop_requested;
  asked = [this, anew] { return (StopSignals::stop_requested() && !(anew && told_to_stop())) || spot_notice(); };
  if (anew) how.stop_requested = told_to_stop;
  how.record_skipped = [this](const std::string& m) {
    warn("rank " + std::to_string(strategy_.rank()) + " skips a record: " + m);
  };
  const ProgressOptions shown{.terminal = stdout_is_terminal(), .top_k = o_.top_k, .max_steps = o_.max_steps};
  const bool lines = is_scripted(o_);
  const bool mxnet = o_.log_lines == "mxnet";
  const std::unique_ptr<ProgressDisplay> display = mxnet   ? std::make_unique<MxnetDisplay>(shown)
                                                   : lines ? std::make_unique<SparseDisplay>(shown)
                                                           : std::make_unique<ProgressDisplay>(shown);
  ProgressDisplay& progress = *display;
  StepLines step_lines;
  std::int64_t shown_at = trainer_.counters().step;
  how.after_step = [&](const FitStep& s) {
    if (lines && !mxnet) step_lines(s);
    const std::int64_t before = std::exchange(shown_at, s.step);
    if (tensorboard_ != nullptr && o_.histograms > 0 && s.step / o_.histograms > before / o_.histograms)
      tensorboard_->histograms(trainer_, s.step);
  };
  CoordinatorOptions duties;
  duties.checkpoints = &*checkpoints_;
  if (task_.shows_progress || !o_.as_table || mxnet) duties.listeners.push_back(&progress);
  std::optional<RunHandoffWriter> keeper;
  if (anew && here()) duties.listeners.push_back(&keeper.emplace(o_));
  duties.open = [&](bool takes_over) { return open_logs(progress, how, takes_over || o_.kept); };
  if (o_.local_ckpt) duties.saves_too = [this] { return saves_with_coordinator(strategy_, o_); };
  if (o_.audit) duties.audit = o_.run_dir;
  Coordinator coordinator(trainer_, duties);
  std::fflush(stdout);
  try {
    const FitResult result = fit(trainer_, *train_, test_.get(), coordinator, how);
    std::optional<ViewsReport> of_views;
    if (o_.tta > 0 && test_ && !result.interrupted && !result.left && !result.changes)
      of_views = evaluate_views_of(trainer_, *test_, o_);
    // A worker that has left must not write any more. The run continues without it, so another worker logs the end.
    if (!result.left)
      coordinator.tell([&](FitListener& l) {
        if (of_views) l.views(*of_views);
        if (!result.changes) l.ended(run_end(result));
      });
    if (result.left) progress.ended({});
    if (keeper && result.changes) keeper->members_change();
    return end(result, of_views);
  } catch (const Error& e) {
    coordinator.tell([&](FitListener& l) { l.ended({"failed", trainer_.counters().step, e.what()}); });
    throw;
  }
}

bool Run::spot_notice() {
  if (o_.spot_notice.empty() || noticed_) return noticed_;
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < std::chrono::milliseconds(500)) return false;
  looked_ = now;
  noticed_ = io::path_exists(o_.spot_notice);
  if (noticed_) std::fprintf(stderr, "%s exists: stopping after this step\n", o_.spot_notice.c_str());
  return noticed_;
}

TrainerOptions Run::options() const {
  TrainerOptions t = trainer_options(o_, o_.eval_only ? 0 : images_.train.size());
  t.must_agree = facts(o_, images_);
  t.watcher = values_.get();
  return t;
}

void Run::make_sources(const Schema& seen) {
  const std::int64_t size = images_.train.size();
  if (!o_.eval_only && steps_left({}, size, o_.global_batch_size, epoch_end_of(o_), fit_options(o_, size).epochs) == 0)
    fail<UsageError>("--batch-size",
                     "a global batch of at most the images of --num-epochs passes, " + std::to_string(size * o_.epochs),
                     std::to_string(o_.global_batch_size));
  std::size_t resident = 0;
  const auto source = [&](const AnyDataset& d, bool training) {
    // If ranks do not wait for each other, rank 0 evaluates alone.
    const bool shared = training || !strategy_.owns_weights();
    // A worker that joins learns its rank later; its share is about that of the first workers.
    LoaderOptions l = loader_options(o_, training, shared ? std::max(strategy_.rank(), 0) : 0,
                                     !shared  ? 1
                                     : joins_ ? static_cast<int>(o_.founders)
                                              : strategy_.size());
    if (training) l.later = images_.later;
    return make_source(backend_, d, std::move(l), on_device_of(o_), &resident, "--data-on-device");
  };
  if (!o_.eval_only) train_ = source(images_.train, true);
  if (train_ && o_.hardest < 1) {
    if (strategy_.size() > 1 || strategy_.members() != nullptr || resident > 0)
      fail<UsageError>("--hardest", "one process, and images in the host's memory",
                       resident > 0 ? "images on the device" : "several processes",
                       resident > 0 ? "use --data-on-device no" : "start one process, or give --hardest 1");
    train_ = hardest_source(std::move(train_), backend_, o_, seen, images_.plain ? *images_.plain : images_.train);
  }
  // If members may change, any rank may become rank 0.
  if (images_.test && (here() || !strategy_.owns_weights() || strategy_.members() != nullptr))
    test_ =
        std::make_unique<WatchedSource>(source(*images_.test, false), WatchOptions{.shows = [this] { return here(); }});
  if (!here()) return;
  if (const std::string note = detail::few_updates(o_, size); !o_.eval_only && !note.empty())
    images_.notes.push_back(note);
  for (const std::string& note : images_.notes) std::printf("note: %s\n", note.c_str());
  const std::string training = o_.eval_only ? "" : std::to_string(size) + " training and ";
  std::printf("%s%lld test images; files in %s%s\n", training.c_str(), static_cast<long long>(tests()),
              o_.run_dir.c_str(), log_folder(o_) == o_.run_dir ? "" : (", log in " + o_.log_dir).c_str());
  if (resident > 0)
    std::printf("the device's memory holds their %s\n", format_bytes(static_cast<double>(resident)).c_str());
}

void Run::find() {
  if (joins_) return;  // gets its state from the other ranks
  run_with_heartbeat(strategy_, "reading a checkpoint", [&] {
    if (!here()) return;
    if (!o_.eval_only && !o_.kept) lock_.require(o_.run_dir, o_.traits().as_horovod ? "--log-dir" : "--run-dir");
    require_kept_checkpoint(o_);
    found_ = find_checkpoint(o_, warn);
    if (!found_) return;
    require_classes_of(found_->path(), o_, images_.train.schema().class_names);
    if (images_.held_out) require_same_split(found_->options(), o_, images_.not_held_out);
  });
}

void Run::begin() {
  if (joins_) return;
  if (found_) {
    compare_options(found_->options(), o_, warn);
    // A plain --resume removes no later checkpoints: one that could not be read now may be readable later.
    const bool chosen = !o_.resume.empty() ? o_.resume != "latest" : o_.load_epoch.has_value();
    if (!o_.eval_only && chosen) give_up_later_checkpoints(o_, found_->step(), warn);
    if (o_.eval_only)
      checkpoints_->load_weights(trainer_, *found_);
    else
      checkpoints_->resume_from(trainer_, *found_);
    std::printf("this run continues from %s\n", found_->path().c_str());
  } else if (!o_.resume.empty() && here()) {
    if (o_.eval_only) fail<DataError>("--eval-only", "a checkpoint in " + o_.run_dir, "none");
    std::printf("no checkpoint in %s yet: starting from the beginning\n", o_.run_dir.c_str());
  }
  if (strategy_.size() > 1 || strategy_.owns_weights()) trainer_.synchronise();
}

std::vector<std::unique_ptr<FitListener>> Run::open_logs(ProgressDisplay& progress, const FitOptions& how,
                                                         bool takes_over) {
  const io::Path folder = log_folder(o_);
  const auto complain = [&progress](const std::string& w) { progress.warning(w); };
  const int world = strategy_.size();
  io::make_directories(folder);
  // A new folder could not be locked before it existed. If this rank takes over, the lost rank may still hold the lock.
  if (!takes_over)
    lock_.require(o_.run_dir, o_.traits().as_horovod ? "--log-dir" : "--run-dir");
  else
    (void)lock_.take(o_.run_dir, {});
  std::vector<std::unique_ptr<FitListener>> all;
  // A rank that was lost may not have written to the log yet.
  const bool begun = takes_over && !io::AppendFile(folder / "log.jsonl", io::AppendFile::Mode::continue_file).empty();
  auto log = std::make_unique<RunLog>(folder, o_.top_k, complain, trainer_.counters().generation);
  if (images_.test) log->name_classes(images_.test->schema().class_names);
  if (const auto best = checkpoints_->best_step()) log->continue_best(*best);
  if (!begun) {
    io::Json facts = io::Json::object({{"version", version},
                                       {"backend", backend_.name()},
                                       {"description", backend_.description()},
                                       {"threads", backend_.threads()},
                                       {"world", world},
                                       {"train_images", images_.train.size()},
                                       {"test_images", tests()},
                                       {"options", options_json(o_)}});
    if (o_.logical_ranks > 0) facts.set("logical_ranks", o_.logical_ranks);
    log->start(facts);
    const Counters& at = trainer_.counters();
    if (found_) log->resume(at.step, at.epoch + 1, found_->path().string());
  } else if (o_.kept) {
    const Counters& at = trainer_.counters();
    log->resume(at.step, at.epoch + 1, found_ ? found_->path().string() : "");
    MembersReport m{at.step, world, 0, at.generation, 0};
    if (o_.kept->ended_ns > 0) m.seconds = static_cast<double>(wall_clock_ns() - o_.kept->ended_ns) * 1e-9;
    log->members(m);
    progress.members(m);
  }
  all.push_back(std::move(log));
  const RunStart start{versions(backend_, o_, world), images_.train.size(), world, how.save_every_steps,
                       how.summary_every};
  if (task_.listeners && o_.log_lines != "mxnet")
    for (auto& l : task_.listeners(o_, start, [this] { return trainer_.l2_penalty(); })) all.push_back(std::move(l));
  if (images_.test) {
    auto file = std::make_unique<EvaluationFile>(folder, *images_.test, complain, images_.test_file);
    // Its table of classes and net.onnx are of the best evaluation too.
    if (o_.program == Program::tutti_train) file->keep_best(checkpoints_->best_step());
    all.push_back(std::move(file));
  }
  if (!o_.tensorboard) return all;
  auto board =
      std::make_unique<TensorboardRun>(folder, complain, how.summary_every > 0, options_json(o_), tensorboard_);
  if (const Counters& at = trainer_.counters(); !takes_over && train_ != nullptr)
    board->samples(images_.train, *train_, {at.epoch, at.consumed}, o_.seed, at.step + 1);
  all.push_back(std::move(board));
  return all;
}

RunEnd Run::run_end(const FitResult& result) {
  if (result.lost || (result.interrupted && !result.saved))
    return {"failed", result.counters.step, "the last checkpoint could not be written"};
  return {result.interrupted ? "interrupted" : "finished", result.counters.step};
}

int Run::end(const FitResult& result, const std::optional<ViewsReport>& of_views) {
  // The signal may have been sent only to another rank.
  const int interrupted =
      StopSignals::stop_requested() ? StopSignals::exit_code() : static_cast<int>(ExitCode::interrupted);
  if (result.changes && !result.left) {
    if (here())
      std::printf("the members change after step %lld, state %s\n", static_cast<long long>(result.counters.step),
                  result.saved ? "saved" : "NOT SAVED");
    return static_cast<int>(ExitCode::restart);
  }
  if (result.left) {
    std::printf("left the job after step %lld; the other ranks continue\n",
                static_cast<long long>(result.counters.step));
    return 0;
  }
  if (!here()) return result.interrupted ? interrupted : 0;
  const auto steps = static_cast<long long>(result.counters.step);
  if (result.interrupted) {
    std::printf("interrupted after step %lld, state %s; %s\n", steps, result.saved ? "saved" : "NOT SAVED",
                how_to_resume(o_).c_str());
    return result.saved ? interrupted : static_cast<int>(ExitCode::data);
  }
  if (result.last && result.last->test) print_evaluation("test", *result.last->test, o_.top_k);
  if (of_views) print_views(*of_views, o_.top_k);
  if (result.stale)
    std::printf("the last %lld evaluations were not better than an earlier one, so the run ends (--patience)\n",
                static_cast<long long>(o_.patience));
  std::printf("done: %lld steps%s; files in %s\n", steps, result.lost ? ", state NOT SAVED" : "", o_.run_dir.c_str());
  if (task_.finished && !result.lost) {
    std::fflush(stdout);
    task_.finished(o_);
  }
  return result.lost ? static_cast<int>(ExitCode::data) : 0;
}

}  // namespace tutti::trainer
