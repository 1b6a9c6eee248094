// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

namespace io {
class Json;              // io/json/json_value.hpp
class LoadedCheckpoint;  // io/checkpoint/checkpoint_load.hpp
}  // namespace io

// What a checkpoint is made of, put together: the trainer's committed tensors by name, its counters, the run's options.
// It depends neither on the number of ranks nor on the backend. model.safetensors says which net it is, how its images
// are made ready and what its classes are called, as the trainer and its batches tell: enough for tutti-predict,
// tutti-export and interchange::open_model().
class Checkpoints {
 public:
  using Warn = std::function<void(const std::string&)>;

  // In run_dir/checkpoints. The newest `keep` stay, and the best.
  TUTTI_CORE_FUNCTION explicit Checkpoints(const std::string& run_dir, int keep = 2);
  // options: of the run, to be read in each checkpoint.
  // metadata: further entries of model.safetensors. interchange::model_metadata() there takes the place of what the
  // trainer tells, for another name or another preparation of images.
  TUTTI_CORE_FUNCTION Checkpoints(const std::string& run_dir, int keep, io::Json options,
                                  std::vector<std::pair<std::string, std::string>> metadata = {});
  TUTTI_CORE_FUNCTION ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Goes on from the newest checkpoint that is whole, which rank 0 reads and the others take from it: all ranks call
  // it. False where there is none yet. Each bad one is named to `warn`, by default on the standard error.
  TUTTI_CORE_FUNCTION bool resume(Trainer& trainer, const Warn& warn = {});

  // Writes the committed state; returns the checkpoint's folder. Throws without touching earlier checkpoints.
  TUTTI_CORE_FUNCTION std::string save(Trainer& trainer);

  // Whether the metric beats those of all checkpoints before.
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_best(double metric) const;
  // Remembers the checkpoint of `step` as the best if its metric beats all before it.
  TUTTI_CORE_FUNCTION bool mark_if_best(std::int64_t step, double metric, const Warn& warn);

  // Learns the best metric so far from the folder, where another rank has saved until now.
  TUTTI_CORE_FUNCTION void take_over();

  // Where the members of the job change: said by the rank that saves from now on, before its first checkpoint in this
  // generation. What was written by earlier ones of steps behind `step`, or is written yet, does not count. generation
  // 0: there are none, in a run that begins anew.
  TUTTI_CORE_FUNCTION void begin_generation(std::int64_t generation, std::int64_t step);
  // The latest that has been here; 0: none.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::int64_t latest_generation() const;
  // Called before anything is seen to change in the folder; throws where this process may not write any more.
  TUTTI_CORE_FUNCTION void set_require_right(std::function<void()> f);

  // Of one rank, which the others take the state from by Trainer::synchronise(). Puts the newest valid checkpoint into
  // the trainer; false where there is none. Each bad one is named to `warn`.
  TUTTI_CORE_FUNCTION bool resume_latest(Trainer& trainer, const Warn& warn);
  TUTTI_CORE_FUNCTION void resume_best(Trainer& trainer);
  TUTTI_CORE_FUNCTION void resume_from(Trainer& trainer, const std::string& path);
  TUTTI_CORE_FUNCTION void resume_from(Trainer& trainer, const io::LoadedCheckpoint& loaded);
  // Puts the weights, their average if the trainer has one, and the counters into the trainer, and starts the optimizer
  // afresh: an evaluation needs no more, whatever the run's optimizer was.
  TUTTI_CORE_FUNCTION void load_weights(Trainer& trainer, const io::LoadedCheckpoint& loaded);

 private:
  struct Parts;  // checkpointing_definitions.hpp
  static void begin_restore(Trainer& trainer, const io::LoadedCheckpoint& loaded);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/checkpointing_definitions.hpp>
#endif
