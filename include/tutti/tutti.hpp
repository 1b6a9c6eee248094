// SPDX-License-Identifier: MIT
#pragma once

// Everything that needs no backend but ReferenceBackend and no strategy but Solo. Backends and data sets are included
// by name: <tutti/backends/onednn/onednn.hpp>, <tutti/datasets/cifar10/cifar10.hpp>. <tutti/program.hpp> holds this and
// fit(job, net, ...).

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/dump.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/tensor/tensor.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/load_weights.hpp>
#include <tutti/train/tensor_files.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/version.hpp>

// What separate compilation compiles of headers that are not included above (core/separate.hpp).
#if defined(TUTTI_SOURCE_CORE)
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/cpu/weight_gradient.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/model.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit_job.hpp>
#endif
