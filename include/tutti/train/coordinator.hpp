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

// Tasks in addition to training, of the job's coordinator or of all ranks. All ranks have the same options.
struct CoordinatorOptions {
  Checkpoints* checkpoints = nullptr;     // null: the run saves no checkpoints
  std::vector<FitListener*> listeners{};  // called on the coordinator only; must outlive it
  // Makes further listeners, which open files, when this rank becomes the coordinator. They are destroyed when another
  // rank becomes the coordinator. takes_over: another rank has been the coordinator before.
  std::function<std::vector<std::unique_ptr<FitListener>>(bool takes_over)> open{};
  // Returns true if this rank also saves, in addition to the coordinator. All ranks call it together, after each change
  // of members.
  std::function<bool()> saves_too{};
  std::string audit{};  // folder in which each rank writes audit-rank<N>.txt; empty: no audit
};

// A step that failed on some ranks and was complete on other ranks. All ranks have taken the state after this step.
struct CompletedStep {
  Position began{};
  std::int64_t step = 0;
  int ranks = 1;  // the number of ranks that shared it
  std::int64_t global_batch = 0;
  const BatchSource* source = nullptr;  // the source of the step's samples
  double seconds = 0;                   // time since the step, for the report
  std::int64_t next_batch = 0;          // the global batch after the change, for the report
  std::vector<std::int32_t> bounds{};   // of the step's shares (Placement::bounds)
};

// The coordinator of a job is its rank 0: it prints the progress, writes the log, saves, and knows the best checkpoint.
// The rank is checked at each use, so another rank takes the tasks when the members change (Trainer::reform).
class Coordinator {
 public:
  TUTTI_CORE_FUNCTION explicit Coordinator(Trainer& trainer, CoordinatorOptions duties = {});
  TUTTI_CORE_FUNCTION ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Returns true if this rank is the coordinator now.
  [[nodiscard]] bool is_coordinator() const { return trainer_.strategy().rank() == 0; }

  // Begins or ends the tasks if the members have changed since the last call. All ranks call it, with the trainer in
  // the state from which they continue. fit() calls it when it begins and after each step and epoch. closed: if set,
  // the coordinator writes the samples of all ranks of that step to the audit, because some ranks may have ended before
  // they could write them.
  TUTTI_CORE_FUNCTION void on_membership_change(const CompletedStep* closed = nullptr);

  // Blocks until this process may write files that other processes read. Throws CommunicationError if the process was
  // removed from the job, or if it cannot find that out within the rank time-out.
  TUTTI_CORE_FUNCTION void require_lease() const;

  // Returns true if this rank has a listener.
  [[nodiscard]] bool listens() const { return is_coordinator() && !(duties_.listeners.empty() && opened_.empty()); }
  // Calls `what` for each listener of the coordinator. Has no effect on other ranks.
  TUTTI_CORE_FUNCTION void tell(FunctionRef<void(FitListener&)> what);
  // Passes a warning to the listeners. A rank that saves in addition to the coordinator writes it to standard error.
  TUTTI_CORE_FUNCTION void warn(const std::string& text);

  // Returns the latest generation of members that has used the run's folder or its audit (Counters::generation).
  [[nodiscard]] TUTTI_CORE_FUNCTION std::int64_t latest_generation() const;

  // Returns true if the run saves checkpoints.
  [[nodiscard]] bool saves() const { return duties_.checkpoints != nullptr; }
  // Returns the checkpoints that this rank writes, or null if it does not save.
  [[nodiscard]] Checkpoints* checkpoints() const {
    return is_coordinator() || saves_too_ ? duties_.checkpoints : nullptr;
  }

  // Writes the samples of this rank's part of a step to the audit.
  TUTTI_CORE_FUNCTION void audit(const Batch& batch, std::int64_t step);

 private:
  void open_audit(const Membership& now, const CompletedStep* closed);
  void complete_step(const CompletedStep& closed);
  void begin_generation(bool first);

  Trainer& trainer_;
  CoordinatorOptions duties_;
  std::optional<Membership> known_;
  std::vector<std::unique_ptr<FitListener>> opened_;
  bool serves_ = false;       // this rank is the coordinator, has read the existing state and opened its logs
  bool another_was_ = false;  // another rank was the coordinator before
  bool saves_too_ = false, audits_generations_ = false, begins_run_ = true, assigned_ = false;
  std::unique_ptr<AuditLog> audit_;
  int audit_number_ = 0;         // number in the name and the lines of the audit file: the rank, or a number that
                                 // belongs to no other worker
  std::int64_t audited_ = 0;     // the last step in the audit
  std::int64_t generation_ = 0;  // generation of the run
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/fit/coordinator_definitions.hpp>
#endif
