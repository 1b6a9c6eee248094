// SPDX-License-Identifier: MIT
#pragma once

// Learning-rate schedules: pure functions of the progress of a run, as values that compose.
#include <tutti/optim/schedule_compose.hpp>
#include <tutti/optim/schedule_decay.hpp>
#include <tutti/optim/schedule_one_cycle.hpp>
#include <tutti/optim/schedule_parse.hpp>
#include <tutti/optim/schedule_point.hpp>
#include <tutti/optim/schedule_steps.hpp>

namespace tutti {

using schedule::Constant;
using schedule::Cosine;
using schedule::CosineRestarts;
using schedule::LinearCosine;
using schedule::OneCycle;
using schedule::Poly;
using schedule::Warmup;

}  // namespace tutti
