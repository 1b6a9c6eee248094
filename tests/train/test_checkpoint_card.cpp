// SPDX-License-Identifier: MIT
// Tests the description that every checkpoint contains without any options: the graph, the preparation of images, and
// the names of the classes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/images/encoded_images.hpp>
#include <tutti/data/images/image_preparation.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/inference.hpp>
#include <tutti/interchange/image_preparation.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>

#include "fit_run.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

const std::vector<std::string> kinds{"sun", "moon", "star & comet", "planet"};

// Returns eight images of 12x10, two of each of the four classes.
MemoryDataset stored(std::vector<std::string> names = kinds) {
  Schema s;
  s.name = "sky";
  s.channels = 3;
  s.height = 12;
  s.width = 10;
  s.classes = 4;
  s.mean = {128, 128, 128};
  s.stddev = {64, 64, 64};
  s.class_names = std::move(names);
  std::vector<std::uint8_t> pixels(8 * 12 * 10 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7);
  return {s, std::move(pixels), {0, 1, 2, 3, 0, 1, 2, 3}};
}
Augment windows(bool training) {
  Augment a;
  a.height = a.width = 8;
  a.pad = training ? 2 : 0;
  a.random_crop = a.mirror = training;
  return a;
}

interchange::ModelCard card_of(const io::Path& run) {
  const auto file = interchange::open_model(run.string());
  REQUIRE(file.card);
  REQUIRE(file.card->graph);
  return *file.card;
}
bool is_of_torch(const io::Path& run) {
  const auto file = interchange::open_model(run.string());
  for (const auto& [key, text] : file.file->metadata())
    if (key == "format") return text == "pt";
  return false;
}

std::vector<float> values(Trainer& t, const std::string& name) {
  const Tensor<float> all = t.parameter(name);
  return {all.begin(), all.end()};
}

struct Training {
  CpuBackend backend{CpuOptions{1}};
  Solo solo;
  Trainer trainer{backend, solo, net(), {}};
};

}  // namespace

TEST_CASE("a hand-written training loop leaves checkpoints with their net, images and classes") {
  Folder folder;
  Training t;
  Loader loader(Augmented(stored(), windows(true)), {.placement = {.global_batch = 4}, .seed = 1});
  (void)t.trainer.step(loader.next(), 0.1).wait();
  t.trainer.commit();
  Checkpoints checkpoints((folder.path / "night").string());
  checkpoints.save(t.trainer);
  const auto card = card_of(folder.path / "night");
  CHECK(card.name == "net-2");
  CHECK(card.classes == kinds);
  CHECK((*card.graph)[card.graph->images].shape == Shape{1, 3, 8, 8});
  CHECK(card.image.stored);
  CHECK(card.image.scale.height == 12);
  CHECK(card.image.scale.width == 10);
  CHECK(card.image.window.pad == 0);
  CHECK(is_of_torch(folder.path / "night"));
  // The weights fit the net in the file.
  const auto file = interchange::open_model((folder.path / "night").string());
  CHECK_NOTHROW((void)interchange::load_model(file, *card.graph, interchange::Averaged::automatic));
}

TEST_CASE("a program loads a checkpoint and classifies an image") {
  Folder folder;
  Training t;
  t.trainer.commit();
  const std::string run_folder = folder.path.string();
  Checkpoints(run_folder).save(t.trainer);
  const auto shape = (*card_of(folder.path).graph)[card_of(folder.path).graph->images].shape;
  const std::vector<std::uint8_t> image(static_cast<std::size_t>(shape.row_numel()), 100);
  // [predict]
  const auto file = tutti::interchange::open_model(run_folder);
  const auto loaded = tutti::interchange::load_model(file, *file.card->graph, tutti::interchange::Averaged::automatic);
  const auto backend = tutti::make_backend("auto");
  tutti::Inference net(*backend, loaded.net, {.compute = tutti::DType::f32});
  net.prepare(1);                                           // plans batches of one image, and packs the weights
  const std::span<const float> logits = net.logits(image);  // u8 [rows, height, width, channels] -> [rows, classes]
  // [/predict]
  REQUIRE(logits.size() == static_cast<std::size_t>(net.classes()));
  Tensor<std::uint8_t> images(Shape{1, shape[2], shape[3], shape[1]});
  std::copy(image.begin(), image.end(), images.begin());
  const Tensor<float> expected = t.trainer.predict(images);
  for (std::size_t i = 0; i < logits.size(); ++i)
    CHECK(logits[i] == doctest::Approx(expected.begin()[static_cast<std::ptrdiff_t>(i)]).epsilon(1e-4));
}

