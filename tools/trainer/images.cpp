// SPDX-License-Identifier: MIT
#include "tools/trainer/images.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/augment/pixel_changes.hpp>
#include <tutti/datasets/fashion_mnist/fashion_mnist.hpp>
#include <tutti/datasets/imagenet/open.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/augmentation.hpp"
#include "tools/trainer/decoders.hpp"
#include "tools/trainer/image_records.hpp"

namespace tutti::trainer {

namespace detail {

std::vector<float> per_channel(const char* option, const std::string& text, std::int64_t channels) {
  std::vector<float> values;
  for (const double v : schedule::parse_numbers(option, text)) values.push_back(static_cast<float>(v));
  if (values.size() == 1) values.resize(static_cast<std::size_t>(channels), values[0]);
  if (values.size() != static_cast<std::size_t>(channels))
    fail<UsageError>(option, "one value or one per channel (" + std::to_string(channels) + ")", text);
  return values;
}

}  // namespace detail

namespace {

SyntheticOptions synthetic_options(const RunOptions& o) {
  SyntheticOptions s;
  s.size = o.num_examples > 0 ? o.num_examples : 50000;
  if (o.num_classes > 0) s.classes = static_cast<int>(o.num_classes);
  if (!o.image_shape.empty()) {
    const auto shape = schedule::parse_numbers("--image-shape", o.image_shape);
    s.channels = static_cast<std::int64_t>(shape[0]);
    s.height = static_cast<std::int64_t>(shape[1]);
    s.width = static_cast<std::int64_t>(shape[2]);
  }
  s.seed = o.seed;
  s.learnable = !o.benchmark;
  return s;
}

bool holds_fashion_mnist(const std::filesystem::path& folder) {
  const std::string name = fashion_mnist::file_name(Split::train, true);
  for (const auto& p : {folder / name, folder / (name + ".gz"), folder / "fashion-mnist" / name,
                        folder / "fashion-mnist" / (name + ".gz")})
    if (is_file(p)) return true;
  return false;
}

// Returns the data folder. If the user names no folder and the default folder lacks the data, uses Debian's folder.
std::filesystem::path data_folder(const RunOptions& o) {
  const bool asked = !o.data_dir.empty() && !o.data_dir_from_environment;
  const std::filesystem::path folder = o.data_dir.empty() ? "data" : o.data_dir;
  if (o.dataset == "fashion_mnist" && !asked && !holds_fashion_mnist(folder)) return fashion_mnist::debian_folder;
  return folder;
}

// Throws DataError if --dataset cifar10 would read a folder of another data set that a program of tutti supports.
void refuse_other_data(const RunOptions& o, const std::filesystem::path& folder) {
  for (const auto& place : {folder, folder / "cifar-10-batches-bin"})
    if (is_file(place / "data_batch_1.bin") || is_file(place / "test_batch.bin")) return;
  if (holds_fashion_mnist(folder))
    fail<DataError>("--data", "CIFAR-10 in " + folder.string(), "Fashion-MNIST", "add --dataset fashion_mnist");
  std::error_code ignored;
  for (const auto& place : {folder / "train", folder}) {
    if (!std::filesystem::is_directory(place, ignored)) continue;
    for (const auto& name : image_folder::folders_in(place))
      if (imagenet::detail::has_image(place / name))
        fail<DataError>(
            "--data", "CIFAR-10 in " + folder.string(), "class folders of images",
            "train_imagenet --data-dir " + o.data_dir + " -m resnet18 --image-size 64 trains on such images");
  }
}

// Returns the images of --data-train or --data-val.
ImageRecords records_of(const RunOptions& o, Split split) {
  if (split == Split::train) return {"--data-train", o.data_train, o.data_train_idx, split};
  return {"--data-val", o.data_val, o.data_val_idx, split};
}

bool reads_records(const RunOptions& o) { return !o.data_train.empty() || !o.data_val.empty(); }

// Returns the schema of the images. Mean and deviation are CIFAR-10's. If the files do not contain the number of
// classes, it is CIFAR-10's too.
Schema records_schema(const RunOptions& o) {
  const Split split = o.data_train.empty() ? Split::test : Split::train;
  Schema s = cifar10::schema(split);
  const ImageRecords records = records_of(o, split);
  std::tie(s.height, s.width) = records.extents(make_decoders(o.decoder));
  s.name = "the records";
  s.class_names.clear();
  if (auto told = records.facts(split)) {
    s.classes = told->classes;
    s.class_names = std::move(told->class_names);
  } else if (o.num_classes > 0) {
    s.classes = static_cast<int>(o.num_classes);
  }
  return s;
}

// Returns the schema of the data set's images. Reads at most one image from RecordIO.
Schema stored_schema(const RunOptions& o) {
  return reads_records(o)               ? records_schema(o)
         : o.dataset == "cifar10"       ? cifar10::schema(Split::train)
         : o.dataset == "fashion_mnist" ? fashion_mnist::schema(Split::train)
                                        : Synthetic(synthetic_options(o)).schema();
}

// Returns the pixels on every side that are added to images smaller than the net's input.
std::int64_t padding_of(const Schema& seen, const Schema& stored) {
  return std::max<std::int64_t>({0, (seen.height - stored.height + 1) / 2, (seen.width - stored.width + 1) / 2});
}

}  // namespace

Schema image_schema(const RunOptions& o) {
  Schema s = stored_schema(o);
  const std::int64_t side = std::min(s.height, s.width);
  if (o.pad_mode == "reflect" && o.pad_size.value_or(0) >= side)
    fail<UsageError>("--pad-size", "less than the " + std::to_string(side) + " pixels of " + s.name + " to reflect",
                     std::to_string(*o.pad_size), "or use --pad-mode constant");
  if (!o.image_shape.empty()) {
    const auto shape = schedule::parse_numbers("--image-shape", o.image_shape);
    if (static_cast<std::int64_t>(shape[0]) != s.channels)
      fail<UsageError>("--image-shape", std::to_string(s.channels) + " channels, as " + s.name + " has", o.image_shape);
    s.height = static_cast<std::int64_t>(shape[1]);
    s.width = static_cast<std::int64_t>(shape[2]);
  }
  if (o.num_classes > 0) {
    if (o.num_classes < s.classes)
      fail<UsageError>("--num-classes", "the " + std::to_string(s.classes) + " classes of " + s.name + " or more",
                       std::to_string(o.num_classes));
    if (o.num_classes > s.classes) s.class_names.clear();
    s.classes = static_cast<int>(o.num_classes);
  }
  if (!o.rgb_mean.empty()) s.mean = detail::per_channel("--rgb-mean", o.rgb_mean, s.channels);
  if (!o.rgb_std.empty()) s.stddev = detail::per_channel("--rgb-std", o.rgb_std, s.channels);
  return s;
}

interchange::ImagePreparation image_preparation(const RunOptions& o, const Schema& seen) {
  const Schema stored = stored_schema(o);
  interchange::ImagePreparation p;
  p.scale.height = stored.height;
  p.scale.width = stored.width;
  p.scale.short_side = static_cast<int>(std::max(stored.height, stored.width));
  p.stored = true;
  p.height = seen.height;
  p.width = seen.width;
  p.window.pad = padding_of(seen, stored);
  p.window.pad_mode = o.pad_mode == "reflect" ? PadMode::reflect : PadMode::constant;
  p.window.fill = {static_cast<std::uint8_t>(o.fill_value)};
  return p;
}

Images load_images(const RunOptions& o, const Schema& seen) {
  Augment training;
  training.height = seen.height;
  training.width = seen.width;
  training.pad = o.pad_size.value();
  training.pad_mode = o.pad_mode == "reflect" ? PadMode::reflect : PadMode::constant;
  training.crop_epochs = o.epochs - o.centre_epochs;
  training.fill = {static_cast<std::uint8_t>(o.fill_value)};
  training.random_crop = o.random_crop;
  training.mirror = o.random_mirror;
  const PixelChanges changes = pixel_changes(o, seen.mean);
  if (changes.needs_colour() && seen.channels != 3)
    fail<UsageError>("--auto-augment", "none, because the images of " + seen.name + " do not have 3 channels",
                     o.auto_augment);
  const auto both = [&](auto train, auto test) {
    Augment plain = training;
    plain.random_crop = plain.mirror = false;
    plain.pad = padding_of(seen, test.schema());
    AnyDataset tests = Augmented(std::move(test), plain);
    std::optional<AnyDataset> stored;
    if (whitens(o.network) && o.network != "cifar_fast") stored = AnyDataset(train);
    const auto repeats = [&](AnyDataset images) { return repeated(o, std::move(images)); };
    Images images{repeats(changes.any() ? AnyDataset(PixelChanged(Augmented(std::move(train), training), changes, seen))
                                        : AnyDataset(Augmented(std::move(train), training))),
                  std::move(tests)};
    images.plain = std::move(stored);
    return images;
  };
  const auto first = [&](MemoryDataset d) { return o.num_examples > 0 ? d.first(o.num_examples) : d; };
  if (reads_records(o)) {
    const Schema stored = records_schema(o);
    const ImageDecoders decoders = make_decoders(o.decoder);
    const auto load = [&](Split split, std::int64_t most) { return records_of(o, split).load(stored, decoders, most); };
    std::optional<MemoryDataset> train, test;
    if (!o.data_train.empty() && !o.eval_only) train = load(Split::train, o.num_examples);
    if (!o.data_val.empty()) test = load(Split::test, 0);
    if (!train && !test) fail<UsageError>("--eval-only", "--data-val, the images to evaluate on", "none");
    // An evaluation uses no training images, but Images::train must not be empty. Training needs no test images.
    if (train && !test) {
      Images images = both(*train, *train);
      images.test.reset();
      return images;
    }
    return both(train ? *train : *test, *test);
  }
  const auto folder = data_folder(o);
  if (o.dataset == "cifar10") {
    refuse_other_data(o, folder);
    return both(first(load_cifar10(folder, Split::train)), load_cifar10(folder, Split::test));
  }
  if (o.dataset == "fashion_mnist")
    return both(first(load_fashion_mnist(folder, Split::train)), load_fashion_mnist(folder, Split::test));
  SyntheticOptions train = synthetic_options(o), test = train;
  test.first = train.size;
  test.size = std::clamp<std::int64_t>(train.size / 5, 1, 10000);
  return both(Synthetic(train), Synthetic(test));
}

}  // namespace tutti::trainer
