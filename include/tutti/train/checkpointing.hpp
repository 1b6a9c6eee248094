// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// Assembles checkpoints: the trainer's committed tensors by name, its counters, the run's options. A checkpoint depends
// neither on the number of ranks nor on the backend. model.safetensors describes the net, the preparation of its images
// and the names of its classes, which are known from the trainer and its batches. That is enough for tutti-predict,
// tutti-export and interchange::open_model().
class Checkpoints {
 public:
  using Warn = std::function<void(const std::string&)>;

  // Checkpoints are in run_dir/checkpoints. Keeps the newest `keep` checkpoints and the best one.
  TUTTI_CORE_FUNCTION explicit Checkpoints(const std::string& run_dir, int keep = 2);
  // options: the options of the run, which each checkpoint stores in a readable form. metadata: additional entries for
  // model.safetensors. If it contains interchange::model_metadata(), that replaces the trainer's description, for
  // example to give another name or another preparation of images.
  TUTTI_CORE_FUNCTION Checkpoints(const std::string& run_dir, int keep, io::Json options,
                                  std::vector<std::pair<std::string, std::string>> metadata = {});
  TUTTI_CORE_FUNCTION ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Continues from the newest complete checkpoint. All ranks call it: rank 0 reads the checkpoint, and the other ranks
  // get the state from rank 0. Returns false if no checkpoint exists yet. Reports each bad checkpoint to `warn`;
  // default: standard error.
  TUTTI_CORE_FUNCTION bool resume(Trainer& trainer, const Warn& warn = {});

  // Writes the committed state and returns the checkpoint's folder. If it throws, earlier checkpoints are unchanged.
  TUTTI_CORE_FUNCTION std::string save(Trainer& trainer);

  // Returns true if the metric is better than those of all earlier checkpoints.
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_best(double metric) const;
  // Marks the checkpoint of `step` as the best one if its metric is better than all earlier ones.
  TUTTI_CORE_FUNCTION bool mark_if_best(std::int64_t step, double metric, const Warn& warn);

  // Returns the step of the best checkpoint, or no value if none is marked.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::optional<std::int64_t> best_step() const;

  // Reads the best metric so far from the folder. Call it if another rank has saved until now.
  TUTTI_CORE_FUNCTION void take_over();

  // For jobs with changing members. The rank that saves from now on calls it before its first checkpoint in this
  // generation. Checkpoints that earlier ranks wrote for steps after `step` do not count, even if they are written
  // later. generation: 0 for a run that starts again, without generations.
  TUTTI_CORE_FUNCTION void begin_generation(std::int64_t generation, std::int64_t step);
  // Returns the latest generation that has saved here, or 0.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::int64_t latest_generation() const;
  // f is called before each visible change in the folder. It throws if this process may no longer write.
  TUTTI_CORE_FUNCTION void set_require_lease(std::function<void()> f);

  // Loads the newest valid checkpoint into the trainer. Called on one rank; the other ranks get the state from it by
  // Trainer::synchronise(). Returns false if no checkpoint is valid. Reports each bad one to `warn`.
  TUTTI_CORE_FUNCTION bool resume_latest(Trainer& trainer, const Warn& warn);
  TUTTI_CORE_FUNCTION void resume_best(Trainer& trainer);
  TUTTI_CORE_FUNCTION void resume_from(Trainer& trainer, const std::string& path);
  TUTTI_CORE_FUNCTION void resume_from(Trainer& trainer, const io::LoadedCheckpoint& loaded);
  // Loads the weights, their average if the trainer has one, and the counters into the trainer, and resets the
  // optimizer. This is enough for an evaluation, whatever optimizer the run had.
  TUTTI_CORE_FUNCTION void load_weights(Trainer& trainer, const io::LoadedCheckpoint& loaded);

 private:
  struct Parts;  // checkpointing_definitions.hpp
  static void begin_restore(Trainer& trainer, const io::LoadedCheckpoint& loaded);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/files/checkpointing_definitions.hpp>
#endif