TEST_CASE("a trainer without a step writes a card with the net and its image size") {
  Folder folder;
  Training t;
  t.trainer.commit();
  Checkpoints checkpoints(folder.path.string() + "/");
  checkpoints.save(t.trainer);
  const auto card = card_of(folder.path);
  CHECK(card.name == "net-2");
  CHECK(card.classes.empty());
  CHECK(card.image.stored);
  CHECK(card.image.height == 8);
  CHECK(card.image.scale.height == 8);
}

TEST_CASE("fit() records the test images from its first checkpoint on") {
  Folder folder;
  Training t;
  Loader training(Augmented(stored({}), windows(true)), {.placement = {.global_batch = 4}, .seed = 1});
  Augment padded = windows(false);
  padded.fill = {7};
  Schema small = stored().schema();
  small.height = small.width = 6;
  small.name = "small sky";
  const MemoryDataset held(small, std::vector<std::uint8_t>(2 * 6 * 6 * 3), {0, 1});
  padded.pad = 1;
  Loader test(Augmented(held, padded), {.placement = {.global_batch = 2}, .shuffle = false, .one_pass = true});
  Checkpoints checkpoints(folder.path.string(), 100);
  FitOptions how{.epochs = 1, .global_batch = 4, .schedule = schedule::Constant{0.01}};
  how.save_every_steps = 1;
  fit(t.trainer, training, test, checkpoints, how);
  const auto all = io::CheckpointStore(folder.path).list();
  REQUIRE(all.size() == 2);
  for (const auto& path : all) {
    const auto card = card_of(path);
    CHECK(card.classes == kinds);  // the test images give the names; the training images have no names
    CHECK(card.image.scale.height == 6);
    CHECK(card.image.window.pad == 1);
    CHECK(card.image.window.fill == std::vector<std::uint8_t>{7});
  }
}

TEST_CASE("the program's own description of the net takes precedence over the trainer's") {
  Folder folder;
  Training t;
  t.trainer.commit();
  auto metadata = interchange::model_metadata("mine", net(), preparation_of_stored(8, 8), {"a", "b", "c", "d"});
  metadata.emplace_back("author", "me");
  Checkpoints checkpoints(folder.path.string(), 2, io::Json::object(), metadata);
  checkpoints.save(t.trainer);
  CHECK(card_of(folder.path).name == "mine");
  CHECK(card_of(folder.path).classes.size() == 4);
  SUBCASE("the trainer still writes the card if the program gives additional entries") {
    Folder other;
    Checkpoints more(other.path.string(), 2, io::Json::object(), {{"author", "me"}});
    more.save(t.trainer);
    CHECK(card_of(other.path).name == "net-2");
    const auto file = interchange::open_model(other.path.string());
    bool there = false;
    for (const auto& [key, text] : file.file->metadata()) there = there || (key == "author" && text == "me");
    CHECK(there);
  }
}

TEST_CASE("encoded images are prepared as in an evaluation, without the random parts of training") {
  ImageAugment a = ImageAugment::torchvision(Split::train);
  a.height = a.width = 64;
  a.short_side = 72;
  a.colour = ColourJitter::torchvision(0.4, 0.4, 0.4, 0.1);
  const ImagePreparation p = preparation_of(a);
  CHECK(p.scale.crop == CropRule::centre);
  CHECK(p.scale.short_side == 72);
  CHECK_FALSE(p.scale.mirror);
  CHECK(p.scale.quality == DecodeQuality::accurate);
  CHECK_FALSE(p.stored);
  CHECK(p.height == 64);
  a.height = a.width = 448;  // larger than the short side would be
  CHECK(preparation_of(a).scale.short_side == 512);
  CHECK(preparation_of(ImageAugment::horovod(Split::train)).scale.crop == CropRule::central);
  CHECK_NOTHROW((void)interchange::ImagePreparer(preparation_of(a), 3));
}

