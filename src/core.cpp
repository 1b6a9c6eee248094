// SPDX-License-Identifier: MIT
// What separate compilation compiles once a program: passes over graphs, the models, our own kernels, the executor,
// the trainer and the loop that trains. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_CORE
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/cpu/weight_gradient.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/tutti.hpp>
