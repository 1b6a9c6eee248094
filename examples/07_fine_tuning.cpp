// SPDX-License-Identifier: MIT
// ctest: runs/07_fine_tuning
// Trains a net with a new classifier from the weights of a trained net, and evaluates it with a metric of your own:
// 07_fine_tuning RUN_FOLDER.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

namespace {

constexpr std::size_t classes = 4;

// [metric]
// Returns the share of images with their class among the two most probable ones.
double in_first_two(std::span<const float> logits, std::span<const std::int32_t> labels) {
  double hits = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.subspan(i * classes, classes);
    const float own = row[static_cast<std::size_t>(labels[i])];
    hits += std::count_if(row.begin(), row.end(), [own](float other) { return other > own; }) < 2 ? 1 : 0;
  }
  return hits;
}
// [/metric]

Graph net(bool extra_layer) {
  Builder b(3, 16, 16);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  if (extra_layer) x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 8}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, static_cast<std::int64_t>(classes), {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

void train(const std::string& run_folder) {
  const auto backend = make_backend();
  auto strategy = make_strategy("solo");
  Loader training(Synthetic({.size = 256, .height = 16, .width = 16, .classes = 4, .learnable = true}),
                  {.placement = {.global_batch = 32}, .seed = 1});
  Loader test(Synthetic({.size = 64, .height = 16, .width = 16, .classes = 4, .learnable = true, .first = 256}),
              {.placement = {.global_batch = 64}, .shuffle = false, .one_pass = true});
  FitOptions how{.epochs = 8, .global_batch = 32, .schedule = schedule::Constant{0.05}};

  Trainer small(*backend, strategy, net(false), {.optimizer = Sgd{0.9, true}});
  Checkpoints checkpoints(run_folder);
  fit(small, training, test, checkpoints, how);
  const std::string weights = checkpoints.save(small);

  Trainer trainer(*backend, strategy, net(true), {.optimizer = Sgd{0.9, true}});
  // [weights]
  LoadWeightsOptions new_layers;
  new_layers.may_be_missing = {"conv2.weight", "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"};
  const LoadedWeights found = load_weights(trainer, weights, new_layers);
  std::printf("%zu tensors; anew: %zu\n", found.loaded, found.skipped.size());
  // [/weights]
  how.metric = in_first_two;
  Checkpoints own(run_folder + "/tuned");
  const FitResult result = fit(trainer, training, test, own, how);
  std::printf("in the first two: %.1f %%\n", 100 * *result.last->test->metric);
  // [tensors]
  const Tensor<float> classifier = trainer.parameter("fc.weight");  // [classes, 8]
  Tensor<std::uint8_t> images(Shape{1, 16, 16, 3}, 128);            // rows, height, width, channels
  const Tensor<float> logits = trainer.predict(images);             // [rows, classes]
  save_tensors(run_folder + "/told.safetensors", {{"classifier", classifier}, {"logits", logits}});
  std::printf("the first logit of a grey image: %.2f\n", logits(0, 0));
  // [/tensors]
}

}  // namespace

int main(int argc, char** argv) try {
  train(argc > 1 ? argv[1] : "runs/07_fine_tuning");
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
