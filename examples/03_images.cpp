// SPDX-License-Identifier: MIT
// Trains a net of your own on a folder of your own images: 03_images FOLDER [RUN_FOLDER [EPOCHS]].
// FOLDER/train/<class>/ and FOLDER/validation/<class>/ contain JPEG or PNG files of any size.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/backends/stb/stb.hpp>
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#include <tutti/data/images/encoded_images.hpp>
#include <tutti/datasets/imagenet/open.hpp>
#include <tutti/train/evaluation_file.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t side = 64;  // height and width of the net's input, in pixels

// [net]
// Seven convolutions; each stage halves the image and doubles the channels.
void own_net(Builder& b, const Schema& images) {
  ValueId x = b.normalize(images.mean, {1 / images.stddev[0], 1 / images.stddev[1], 1 / images.stddev[2]});
  x = nn::conv_bn(b, "stem", "stem_bn", x, {.out = 16}, {.relu = true});
  for (const auto& [name, channels] : {std::pair<std::string, std::int64_t>{"1", 32}, {"2", 64}, {"3", 128}}) {
    x = nn::conv_bn(b, "down" + name, "down_bn" + name, x, {.out = channels, .stride = 2}, {.relu = true});
    x = nn::conv_bn(b, "conv" + name, "bn" + name, x, {.out = channels}, {.relu = true, .residual = x});
  }
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, images.classes, {Init::xavier_normal, 1}));
}
// [/net]

// [images]
// Returns the images of a split, which are decoded as they are read. Training images are cropped at random and
// mirrored.
EncodedImages images_of(const std::string& folder, Split split) {
  ImageAugment augment = ImageAugment::torchvision(split);
  augment.height = augment.width = side;
  augment.short_side = side * 9 / 8;  // for test images, which are cropped at the centre
  augment.least_area = 0.35;          // for training images
  return {"own images", open_imagenet(folder, split).records,
          ImageDecoders({std::make_shared<TurbojpegDecoder>(), std::make_shared<StbDecoder>()}), augment};
}
// [/images]

// [train]
void train(const std::string& folder, const std::string& run_folder, std::int64_t epochs) {
  const EncodedImages images = images_of(folder, Split::train), held_out = images_of(folder, Split::test);
  const auto backend = make_backend();
  auto strategy = make_strategy("auto", {.backend = backend.get()});

  Builder net(3, side, side);
  own_net(net, images.schema());
  Trainer trainer(*backend, strategy, net.graph(), {.optimizer = Sgd{0.9, true}, .weight_decay = 5e-4});

  const std::int64_t batch = std::min<std::int64_t>(64, images.size());
  const Placement all{.global_batch = batch, .rank = strategy.rank(), .world = strategy.size()};
  // With skip_bad_records an image that cannot be read is skipped and reported once. Without it, it ends the training.
  Loader training(images, {.placement = all, .seed = 1, .threads = 2, .skip_bad_records = true});
  Loader test(held_out, {.placement = all, .shuffle = false, .one_pass = true, .skip_bad_records = true});

  Checkpoints checkpoints(run_folder);
  checkpoints.resume(trainer);  // continues if the folder has a run
  ProgressDisplay progress;
  const auto complain = [](const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); };
  std::filesystem::create_directories(run_folder);
  RunLog log(run_folder, 5, complain);  // what tutti-report shows
  EvaluationFile evaluation(run_folder, held_out, complain);
  Coordinator coordinator(trainer, {.checkpoints = &checkpoints, .listeners = {&progress, &log, &evaluation}});

  FitOptions how{.epochs = epochs, .global_batch = batch, .schedule = schedule::Cosine(0.1)};
  how.mistakes = true;
  how.record_skipped = [&](const std::string& what) { progress.warning("skipped: " + what); };
  const FitResult result = fit(trainer, training, &test, coordinator, how);
  if (strategy.rank() == 0 && result.last && result.last->test)
    std::printf("test top-1 %.1f %%; the weights are in %s/checkpoints\n", 100 * result.last->test->top1,
                run_folder.c_str());
}
// [/train]

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) fail<UsageError>("command line", "03_images FOLDER [RUN_FOLDER [EPOCHS]]", "no folder");
  train(argv[1], argc > 2 ? argv[2] : "runs/03_images", argc > 3 ? std::atoi(argv[3]) : 20);
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
