// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/evaluation/evaluate.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/fit/sources.hpp>
#include <tutti/train/trainer.hpp>

// Training and evaluation with a trainer. Options and results of fit() are in detail/fit/fit_options.hpp.
namespace tutti {

// The training loop: from the trainer's counters to the end of the last epoch, or, if steps run on into the next epoch
// (EpochEnd), to the last full step of all epochs. Evaluates on `test`, which may be null. Reports, commits and saves
// through the coordinator. If the members may change (ElasticMembership), each generation continues from the state of
// the previous one: the sources start again with the shares of the present members, and a step that a lost member broke
// is repeated with all work after it. A callback may call Trainer::reform() and start the sources again for the present
// members. If servers own the weights (OwnsWeights), steps are counted over all workers, each worker reports its own
// values, and only rank 0 evaluates, on all of `test`, so the placement of its source must be the whole set.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Coordinator& coordinator,
                                  const FitOptions& o);
// The form for most programs. Rank 0 saves, and the options contain the listeners.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource& test, Checkpoints& checkpoints,
                                  const FitOptions& o);
// The same without checkpoints.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, const FitOptions& o);
// The same with a function that makes the sources for each number of ranks.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, const MakeSources& make, Coordinator& coordinator,
                                  const FitOptions& o);

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/fit/fit_definitions.hpp>
#endif
