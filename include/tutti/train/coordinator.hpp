// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

class AuditLog;  // data/audit.hpp

// What is done beside training, by the job's coordinator or by all ranks. Every rank holds the same.
struct CoordinatorOptions {
  Checkpoints* checkpoints = nullptr;     // that the coordinator saves; null: none
  std::vector<FitListener*> listeners{};  // told on the coordinator alone; they outlive it
  // Makes further listeners, which open files, when this rank becomes the coordinator; they are gone when it is so no
  // more. takes_over: another rank has been the coordinator before.
  std::function<std::vector<std::unique_ptr<FitListener>>(bool takes_over)> open{};
  // Whether this rank saves, too, beside the coordinator: asked whenever the members are others, of all ranks at once.
  std::function<bool()> saves_too{};
  std::string audit{};  // folder in which each rank writes its audit-rank<N>.txt; empty: none does
};

// A step that broke off for some of its ranks, and was whole for others, whose state all have taken over.
struct CompletedStep {
  Position began{};
  std::int64_t step = 0;
  int ranks = 1;  // that it was divided among
  std::int64_t global_batch = 0;
  const BatchSource* source = nullptr;  // of its samples
  double seconds = 0;                   // since then, for the report
  std::int64_t next_batch = 0;          // the global batch from now on, for the report
};

// The coordinator of a job is its rank 0: it shows the progress, writes the log, saves, and knows the best checkpoint.
// Which rank that is is asked each time, so the duties go to another when the members change (Trainer::reform).
class Coordinator {
 public:
  TUTTI_CORE_FUNCTION explicit Coordinator(Trainer& trainer, CoordinatorOptions duties = {});
  TUTTI_CORE_FUNCTION ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Whether this rank is the coordinator now.
  [[nodiscard]] bool is_coordinator() const { return trainer_.strategy().rank() == 0; }

  // Takes the duties over or lays them down, where the members are others than when it was called last. All ranks call
  // it, with the trainer where they go on from: fit() does, when it begins and after each step and epoch. closed: the
  // coordinator writes the samples of all its ranks into the audit, for some of these may be gone, and had not come to
  // it.
  TUTTI_CORE_FUNCTION void on_membership_change(const CompletedStep* closed = nullptr);

  // Blocks until this process may write what others read. Throws CommunicationError if it was given up, or if it cannot
  // learn within the rank time-out that it was not.
  TUTTI_CORE_FUNCTION void require_right() const;

  // Whether anybody hears what is told here.
  [[nodiscard]] bool listens() const { return is_coordinator() && !(duties_.listeners.empty() && opened_.empty()); }
  // Calls `what` for each listener of the coordinator; nothing elsewhere.
  TUTTI_CORE_FUNCTION void tell(FunctionRef<void(FitListener&)> what);
  // Tells a warning; a rank that saves beside the coordinator has the standard error for it.
  TUTTI_CORE_FUNCTION void warn(const std::string& text);

  // Of the members, that has been in the run's folder (Counters::generation).
  [[nodiscard]] std::int64_t latest_generation() const {
    return duties_.checkpoints != nullptr ? duties_.checkpoints->latest_generation() : 0;
  }

  // Whether the coordinator saves anything.
  [[nodiscard]] bool saves() const { return duties_.checkpoints != nullptr; }
  // What this rank saves with, null where it saves nothing.
  [[nodiscard]] Checkpoints* checkpoints() const {
    return is_coordinator() || saves_too_ ? duties_.checkpoints : nullptr;
  }

  // Writes down which samples this rank's part of a step had.
  TUTTI_CORE_FUNCTION void audit(const Batch& batch, std::int64_t step);

 private:
  void open_audit(const Membership& now, const CompletedStep* closed);
  void complete_step(const CompletedStep& closed);
  void begin_generation(bool first);

  Trainer& trainer_;
  CoordinatorOptions duties_;
  std::optional<Membership> known_;
  std::vector<std::unique_ptr<FitListener>> opened_;
  bool serves_ = false;       // as coordinator: has taken over what there was, and opened its logs
  bool another_was_ = false;  // coordinator before
  bool saves_too_ = false, audits_generations_ = false, begins_run_ = true, assigned_ = false;
  std::unique_ptr<AuditLog> audit_;
  int audit_number_ = 0;         // of its file and in its lines: the rank, or what no other worker ever has
  std::int64_t audited_ = 0;     // the last step
  std::int64_t generation_ = 0;  // of the run
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/coordinator_definitions.hpp>
#endif
