// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/io/append_file.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/files/run_folder.hpp>
#include <tutti/train/detail/fit/fit_job_checks.hpp>
#include <tutti/train/detail/fit/prepare_together.hpp>
#include <tutti/train/evaluation_file.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/fit_recipe.hpp>
#include <tutti/train/make_source.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/run_with_heartbeat.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/version.hpp>

namespace tutti::detail {

// One call of fit(job, net, recipe) in a process that trains: its trainer, sources, checkpoints and logs.
class JobRun {
 public:
  JobRun(TrainingJob& job, AnyStrategy& strategy, const Graph& net, const FitRecipe& recipe, const FitImages& images,
         const TrainerOptions& options, const FitOptions& how)
      : backend_(job.backend()),
        strategy_(strategy),
        recipe_(recipe),
        images_(images),
        how_(how),
        trainer_(backend_, strategy, net, options),
        progress_({.terminal = stdout_is_terminal(), .max_steps = recipe.max_steps}) {
    if (!recipe.run.empty()) checkpoints_.emplace(recipe.run, recipe.keep, options_json());
    listen_to_signals();
    how_.record_skipped = [this](const std::string& m) {
      progress_.warning("rank " + std::to_string(strategy_.rank()) + " skips an image: " + m);
    };
  }

  EpochReport train() {
    if (!prepare_together(strategy_, [&] { begin(); })) leave();
    CoordinatorOptions duties;
    if (checkpoints_) duties.checkpoints = &*checkpoints_;
    if (recipe_.progress) duties.listeners.push_back(&progress_);
    // One by one: GCC 12 warns about std::vector::insert() of a range.
    for (FitListener* const l : recipe_.listeners) duties.listeners.push_back(l);
    if (checkpoints_) duties.open = [this](bool takes_over) { return open_logs(takes_over); };
    Coordinator coordinator(trainer_, duties);
    std::fflush(stdout);
    FitResult result;
    try {
      result = fit(trainer_, *train_, test_.get(), coordinator, how_);
    } catch (const Error& e) {
      coordinator.tell([&](FitListener& l) { l.ended({"failed", trainer_.counters().step, e.what()}); });
      throw;
    }
    // If this process leaves, the run continues, and another process logs the end of the run.
    if (!result.changes && !result.left) coordinator.tell([&](FitListener& l) { l.ended(run_end(result)); });
    progress_.end_line();
    return end(result);
  }

 private:
  [[nodiscard]] bool here() const { return strategy_.rank() == 0; }
  // Returns whether this process joins a running job, and gets its state from the other processes.
  [[nodiscard]] bool joins() const { return strategy_.rank() < 0; }

  // Returns the options of the run for its log and checkpoints.
  [[nodiscard]] io::Json options_json() const {
    io::Json options = io::Json::object({{"batch", recipe_.batch},
                                         {"epochs", recipe_.epochs},
                                         {"weight-decay", recipe_.weight_decay},
                                         {"seed", static_cast<std::int64_t>(recipe_.seed)},
                                         {"run-dir", recipe_.run},
                                         {"train_images", images_.train.size()}});
    if (recipe_.logical_ranks > 0) options.set("logical-ranks", static_cast<std::int64_t>(recipe_.logical_ranks));
    return options;
  }

  // If the members may change, a signal stops only the process that receives it, and a request to stop the job arrives
  // over the channel. If each generation starts new processes, SIGINT stops the job.
  void listen_to_signals() {
    const ElasticMembership* const members = strategy_.members();
    if (members == nullptr) {
      how_.stop_requested = StopSignals::stop_requested;
    } else if (members->restarts_processes()) {
      const auto stops = [] { return StopSignals::signal_number() == SIGINT; };
      how_.stop_requested = stops;
      how_.leave_requested = [stops] { return StopSignals::stop_requested() && !stops(); };
    } else {
      how_.leave_requested = StopSignals::stop_requested;
    }
  }

