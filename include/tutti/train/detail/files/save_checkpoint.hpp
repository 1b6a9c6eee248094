// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/run_with_heartbeat.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::detail {

struct SavedCheckpoint {
  bool saved = false;   // this rank has saved
  bool failed = false;  // this rank could not save
  bool best = false;    // the metric of the state is the best so far
};

// Commits the state, and saves it on the ranks that save. All ranks call it. metric: the metric of the state, if it was
// evaluated. If the disk is full, warns, and the run continues.
inline SavedCheckpoint save_checkpoint(Trainer& trainer, Coordinator& coordinator, std::optional<double> metric) {
  SavedCheckpoint done;
  Checkpoints* const checkpoints = coordinator.checkpoints();
  if (checkpoints == nullptr && trainer.strategy().owns_weights()) return done;
  const Span span(Lane::checkpoint, "checkpoint", {}, trainer.counters().step);
  trainer.commit();
  try {
    std::string path;
    std::vector<std::string> complaints;
    const auto write = [&] {
      const Span writing(Lane::checkpoint, "write");
      path = checkpoints->save(trainer);
      if (metric)
        done.best = checkpoints->mark_if_best(trainer.counters().step, *metric,
                                              [&](const std::string& c) { complaints.push_back(c); });
    };
    run_with_heartbeat(trainer.strategy(), "saving a checkpoint",
                       checkpoints != nullptr ? std::function<void()>(write) : nullptr);
    if (path.empty()) return done;
    done.saved = true;
    coordinator.tell([&](FitListener& l) { l.saved(path); });
    for (const auto& c : complaints) coordinator.warn(c);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& e) {
    // The earlier checkpoint is unchanged. It is better to continue than to lose the run because of a full disk.
    done.failed = true;
    coordinator.warn("checkpoint not written: " + std::string(e.what()));
  }
  return done;
}

}  // namespace tutti::detail
