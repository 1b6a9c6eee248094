// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/models/whitening.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/make_source.hpp>

#include <tutti/interchange/model_metadata.hpp>

#include "tools/trainer/options.hpp"

namespace tutti {
class Builder;
namespace models {
struct ResnetOptions;
}
}  // namespace tutti

// Converts checked options to the library's options and objects.
namespace tutti::trainer {

inline std::int64_t warmup_steps(const RunOptions& o, std::int64_t steps_per_epoch) {
  return std::llround(o.warmup_epochs.value() * static_cast<double>(steps_per_epoch));
}

Schedule make_schedule(const RunOptions& o, std::int64_t steps_per_epoch);

// steps: of the run, for --muon-sparse-normalize.
AnyOptimizer make_optimizer(const RunOptions& o, std::int64_t steps = 0);

// Returns the steps of a run; `images`: number of training images.
[[nodiscard]] std::int64_t steps_of_run(const RunOptions& o, std::int64_t images);

// Returns when the average of the weights is updated. `images`: number of training images.
EmaSchedule make_ema_schedule(const RunOptions& o, std::int64_t images);

// Returns the largest number of rows that a process computes at once in a step. With shares of rows a fast process may
// have twice the rows of equal shares in one micro-batch, except with --accumulate, which asks for several.
[[nodiscard]] inline std::int64_t micro_batch_of(const RunOptions& o) {
  return o.shares == "rows" && o.accumulate == 1 ? 2 * o.batch_size : o.batch_size;
}

// `images`: as for make_ema_schedule(); 0 without training.
TrainerOptions trainer_options(const RunOptions& o, std::int64_t images = 0);

// Returns how the last step of an epoch is handled. train_imagenet counts steps as the TensorFlow and Horovod trainer
// does: images * epochs / batch, rounded down.
[[nodiscard]] inline EpochEnd epoch_end_of(const RunOptions& o) {
  return o.traits().as_horovod || o.epoch_end == "run-on" ? EpochEnd::run_on : EpochEnd::short_step;
}

// Returns a hint that says how to continue without a damaged image, or an empty text for programs that keep images in
// memory.
std::string bad_record_hint(const RunOptions& o);

// Returns how a rank reads its share of the images.
LoaderOptions loader_options(const RunOptions& o, bool training, int rank, int world);

[[nodiscard]] inline OnDevice on_device_of(const RunOptions& o) {
  return o.data_on_device == "yes" ? OnDevice::yes : o.data_on_device == "no" ? OnDevice::no : OnDevice::automatic;
}

// images: number of training images.
FitOptions fit_options(const RunOptions& o, std::int64_t images);

namespace detail {

// Returns the weights of a layer that whitens 2x2 patches, computed from the first images of a training set. Of the
// augmentations it applies only those that keep pixel values, without shifts and mirroring.
std::vector<float> whitening_weights(const RunOptions& o, const AnyDataset& train, const Schema& schema,
                                     std::span<const float> inv_std);

}  // namespace detail

// Returns the net for images of this schema. train: training images, from which the weights of a whitening layer are
// computed; without them the weights are random.
Graph make_model(const RunOptions& o, const Schema& schema, const AnyDataset* train = nullptr);

// Records a net, with its loss, from the options of a ResNet.
using RecordResnet = std::function<void(Builder&, ValueId images, const models::ResnetOptions&)>;
// The same, with another net in place of the ResNet that --model names: a comparison uses a small one with the options
// of a recipe.
Graph make_model(const RunOptions& o, const Schema& schema, const AnyDataset* train, const RecordResnet& resnet);

// Returns the description that a checkpoint's model.safetensors contains.
interchange::Metadata model_metadata(const RunOptions& o, const Schema& seen, const Graph& model,
                                     const interchange::ImagePreparation& image);

}  // namespace tutti::trainer
