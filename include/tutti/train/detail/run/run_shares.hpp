// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/detail/run/run_context.hpp>
#include <tutti/train/detail/run/share_controller.hpp>
#include <tutti/train/report.hpp>

namespace tutti::detail {

// The shares of logical ranks, or of rows, in a run: measures this process, exchanges the times, and changes the shares
// of all processes after the same step. Has no effect with Shares::equal.
class RunShares {
 public:
  // Throws UsageError if the run cannot have the shares of its options.
  TUTTI_CORE_FUNCTION explicit RunShares(RunContext& run);

  // Begins the first generation with equal shares.
  TUTTI_CORE_FUNCTION void begin();
  // Makes the shares of the trainer equal again after the run.
  TUTTI_CORE_FUNCTION void end();
  // Begins a generation after a change of members; all members call it. Those that stay have the times that they knew.
  // Returns the bounds for the sources (Placement::bounds), which the trainer has too; call restart() when they have
  // started.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::vector<std::int32_t> begin_generation();

  TUTTI_CORE_FUNCTION void restart();

  // Takes the time of a step. Call it before the next batch.
  TUTTI_CORE_FUNCTION void step(const Batch& batch);
  // Exchanges the times of all ranks and changes the shares if it is time to. All ranks call it after the common work
  // of a step.
  TUTTI_CORE_FUNCTION void follow();

  // The rank that had each logical rank or row in the last step, [logical ranks or rows]; empty with Shares::equal.
  // These are common facts of the run.
  [[nodiscard]] std::vector<std::int64_t>& owners() noexcept { return owners_; }
  // Returns the bounds of the last step for so many processes.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::vector<std::int32_t> bounds_of_step(int world) const;

 private:
  // Returns the logical ranks, or the rows of a full step.
  [[nodiscard]] static int units_of(const RunContext& run) {
    return run.options.shares == Shares::rows ? static_cast<int>(run.options.global_batch)
                                              : run.trainer.options().logical_ranks;
  }
  [[nodiscard]] bool by_rows() const { return run_.options.shares == Shares::rows; }
  TUTTI_CORE_FUNCTION void require_shares() const;
  [[nodiscard]] bool active() const { return measured_ && run_.strategy.size() > 1; }
  // Returns the times of all ranks.
  [[nodiscard]] std::vector<std::int64_t> exchange();
  [[nodiscard]] std::string host_of(int rank);
  void remember_owners();
  void change();
  void report(const ShareController::Decision& d);

  RunContext& run_;
  bool measured_;
  ShareController controller_;
  SpeedWindow window_;
  std::vector<std::int64_t> owners_;
  double waited_ = 0;        // seconds for data before the current step
  bool unreported_ = false;  // the shares at the beginning of a generation
};

}  // namespace tutti::detail

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/run/run_shares_definitions.hpp>
#endif
