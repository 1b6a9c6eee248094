// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/batch_source.hpp>
#include <tutti/io/checkpoint/checkpoint_load.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/task.hpp"

// Evaluations of a program: of checkpoints (--eval), and with several views of each image (--tta).
namespace tutti::trainer {

void print_evaluation(const char* what, const EvaluationReport& e, std::int64_t top_k);

void print_views(const ViewsReport& v, std::int64_t top_k);

// Evaluates several views of each image, with the averaged weights if the trainer has them.
ViewsReport evaluate_views_of(Trainer& trainer, BatchSource& test, const RunOptions& o);

// Evaluates, on all ranks, the checkpoint that the trainer has loaded. With --eval-interval it first evaluates every
// k-th older checkpoint, counted from the oldest.
void evaluate_checkpoints(Trainer& trainer, BatchSource& test, Checkpoints& checkpoints, const RunOptions& o,
                          const Task& task, const io::LoadedCheckpoint* newest, std::int64_t images);

}  // namespace tutti::trainer