TEST_CASE("an evaluation with the best result so far saves a checkpoint at any interval") {
  Folder folder;
  Run run;
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  FitOptions how{.epochs = 4, .save_every = 100};
  // The metric is best in the third of four epochs.
  how.metric = [seen = std::size_t{0}](std::span<const float>, std::span<const std::int32_t> labels) mutable {
    // Each evaluation calls the metric for the 33 test images twice: with the weights and with their average.
    static constexpr double of_epoch[] = {1, 0.5, 3, 2};
    seen += labels.size();
    return of_epoch[(seen - 1) / 66] * static_cast<double>(labels.size());
  };
  run.go(&checkpoints, how);
  std::vector<std::int64_t> steps;
  for (const auto& path : io::CheckpointStore(folder.path).list()) steps.push_back(io::load_checkpoint(path).step());
  CHECK(steps == std::vector<std::int64_t>{20, 15, 5});
  CHECK(io::CheckpointStore(folder.path).best()->step == 15);
  CHECK(io::CheckpointStore(folder.path).best()->metric == doctest::Approx(3));
  CHECK(run.recorder.epochs[2].best);
  CHECK_FALSE(run.recorder.epochs[3].best);
  SUBCASE("no checkpoint of the best result if saving is off or save_best is off") {
    for (const bool never : {true, false}) {
      Folder other;
      Run again;
      Checkpoints none(other.path, 2, io::Json::object());
      FitOptions o{.epochs = 2, .save_every = never ? 0 : 100, .save_best = never};
      again.go(&none, o);
      CHECK(again.recorder.paths.size() == (never ? 0 : 1));
    }
  }
}

TEST_CASE("weights are loaded from a run with any optimizer") {
  Folder folder;
  {
    Checkpoints checkpoints(folder.path, 2, io::Json::object());
    Run run;  // an optimizer with momentum, and an average of the weights
    run.go(&checkpoints, {.epochs = 1});
  }
  const auto saved = io::CheckpointStore(folder.path).load_newest_valid();
  REQUIRE(saved);
  CpuBackend backend;
  Solo solo;
  Trainer plain(backend, solo, net(), {.optimizer = Adamw{}});
  Checkpoints checkpoints(folder.path.string());
  CHECK_THROWS_AS(checkpoints.resume_from(plain, *saved), DataError);
  checkpoints.load_weights(plain, *saved);
  Run same;
  checkpoints.resume_from(same.trainer, *saved);
  CHECK(values(plain, "conv1.weight") == values(same.trainer, "conv1.weight"));
  CHECK(plain.counters().step == 5);
  Trainer averaged(backend, solo, net(), {.optimizer = Adamw{}, .ema_decay = 0.5});
  checkpoints.load_weights(averaged, *saved);
  std::vector<float> theirs, ours;
  same.trainer.with_ema([&] { theirs = values(same.trainer, "fc.weight"); });
  averaged.with_ema([&] { ours = values(averaged, "fc.weight"); });
  CHECK(ours == theirs);
}

TEST_CASE("the preparation of images keeps its interpolation as JSON, and a text without one means bilinear") {
  ImageAugment a = ImageAugment::torchvision(Split::test);
  const interchange::ImagePreparation plain = preparation_of(a);
  CHECK(interchange::json_of(plain).find("interpolation") == nullptr);
  CHECK(interchange::image_preparation_of(interchange::json_of(plain), "test").scale.interpolation ==
        Interpolation::bilinear);
  a.interpolation = Interpolation::bicubic;
  io::Json json = interchange::json_of(preparation_of(a));
  CHECK(interchange::image_preparation_of(json, "test").scale.interpolation == Interpolation::bicubic);
  json.set("interpolation", "lanczos");
  CHECK_THROWS_WITH_AS((void)interchange::image_preparation_of(json, "test"),
                       "[test interpolation] expected bicubic or bilinear, got 'lanczos'.", DataError);
}
