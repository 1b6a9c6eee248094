// SPDX-License-Identifier: MIT
#include "tools/trainer/imagenet.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/printable.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/images/encoded_images.hpp>
#include <tutti/datasets/imagenet/open.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/augmentation.hpp"
#include "tools/trainer/decoders.hpp"
#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/imagenet_table.hpp"
#include "tools/trainer/record_split.hpp"

namespace tutti::trainer {

namespace {

// Returns how images are prepared to have this height and width.
ImageAugment imagenet_augment(const RunOptions& o, Split split, std::int64_t size) {
  const bool torchvision = o.augmentation == "torchvision", train = split == Split::train;
  ImageAugment a = torchvision ? ImageAugment::torchvision(split) : ImageAugment::horovod(split);
  a.height = a.width = size;
  a.short_side = static_cast<int>((size * 8 + 6) / 7);  // 256 for 224
  a.canvas = static_cast<int>((size * 10 + 7) / 8);     // 280
  if (train && o.increased_aug) {
    // The options have the ranges of yiq(). Converts them to the ranges of torchvision().
    a.colour = torchvision ? ColourJitter::torchvision(o.brightness, 1 - o.contrast, 1 - o.saturation, o.hue / 2)
                           : ColourJitter::yiq(o.brightness, o.contrast, o.saturation, o.hue);
  }
  if (train) a.colour.lighting = o.pca_noise;
  if (train && torchvision && o.crop_area > 0) a.least_area = o.crop_area;
  if (o.eval_resize != 0) a.short_side = static_cast<int>(o.eval_resize);
  if (o.crop_pct != 0) {
    a.short_side = static_cast<int>(std::floor(static_cast<double>(size) / o.crop_pct));
    a.share = o.crop_pct;
  }
  const auto numbers = [](const char* option, const std::string& text, std::vector<float>& to) {
    if (text.empty()) return;
    std::vector<float> values;
    for (const double v : schedule::parse_numbers(option, text)) values.push_back(static_cast<float>(v));
    if (values.size() == 1) values.resize(3, values[0]);
    if (values.size() != 3) fail<UsageError>(option, "one value or three", text);
    to = std::move(values);
  };
  numbers("--rgb-mean", o.rgb_mean, a.mean);
  numbers("--rgb-std", o.rgb_std, a.stddev);
  a.interpolation = interpolation_of(o);
  if (train) {
    const PixelChanges changes = pixel_changes(o, a.mean);
    a.policy = changes.policy;
    a.normalised = changes.normalised;
    a.erasing = changes.erasing;
  } else if (a.interpolation == Interpolation::random) {
    a.interpolation = Interpolation::bicubic;
  }
  return a;
}

// Returns a .rec file, or the .rec files of the split in a folder. The list of records is not needed, because the
// program makes its own.
imagenet::Opened recordio_of(const char* option, const std::string& given, const std::string& list, Split split,
                             const imagenet::OpenOptions& as) {
  if (!list.empty() && !is_file(list))
    fail<DataError>(std::string(option) + "-idx", "a file", "no file or folder at " + list);
  if (!is_file(given)) {
    if (auto found = find_imagenet(given, split, as)) return std::move(*found);
    fail<DataError>(
        option, std::string("a .rec file, or a folder with *") + (split == Split::train ? "train" : "val") + "*.rec",
        std::filesystem::is_directory(given) ? contents_of(given) : "no file or folder at " + given);
  }
  const io::Path file = given;
  const RecordIoFiles records({file}, file.parent_path() / (file.stem().string() + "-rec.tutti-index"), as.classes);
  return {AnyRecords(records), as.classes, imagenet::Form::recordio, file.parent_path(), {}};
}

// Returns training images of all sizes of the run. make: makes those of one size.
template <class F>
Images of_sizes(const RunOptions& o, F&& make) {
  const auto sizes = image_size_steps(o);
  Images all{repeated(o, make(sizes.front().size)), std::nullopt};
  for (std::size_t i = 1; i < sizes.size(); ++i)
    all.later.push_back({sizes[i].epoch, repeated(o, make(sizes[i].size))});
  return all;
}

// The first caller opens the records; later callers share them.
struct Imagenet {
  std::optional<imagenet::Opened> train, test;
  bool splits = false;    // the test images were taken from those for training
  bool held_out = false;  // the same, also without training images
  std::uint32_t not_held_out = 0;
  ImagenetEvaluation evaluation;

