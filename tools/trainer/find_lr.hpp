// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include <tutti/data/batch_source.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/options.hpp"

// --find-lr: steps with a rate that rises from one to the next, until the loss grows (Smith 2017, "Cyclical learning
// rates for training neural networks").
namespace tutti::trainer {

struct RatePoint {
  double lr = 0, loss = 0;
  double smooth = 0;  // mean of the losses so far, of which the last ones count most
};

namespace detail {

// Returns the rate at which the smooth loss falls fastest, before its least value; 0 if it never falls.
double suggested_rate(const std::vector<RatePoint>& points);

}  // namespace detail

// Runs the steps on all ranks. Rank 0 prints the curve and writes it to find_lr.json in the run's folder. The trainer's
// weights are of no use afterwards; no checkpoint is written. Returns the exit code.
int find_rate(Trainer& trainer, BatchSource& train, const RunOptions& o);

}  // namespace tutti::trainer
