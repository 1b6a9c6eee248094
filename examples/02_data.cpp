// SPDX-License-Identifier: MIT
// ctest:
// Defines a data set, and trains a net that learns in which quarter of the image a dot is: 02_data [RUN_FOLDER].
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

// [dataset]
// size(), schema() and read() make a data set. read() is const and may be called by several threads at once. It takes
// random numbers only from `rng`, so a sample is the same for all threads and ranks.
class Dots {
 public:
  Dots() {
    schema_.name = "dots";
    schema_.channels = 1;
    schema_.height = schema_.width = 8;
    schema_.classes = 4;  // the quarters of the image
    schema_.mean = {32};
    schema_.stddev = {64};
    schema_.class_names = {"top left", "top right", "bottom left", "bottom right"};
  }
  std::int64_t size() const { return 512; }
  const Schema& schema() const { return schema_; }
  void read(std::int64_t i, Rng& rng, Sample sample) const {
    sample.label = static_cast<std::int32_t>(i % 4);
    std::fill(sample.image.begin(), sample.image.end(), std::uint8_t{0});
    const auto y = rng.below(4) + (sample.label / 2) * 4, x = rng.below(4) + (sample.label % 2) * 4;
    sample.image[y * 8 + x] = 255;  // [height, width, channels]
  }

 private:
  Schema schema_;
};
static_assert(Dataset<Dots>);
// [/dataset]

int main(int argc, char** argv) try {
  const std::string run_folder = argc > 1 ? argv[1] : "runs/02_data";
  // [train]
  const Dots dots;
  Builder b(1, 8, 8);
  ValueId x = b.normalize(dots.schema().mean, {1 / dots.schema().stddev[0]});
  for (const auto& [name, channels] : {std::pair<std::string, std::int64_t>{"1", 8}, {"2", 16}, {"3", 32}})
    x = nn::conv_bn(b, "conv" + name, "bn" + name, x, {.out = channels, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::xavier_normal, 1}));

  Loader training(dots, {.placement = {.global_batch = 32}, .seed = 1, .threads = 2});
  Loader test(dots, {.placement = {.global_batch = 64}, .shuffle = false, .one_pass = true});
  const auto backend = make_backend();
  auto strategy = make_strategy("solo");
  Trainer trainer(*backend, strategy, b.graph(), {.optimizer = Sgd{0.9, true}});
  const FitOptions how{.epochs = 4, .global_batch = 32, .schedule = schedule::Constant{0.05}};
  Checkpoints checkpoints(run_folder);
  const double accuracy = fit(trainer, training, test, checkpoints, how).last->test->top1;
  // [/train]
  std::printf("accuracy %.2f\n", accuracy);
  return accuracy > 0.5 ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