  void open(const RunOptions& o) {
    if (train || test) return;
    imagenet::OpenOptions as;
    as.missing_shards = o.allow_missing_shards;
    if (o.num_classes > 0) as.classes = static_cast<int>(o.num_classes);
    if (!o.data_train.empty() || !o.data_val.empty()) return open_records(o, as);
    if (o.use_rec) as.form = imagenet::Form::recordio;
    if (o.eval_only) {
      test = find_imagenet(o.data_dir, Split::test, as);
      if (!test && o.validation_share > 0) {
        auto all = open_imagenet(o.data_dir, Split::train, as);
        test = split_off(all, o.validation_share, o.seed);
        held_out = true;
        not_held_out = static_cast<std::uint32_t>(all.records.size());
      }
      if (!test) test = open_imagenet(o.data_dir, Split::test, as);  // throws
      return;
    }
    train = open_imagenet(o.data_dir, Split::train, as);
    if (o.test_io) return;
    const bool tells = train->form == imagenet::Form::packed || train->form == imagenet::Form::image_folder;
    if (!tells) as.classes = train->classes;
    test = find_imagenet(o.data_dir, Split::test, as);  // training continues without them
    if (test || o.validation_share == 0) return;
    test = split_off(*train, o.validation_share, o.seed);
    held_out = splits = true;
    not_held_out = static_cast<std::uint32_t>(train->records.size());
  }
  // Opens the images of --data-train and --data-val.
  void open_records(const RunOptions& o, imagenet::OpenOptions as) {
    as.form = imagenet::Form::recordio;
    if (!o.data_train.empty() && !o.eval_only)
      train = recordio_of("--data-train", o.data_train, o.data_train_idx, Split::train, as);
    if (!o.data_val.empty() && !o.test_io)
      test = recordio_of("--data-val", o.data_val, o.data_val_idx, Split::test, as);
    if (o.eval_only && !test) fail<UsageError>("--eval", "--data-val, the images to evaluate on", "none");
    if (train && o.num_examples > train->records.size())
      fail<UsageError>("--num-examples",
                       std::to_string(train->records.size()) + ", the number of images in " + o.data_train + ", or 0",
                       std::to_string(o.num_examples), "leave the option out: all images are used");
  }
  [[nodiscard]] int classes(const RunOptions& o) {
    if (o.benchmark || (o.data_dir.empty() && o.data_train.empty() && o.data_val.empty()))
      return o.num_classes > 0 ? static_cast<int>(o.num_classes) : 1000;
    open(o);
    const int found = std::max(train ? train->classes : 0, test ? test->classes : 0);
    if (o.num_classes > 0 && o.num_classes < found)
      fail<UsageError>("--num-classes", "the " + std::to_string(found) + " classes of the images or more",
                       std::to_string(o.num_classes));
    const int classes = std::max(found, static_cast<int>(o.num_classes));
    if (train && classes < 2 && !o.test_io)
      fail<DataError>(o.data_dir.empty() ? "--data-train" : "--data-dir", "training images of two classes or more",
                      "one class" + (train->class_names.empty() ? "" : " '" + printable(train->class_names[0]) + "'"),
                      "the images of each class are in a folder of its own, next to those of the other classes");
    return classes;
  }
  [[nodiscard]] Schema schema(const RunOptions& o) {
    const ImageAugment a = imagenet_augment(o, Split::train, o.eval_size);
    Schema s;
    s.name = o.dataset;
    s.channels = 3;
    s.height = a.height;
    s.width = a.width;
    s.classes = classes(o);
    s.mean = a.mean;
    s.stddev = a.stddev;
    for (const auto& opened : {&train, &test})
      if (*opened && (*opened)->class_names.size() == static_cast<std::size_t>(s.classes))
        s.class_names = (*opened)->class_names;
    return s;
  }
  [[nodiscard]] Images images(const RunOptions& o) {
    if (o.benchmark) {
      SyntheticOptions s;
      s.size = o.num_examples > 0 ? o.num_examples : 1281167;
      s.classes = classes(o);
      s.seed = o.seed;
      return of_sizes(o, [&](std::int64_t size) -> AnyDataset {
        s.height = s.width = size;
        return Synthetic(s);
      });
    }
    open(o);
    const ImageDecoders decoders = make_decoders(o.decoder);
    const auto encoded = [&](const imagenet::Opened& from, Split split, std::int64_t size) {
      return AnyDataset(EncodedImages("imagenet " + std::string(name_of(split)), from.records, decoders,
                                      imagenet_augment(o, split, size)));
    };
    std::optional<AnyDataset> tests;
    if (test) tests = encoded(*test, Split::test, o.eval_size);
    // Scripts of the Horovod trainer evaluate checkpoints after the run.
    const bool evaluates_later = o.eval_interval > 0 || o.num_gpus;
    const bool own = train && train->form == imagenet::Form::image_folder && !evaluates_later;
    // An evaluation uses no training images, but Images::train must not be empty.
    Images all = train ? of_sizes(o, [&](std::int64_t size) { return encoded(*train, Split::train, size); })
                       : Images{*tests, std::nullopt};
    all.test = tests;
    all.evaluate_each_epoch = own;
    all.held_out = held_out;
    all.not_held_out = not_held_out;
    for (const auto* opened : {&train, &test}) {
      if (!*opened) continue;
      if (!(*opened)->left_out.empty())
        all.notes.push_back((*opened)->folder.string() + ": " + image_folder::describe((*opened)->left_out));
      if (!(*opened)->missing.empty()) all.notes.push_back("--allow-missing-shards: " + (*opened)->missing);
    }
    if (splits)
      all.notes.push_back("there are no validation images: " + std::to_string(test->records.size()) + " of " +
                          std::to_string(test->records.size() + train->records.size()) +
                          " images, the same share of each class, are held out by seed " + std::to_string(o.seed));
    if (o.validation_share > 0 && test && !splits && !o.eval_only)
      all.notes.push_back("no effect: --validation-share, because there are validation images");
    if (train) all.class_counts = [set = *train] { return counts_of(set); };
    if (test && test->form == imagenet::Form::image_folder)
      all.test_file = [records = test->records](std::int64_t i) { return records.where(i); };
    return all;
  }
};

}  // namespace

Task imagenet_task() {
  const auto data = std::make_shared<Imagenet>();
  Task task;
  task.schema = [data](const RunOptions& o) { return data->schema(o); };
  task.images = [data](const RunOptions& o, const Schema&) { return data->images(o); };
  task.preparation = [](const RunOptions& o, const Schema& seen) {
    interchange::ImagePreparation p;
    p.scale = imagenet_augment(o, Split::test, o.eval_size);
    p.height = seen.height;
    p.width = seen.width;
    return p;
  };
  task.listeners = [](const RunOptions& o, const RunStart& start, const std::function<double()>& l2) {
    std::vector<std::unique_ptr<FitListener>> list;
    list.push_back(std::make_unique<ImagenetTable>(o, start, l2));
    return list;
  };
  task.evaluating = [data](const RunOptions& o, std::int64_t images) { data->evaluation.begin(o, images); };
  task.evaluated = [data](const EvaluationReport& e, const EvaluatedCheckpoint& c) { data->evaluation.row(e, c); };
  task.evaluation_done = [data] { data->evaluation.end(); };
  task.shows_progress = false;
  return task;
}

}  // namespace tutti::trainer