  void begin() {
    trainer_.attach();
    if (here() && recipe_.progress)
      std::printf("tutti %s: backend %s (%s), %d threads, strategy %s, %d %s\n", version, backend_.name().c_str(),
                  backend_.description().c_str(), backend_.threads(), strategy_.name().c_str(), strategy_.size(),
                  strategy_.size() == 1 ? "rank" : "ranks");
    if (recipe_.prepare) recipe_.prepare(trainer_);
    make_sources();
    if (joins()) return;
    resume();
    prepare_device();
    if (strategy_.size() > 1 || strategy_.owns_weights()) trainer_.synchronise();
  }

  // Ranks share the choices of kernels that devices have made before synchronise(). So the plans of the first steps and
  // evaluations are made here.
  void prepare_device() {
    if (strategy_.size() == 1 || !strategy_.reads_device_memory() || recipe_.logical_ranks > 0) return;
    const auto share_of = [this](const BatchSource& s) {
      return part_of(std::min(recipe_.batch, s.size()), strategy_.rank(), strategy_.size()).count;
    };
    const std::int64_t rows = recipe_.batch_per_worker > 0 ? recipe_.batch_per_worker : share_of(*train_);
    if (rows > 0) (void)trainer_.prepare(rows, test_ ? share_of(*test_) : 0);
  }

  void make_sources() {
    const auto source = [&](const AnyDataset& d, bool training) {
      // Rank 0 evaluates alone if workers do not wait for each other. A process that joins learns its share later.
      const bool alone = !training && strategy_.owns_weights();
      LoaderOptions l;
      l.placement.global_batch = recipe_.batch;
      l.placement.rank = alone ? 0 : std::max(strategy_.rank(), 0);
      l.placement.world = alone ? 1 : joins() ? std::max(strategy_.members()->most_members(), 1) : strategy_.size();
      l.placement.logical_ranks = recipe_.logical_ranks;
      l.seed = recipe_.seed;
      l.shuffle = training;
      l.one_pass = !training;
      l.threads = recipe_.threads;
      l.skip_bad_records = recipe_.skip_damaged;
      if (training) l.mix = recipe_.mix;
      l.bad_record_hint = "fit .skip_damaged = true continues without the image";
      return make_source(backend_, d, std::move(l));
    };
    train_ = source(images_.train, true);
    if (images_.test) test_ = source(*images_.test, false);
  }

  // Continues from the newest complete checkpoint, which rank 0 reads.
  void resume() {
    if (!checkpoints_) return;
    std::optional<io::LoadedCheckpoint> found;
    run_with_heartbeat(strategy_, "reading a checkpoint", [&] {
      if (!here()) return;
      require_own_folder(recipe_.run, "fit .run");
      io::make_directories(recipe_.run);
      lock_.require(recipe_.run, "fit .run");
      std::vector<std::string> complaints;
      found = io::CheckpointStore(recipe_.run).load_newest_valid(&complaints);
      for (const std::string& c : complaints) progress_.warning(c);
    });
    if (!found) return;
    try {
      checkpoints_->resume_from(trainer_, *found);
    } catch (const DataError& e) {
      fail<UsageError>("fit .run " + recipe_.run, "the folder of a run with this net and this optimizer",
                       "the folder of another run", std::string("give this run a separate folder; ") + e.what());
    }
    resumed_from_ = found->path().string();
    if (recipe_.progress) std::printf("this run continues from %s\n", resumed_from_.c_str());
  }

