// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/images.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/detail/files/data_facts.hpp>
#include <tutti/train/fit_recipe.hpp>
#include <tutti/train/trainer_options.hpp>

// Checks the arguments of fit(job, net, recipe), and converts the recipe, before the processes connect.
namespace tutti::detail {

inline void check_recipe(const FitRecipe& r) {
  const auto at_least = [](const char* what, std::int64_t least, std::int64_t value) {
    if (value < least)
      fail<UsageError>(std::string("fit .") + what, std::to_string(least) + " or more", std::to_string(value));
  };
  at_least("batch", 1, r.batch);
  at_least("epochs", 1, r.epochs);
  at_least("keep", 1, r.keep);
  at_least("threads", 0, r.threads);
  at_least("evaluate_every", 0, r.evaluate_every);
  at_least("save_every", 0, r.save_every);
  at_least("max_steps", 0, r.max_steps);
  at_least("batch_per_worker", 0, r.batch_per_worker);
  at_least("ramp_steps", 0, r.ramp_steps);
  at_least("micro_batch", 0, r.micro_batch);
  at_least("logical_ranks", 0, r.logical_ranks);
  if (r.logical_ranks > r.batch)
    fail<UsageError>("fit .logical_ranks", "at most .batch, " + std::to_string(r.batch),
                     std::to_string(r.logical_ranks), "each logical rank needs an image of a step");
  if (r.logical_ranks > 0 && r.batch_per_worker > 0)
    fail<UsageError>("fit .batch_per_worker",
                     "0 with .logical_ranks, because the batch must not follow the number of workers",
                     std::to_string(r.batch_per_worker), "leave out one of the two");
  if (r.shares == Shares::measured && r.logical_ranks == 0)
    fail<UsageError>("fit .shares", "Shares::equal or Shares::rows without .logical_ranks", "Shares::measured",
                     "set .logical_ranks, for example to 8 times the number of processes, so that the results do not "
                     "depend on the shares; Shares::rows needs none");
  if (r.shares == Shares::rows && r.logical_ranks > 0)
    fail<UsageError>("fit .shares", "Shares::equal or Shares::measured with .logical_ranks", "Shares::rows",
                     "Shares::measured keeps the bits");
  if (r.shares == Shares::rows && r.batch_per_worker > 0)
    fail<UsageError>("fit .shares", "Shares::equal with .batch_per_worker", "Shares::rows",
                     "leave out .shares or .batch_per_worker");
}

// Returns the net that the recipe trains: its labels are mixed if the recipe mixes images.
[[nodiscard]] inline Graph graph_of(const Graph& net, const FitRecipe& r) {
  Graph g = net;
  if (r.mix && g.labels != no_value) g[g.labels].shape = Shape{1, 3};
  return g;
}

// Throws ShapeError or UsageError if the images have other extents or more classes than the net.
inline void check_net(const Graph& net, const Schema& images) {
  if (net.metrics == no_value)
    fail<UsageError>("fit net", "a net that ends with a classifier", "a net without one",
                     "add Model::classifier() or Builder::softmax_cross_entropy() at its end");
  const Shape takes = net[net.images].shape, given{1, images.channels, images.height, images.width};
  if (takes != given)
    fail<ShapeError>("fit net", "images of the net's input shape " + to_string(takes),
                     to_string(given) + " of " + images.name, "Model net(train.schema()) has the shape of the images");
  const std::int64_t classes = net[net.logits].shape[1];
  if (classes < images.classes)
    fail<UsageError>("fit net",
                     "an output for each of the " + std::to_string(images.classes) + " classes of " + images.name,
                     std::to_string(classes));
}

// The training and test images of a run.
struct FitImages {
  AnyDataset train;
  std::optional<AnyDataset> test;
};

[[nodiscard]] inline FitImages images_of(const FitRecipe& r, TrainingJob& job) {
  const Schema& s = r.train.schema();
  if (r.train.size() == 0) fail<DataError>(s.name, "images to train on", "no images");
  if (s.classes < 2)
    fail<DataError>(s.name, "two classes or more", s.class_names.empty() ? "one" : "one, " + s.class_names.front(),
                    "put the images of each class into a folder, such as train/cat and train/dog");
  const auto decoders = [&job]() -> const ImageDecoders& { return job.decoders(); };
  FitImages images{r.train.dataset(Split::train, decoders), std::nullopt};
  if (!r.test) return images;
  const Schema& t = r.test->schema();
  if (r.test->size() == 0) fail<DataError>(t.name, "images to test on", "no images");
  if (t.channels != s.channels || t.height != s.height || t.width != s.width)
    fail<UsageError>(t.name, "images " + to_string(Shape{s.channels, s.height, s.width}) + ", as in " + s.name,
                     to_string(Shape{t.channels, t.height, t.width}));
  if (!s.class_names.empty() && !t.class_names.empty())
    images.test = r.test->with_classes(s.class_names).dataset(Split::test, decoders);
  else if (t.classes <= s.classes)
    images.test = r.test->dataset(Split::test, decoders);
  else
    fail<DataError>(t.name, "the " + std::to_string(s.classes) + " classes of the training images",
                    std::to_string(t.classes));
  return images;
}

// Returns a description of a schedule for a comparison: its values at nine of the steps that it does.
[[nodiscard]] inline std::string text_of(const Schedule& schedule, std::int64_t steps_per_epoch, const FitRecipe& r) {
  std::string text;
  const std::int64_t total = steps_per_epoch * r.epochs;
  const std::int64_t last = std::max<std::int64_t>(r.max_steps > 0 ? std::min(total, r.max_steps) : total, 1) - 1;
  for (std::int64_t i = 0; i <= 8; ++i) {
    // Six digits: another version of the mathematical library may round others.
    char value[32];
    std::snprintf(value, sizeof value, i > 0 ? ", %.6g" : "%.6g",
                  schedule(SchedulePoint{i * last / 8, steps_per_epoch, total, r.batch, 1}));
    text += value;
  }
  return text;
}

// Returns the facts that must be the same on all processes. The trainer compares those of the net and the optimizer.
[[nodiscard]] inline JobFacts facts_of(const FitRecipe& r, const FitImages& images) {
  JobFacts f;
  const auto add = [&f](const char* name, std::int64_t value) { f.add(name, value); };
  add("fit .batch", r.batch);
  add("fit .epochs", r.epochs);
  add("fit .max_steps", r.max_steps);
  add("fit .evaluate_every", r.evaluate_every);
  add("fit .save_every", r.save_every);
  add("fit .batch_per_worker", r.batch_per_worker);
  add("fit .ramp_steps", r.ramp_steps);
  add("fit .logical_ranks", r.logical_ranks);
  add("fit .shares", static_cast<std::int64_t>(r.shares));
  f.add("fit .run", r.run);
  const std::int64_t epoch = std::max<std::int64_t>((images.train.size() + r.batch - 1) / r.batch, 1);
  f.add("fit .schedule", text_of(r.schedule, epoch, r));
  if (r.momentum) f.add("fit .momentum", text_of(*r.momentum, epoch, r));
  add_data(f, "training images", images.train, r.skip_damaged);
  if (images.test) add_data(f, "test images", *images.test, r.skip_damaged);
  return f;
}

[[nodiscard]] inline TrainerOptions trainer_options_of(const FitRecipe& r, JobFacts facts) {
  TrainerOptions t;
  t.compute = r.precision;
  t.optimizer = r.optimizer;
  t.weight_decay = r.weight_decay;
  t.clip_norm = r.clip_norm;
  t.ema_decay = r.average;
  t.ema = r.average_schedule;
  t.sam = r.sam;
  t.seed = r.seed;
  t.micro_batch = r.micro_batch;
  t.logical_ranks = r.logical_ranks;
  t.allow_other_bits = r.allow_other_bits;
  t.must_agree = std::move(facts);
  return t;
}

[[nodiscard]] inline FitOptions fit_options_of(const FitRecipe& r) {
  FitOptions how;
  how.epochs = r.epochs;
  how.global_batch = r.batch;
  how.schedule = r.schedule;
  how.momentum = r.momentum;
  how.evaluate_every = r.evaluate_every;
  how.save_every = r.save_every;
  how.save_last = true;
  how.max_steps = r.max_steps;
  how.shares = r.shares;
  how.batch_per_worker = r.batch_per_worker;
  how.ramp_steps = r.ramp_steps;
  how.metric = r.metric;
  how.mistakes = !r.run.empty();
  how.after_epoch = r.after_epoch;
  return how;
}

}  // namespace tutti::detail
