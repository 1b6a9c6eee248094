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
  bool saved = false;   // by this rank
  bool failed = false;  // saving failed
  bool best = false;    // the metric of the state is the best so far
};

// Commits the state; the rank with that duty saves it. All ranks call it. metric: of the state, if there is one. A full
// disk is reported and does not end the run.
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
    // The earlier checkpoint is unchanged. Losing the run because of a full disk would be worse than continuing.
    done.failed = true;
    coordinator.warn("checkpoint not written: " + std::string(e.what()));
  }
  return done;
}

}  // namespace tutti::detail