  // Returns the logs of the rank that writes them. takes_over: another rank has begun the logs.
  [[nodiscard]] std::vector<std::unique_ptr<FitListener>> open_logs(bool takes_over) {
    const io::Path folder = recipe_.run;
    const auto complain = [this](const std::string& w) { progress_.warning(w); };
    io::make_directories(folder);
    (void)lock_.take(folder, {});  // the lost rank may still hold the lock
    // The lost rank may not have written any line.
    const bool begun = takes_over && !io::AppendFile(folder / "log.jsonl", io::AppendFile::Mode::continue_file).empty();
    const Counters& at = trainer_.counters();
    std::vector<std::unique_ptr<FitListener>> logs;
    auto log = std::make_unique<RunLog>(folder, 5, complain, at.generation);
    if (const auto best = checkpoints_->best_step()) log->continue_best(*best);
    if (!begun) {
      io::Json facts = io::Json::object({{"version", version},
                                         {"backend", backend_.name()},
                                         {"description", backend_.description()},
                                         {"threads", backend_.threads()},
                                         {"world", strategy_.size()},
                                         {"train_images", images_.train.size()},
                                         {"test_images", images_.test ? images_.test->size() : 0},
                                         {"options", options_json()}});
      if (recipe_.logical_ranks > 0) facts.set("logical_ranks", recipe_.logical_ranks);
      log->start(facts);
      if (!resumed_from_.empty()) log->resume(at.step, at.epoch + 1, resumed_from_);
    }
    logs.push_back(std::move(log));
    if (images_.test) logs.push_back(std::make_unique<EvaluationFile>(folder, *images_.test, complain));
    logs.push_back(std::make_unique<TensorboardLog>(folder, complain));
    return logs;
  }

  // Returns the end of the run for the log. If the state was not saved, the run has failed, as its exit code says.
  [[nodiscard]] RunEnd run_end(const FitResult& r) const {
    if (checkpoints_ && (r.lost || (r.interrupted && !r.saved)))
      return {"failed", r.counters.step, "the last checkpoint could not be written"};
    return {r.interrupted ? "interrupted" : "finished", r.counters.step};
  }

  // Ends this process's part of the run with RunEnded. says: also prints the text.
  [[noreturn]] void end_early(const std::string& text, int code, bool says) const {
    if (says && recipe_.progress) std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    throw RunEnded(text, code);
  }
  [[noreturn]] void leave() const {
    end_early("left the job after step " + std::to_string(result_step()) + "; the other ranks continue", 0, true);
  }
  [[nodiscard]] std::int64_t result_step() const { return trainer_.committed().counters().step; }

  EpochReport end(const FitResult& r) {
    const std::string step = std::to_string(r.counters.step);
    const int not_saved = static_cast<int>(ExitCode::data);
    if (r.left) leave();
    if (r.changes)
      end_early("the members change after step " + step + (r.saved ? ", state saved" : ", state NOT SAVED"),
                static_cast<int>(ExitCode::restart), here());
    if (r.interrupted) {
      // Another rank may have received the signal.
      const int code =
          StopSignals::stop_requested() ? StopSignals::exit_code() : static_cast<int>(ExitCode::interrupted);
      if (!checkpoints_) end_early("interrupted after step " + step, code, here());
      // Only rank 0 knows whether the state was saved.
      const bool lost = here() && !r.saved;
      end_early("interrupted after step " + step + (lost ? ", state NOT SAVED" : ", state saved") +
                    "; run the same command again to continue from " + recipe_.run,
                lost ? not_saved : code, here());
    }
    if (here() && recipe_.progress)
      std::printf("done: %s steps%s%s\n", step.c_str(), r.lost ? ", state NOT SAVED" : "",
                  checkpoints_ ? ("; files in " + recipe_.run).c_str() : "");
    std::fflush(stdout);
    if (r.lost && here()) throw RunEnded("the last checkpoint could not be written", not_saved);
    return r.last ? *r.last : finished_before(r);
  }

  // Returns the report of a run that had no step left.
  [[nodiscard]] EpochReport finished_before(const FitResult& r) {
    EpochReport report;
    report.epoch = r.counters.epoch;
    report.epochs = recipe_.epochs;
    report.step = r.counters.step;
    report.global_batch = recipe_.batch;
    if (test_ != nullptr && (here() || !strategy_.owns_weights()))
      report.test = evaluate(trainer_, *test_, recipe_.metric);
    return report;
  }

  Backend& backend_;
  AnyStrategy& strategy_;
  const FitRecipe& recipe_;
  const FitImages& images_;
  FitOptions how_;
  Trainer trainer_;
  ProgressDisplay progress_;
  std::unique_ptr<BatchSource> train_, test_;
  std::optional<Checkpoints> checkpoints_;
  RunFolderLock lock_;
  std::string resumed_from_;  // empty: the run begins anew
};

}  // namespace tutti::detail
