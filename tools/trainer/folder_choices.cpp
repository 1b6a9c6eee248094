// SPDX-License-Identifier: MIT
#include "tools/trainer/folder_choices.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/data/images/image_header.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/models/imagenet_net.hpp>

#include "tools/trainer/option_values.hpp"
#include "tools/trainer/recipe_finetune.hpp"
#include "tools/trainer/record_split.hpp"

namespace tutti::trainer {

namespace {

constexpr double held_share = 0.2;          // of a class that is held out if there are no validation images
constexpr std::int64_t least_to_split = 5;  // images of a class that is split
constexpr std::int64_t least_to_train = 2;  // training images of a class, if there are validation images

// The facts on which the choices depend.
struct Found {
  std::int64_t images = 0;  // for training
  int classes = 0;
  std::int64_t side = 0;  // median of the images' short sides
  io::Path folder;        // of the class folders; empty for other forms
  bool splits = false;
};

[[noreturn]] void too_few(const RunOptions& o, const std::string& expected, const std::string& got,
                          const std::string& hint) {
  fail<DataError>("tutti-train " + o.data_dir, expected, got, hint);
}

// Returns the median of the short sides of some images, spread over the set.
std::int64_t median_side(const AnyRecords& records) {
  std::vector<std::int64_t> sides;
  std::vector<std::uint8_t> bytes;
  const std::int64_t count = std::min<std::int64_t>(records.size(), 25);
  for (std::int64_t i = 0; i < count; ++i) try {
      const std::int64_t at = i * records.size() / count;
      (void)records.read(at, bytes);
      const ImageHeader h = read_image_header(bytes, records.where(at), {});
      sides.push_back(std::min(h.width, h.height));
    } catch (const DataError&) {  // the training reports it
    }
  if (sides.empty()) return 0;
  std::sort(sides.begin(), sides.end());
  return sides[sides.size() / 2];
}

// Returns what a user can do who has named a folder without class folders.
std::string hint_without_classes(const io::Path& folder) {
  std::vector<std::string> names;
  if (std::error_code ignored; std::filesystem::is_directory(folder, ignored)) names = image_folder::folders_in(folder);
  if (names.size() == 1 && imagenet::detail::has_class_folders(folder / names[0]))
    return "did you mean " + (folder / names[0]).string();
  for (std::string name : names) {
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    for (const char* split : {"train", "validation", "val", "valid", "test"})
      if (name == split)
        return "the folders train and validation (or val, valid or test) hold a folder for each class; a class needs "
               "another name than these";
  }
  return "put the images of each class into a folder of its own";
}

Found look(const RunOptions& o) {
  imagenet::OpenOptions as;
  as.missing_shards = o.allow_missing_shards;
  if (o.num_classes > 0) as.classes = static_cast<int>(o.num_classes);
  auto train = find_imagenet(o.data_dir, Split::train, as);
  if (!train)
    too_few(o, "a folder of images for each class, such as cat/*.jpg and dog/*.jpg", contents_of(o.data_dir),
            hint_without_classes(o.data_dir));
  const bool has_test = find_imagenet(o.data_dir, Split::test, as).has_value();
  Found f;
  f.classes = train->classes;
  f.images = train->records.size();
  if (train->form == imagenet::Form::image_folder) f.folder = train->folder;
  if (f.classes < 2)
    too_few(o, "images of two classes or more, each in a folder of its own",
            "one class" + (train->class_names.empty() ? std::string() : " '" + printable(train->class_names[0]) + "'"),
            "add a folder with images of another class, for example of everything else");
  // Other forms than class folders have to be read for their labels, which the split does anyway.
  std::vector<std::int64_t> counts;
  if (!has_test || train->form == imagenet::Form::image_folder) counts = counts_of(*train);
  const auto least = std::min_element(counts.begin(), counts.end());
  const std::int64_t needed = has_test ? least_to_train : least_to_split;
  if (least != counts.end() && *least < needed) {
    const auto k = static_cast<std::size_t>(least - counts.begin());
    too_few(o,
            std::to_string(needed) + " images or more of each class" +
                (has_test ? "" : ", of which a fifth is held out for validation"),
            std::to_string(*least) + " of class '" +
                (k < train->class_names.size() ? printable(train->class_names[k]) : std::to_string(k)) + "'",
            "add images of this class, 100 or more if you can, or remove its folder");
  }
  f.splits = !has_test;
  if (f.splits)  // as split_off() does
    for (const std::int64_t n : counts)
      f.images -= std::max<std::int64_t>(std::llround(held_share * static_cast<double>(n)), 1);
  f.side = median_side(train->records);
  return f;
}

// Returns the numbers of blocks of the four stages: of tensors "layer<stage>.<block>.conv1.weight".
std::array<int, 4> blocks_of(const io::Safetensors& file) {
  std::array<int, 4> blocks{};
  for (const io::SafetensorsEntry& e : file.entries())
    for (std::size_t stage = 0; stage < blocks.size(); ++stage)
      if (e.name.starts_with("layer" + std::to_string(stage + 1) + ".") && e.name.ends_with(".conv1.weight"))
        ++blocks[stage];
  return blocks;
}

// Returns the net of --model that has these weights; empty if there is none.
std::string net_of(const interchange::ModelFile& m) {
  if (m.card)  // of a run with another net than a plain ResNet
    for (const std::string_view name : models::imagenet_nets)
      if (m.card->name == name) return m.card->name;
  const auto shape = [&](const char* name) {
    const io::SafetensorsEntry* const e = m.file->find(name);
    return e == nullptr ? std::vector<std::int64_t>() : std::vector<std::int64_t>(e->shape.begin(), e->shape.end());
  };
  if (!shape("features.18.0.weight").empty()) return "mobilenet_v2";
  if (!shape("features.7.2.layer_scale").empty()) return "convnext_tiny";
  if (shape("layer1.0.conv1.weight").size() != 4) return {};
  const auto in_block = shape("layer1.0.conv2.weight");
  if (in_block.size() != 4) return {};
  const bool deep = !shape("layer1.0.conv3.weight").empty();
  const std::array<int, 4> blocks = blocks_of(*m.file), of_50{3, 4, 6, 3};
  const bool plain = in_block[0] == 64 && in_block[1] == 64;
  if (!shape("conv1.0.weight").empty()) return deep && plain && blocks == of_50 ? "resnet50d" : "";
  if (shape("conv1.weight").size() != 4) return {};
  if (!shape("layer1.0.se.fc1.weight").empty()) return deep && plain && blocks == of_50 ? "seresnet50" : "";
  if (!plain) {
    if (!deep || blocks != of_50 || in_block[0] != 128) return {};
    return in_block[1] == 4 ? "resnext50_32x4d" : in_block[1] == 128 ? "wide_resnet50_2" : "";
  }
  if (blocks == of_50) return deep ? "resnet50" : "resnet34";
  if (!deep) return blocks == std::array{2, 2, 2, 2} ? "resnet18" : "";
  return blocks == std::array{3, 4, 23, 3} ? "resnet101" : blocks == std::array{3, 8, 36, 3} ? "resnet152" : "";
}

// Takes the net and, if `sizes`, the size of images from the weights that the run begins with. named: the user's
// --model, or empty.
void follow_weights(RunOptions& o, const std::string& pretrained, const std::string& named, bool sizes) {
  const interchange::ModelFile m = interchange::open_model(pretrained);
  const std::string net = net_of(m);
  if (net.empty() && named.empty())
    fail<DataError>("--pretrained " + pretrained, "weights of a net of --model, with torchvision's or timm's names",
                    m.card ? "those of " + printable(m.card->name) : "other tensors",
                    "--model names the net of other weights; train_cifar10 has those of small images");
  if (!net.empty()) o.model = net;
  const io::SafetensorsEntry* const stem = m.file->find("conv1.weight");
  o.stem = stem != nullptr && stem->shape.size() == 4 && stem->shape[2] == 3 ? "small" : "imagenet";
  if (!net.empty()) o.choices.push_back("the net is " + o.model + ", because the weights are of it");
  if (!sizes) return;
  if (m.card && m.card->image.height == m.card->image.width && m.card->image.height >= 32) {
    o.image_size = m.card->image.height;
    o.choices.push_back("the images have the size with which these weights were trained");
    return;
  }
  o.image_size = o.stem == "small" ? 32 : 224;
  o.choices.emplace_back("the images have the usual size of such a net, because the weights do not name theirs");
}

// Returns the options of the run that goes on in this folder, or no value if there is none.
std::optional<io::Json> options_before(const RunOptions& said, const std::string& run) {
  if (said.clear_log || (said.eval_only && !said.pretrained.empty())) return std::nullopt;
  if (!said.resume.empty() && said.resume != "latest" && said.resume != "best") return std::nullopt;
  const auto newest = io::CheckpointStore(run).load_newest_valid();
  return newest ? std::optional(newest->options()) : std::nullopt;
}

// Takes the net and the choice of the validation images from the run that goes on and, if `sizes`, the size of images.
void follow_run(RunOptions& o, const io::Json& before, const std::string& run, bool sizes) {
  const auto take = [&](const char* name, auto& to) {
    const io::Json* const was = before.find(name);
    if (was == nullptr || was->is_null()) return;
    detail::assign(std::string("--") + name, was->is_string() ? was->as_string() : io::write_json(*was), to);
  };
  take("model", o.model);
  take("stem", o.stem);
  take("seed", o.seed);
  if (o.validation_share > 0) take("validation-share", o.validation_share);
  if (sizes) take("image-size", o.image_size);
  o.choices.push_back("the net is " + o.model + ", because the run in " + run + " goes on");
}

// Returns how many times --batch-size images an update has. In an elastic job workers that join later choose too, so
// that their number does not count.
std::int64_t batches_of_update(const RunOptions& said) {
  if (said.batch_of == "job" || said.batch_of == "global" || said.global_batch_size > 0) return said.accumulate;
  if (said.logical_ranks > 0) return said.logical_ranks * said.accumulate;
  if (said.dry_run_ranks > 0) return said.dry_run_ranks * said.accumulate;
  const LaunchEnvironment start = read_launch_environment();
  const std::int64_t ranks = start.elastic || start.generation > 0 ? 1 : start.is_server() ? start.workers : start.size;
  return std::max<std::int64_t>(ranks, 1) * said.accumulate;
}

void choose_net(RunOptions& o, const Found& f, bool gpu) {
  const bool large = gpu && f.images >= 20'000;
  o.image_size = f.side <= 40 ? 32 : f.side <= 96 ? 64 : f.side <= 160 || !gpu ? 128 : 224;
  o.model = large ? "resnet50" : "resnet18";
  o.choices.push_back("the net is " + o.model + ": " +
                      (large ? "there are many images, and a GPU"
                       : gpu ? "there are few images for a deeper one"
                             : "a deeper one takes long on a processor"));
  o.choices.push_back("the images are scaled to " + std::to_string(o.image_size) + " pixels: their short sides have " +
                      std::to_string(f.side) + (gpu ? "" : ", and a processor computes"));
}

io::Path full_path(const io::Path& folder) {
  return (std::filesystem::absolute(folder) / "").lexically_normal().parent_path();
}

// Returns whether a run in this folder would be taken for a class, or for images of one.
bool lies_in(const io::Path& run, const io::Path& classes) {
  if (classes.empty()) return false;
  const io::Path inner = full_path(run), outer = full_path(classes);
  const auto [end, below] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end() && below != inner.end() && !below->string().starts_with('.');
}

}  // namespace

void choose_for_folder(RunOptions& o, const RunOptions& said) {
  if (said.data_dir.empty()) return;
  const Found f = look(said);
  const bool processor = said.gpus && said.gpus->empty();
  const bool gpu = said.backend == "cuda" || (said.backend == "auto" && !processor && automatic_backend() == "cuda");
  const std::string others = !said.preset.empty()  ? "--preset " + said.preset
                             : said.recipe.empty() ? ""
                                                   : "--recipe " + said.recipe;
  const std::string named = said.model == RunOptions().model ? "" : said.model;
  const std::string name = full_path(said.data_dir).filename().string();
  const std::string chosen = "runs/" + name, run = said.run_dir == o.run_dir ? chosen : said.run_dir;
  o.run_dir = chosen;
  if (lies_in(run, f.folder))
    fail<UsageError>("--log-dir", "a folder outside the images, because it would become one of their classes",
                     "'" + printable(run) + "'", "for example --log-dir ../runs/" + printable(name));
  const std::optional<io::Json> before = options_before(said, run);
  const io::Json* const recipe = before ? before->find("recipe") : nullptr;
  const bool went_on = recipe != nullptr && recipe->is_string() && recipe->as_string() == "finetune";
  const bool tunes = said.recipe == "finetune" || (others.empty() && (!said.pretrained.empty() || went_on));
  o.keep = 2;
  o.evaluate_every = 1;
  o.data_nthreads = 2;
  if (f.splits) o.validation_share = held_share;
  if (!others.empty() && !tunes) {
    if (before)
      follow_run(o, *before, run, false);
    else if (!said.pretrained.empty())
      follow_weights(o, said.pretrained, named, false);
    o.choices.push_back((said.pretrained.empty() && !before ? "the net, the size" : "the size") +
                        (", the batch, the rate and the epochs are those of " + others));
    return;
  }
  o.augmentation = "torchvision";
  o.crop_area = 0.35;
  o.lr_schedule = "cosine";
  o.label_smoothing = 0.1;
  o.batch_size = f.images < 2000 ? 32 : f.images < 20'000 ? 64 : 128;
  if (tunes) {
    recipe_finetune(o);
    o.batch_size = f.images < 20'000 ? 32 : 64;
  } else {
    o.warmup_epochs = 2;
  }
  if (before)
    follow_run(o, *before, run, true);
  else if (!said.pretrained.empty())
    follow_weights(o, said.pretrained, named, true);
  else
    choose_net(o, f, gpu);
  const std::int64_t parts = batches_of_update(said);
  while (o.batch_size > 4 && 4 * o.batch_size * parts > f.images) o.batch_size /= 2;
  // A number of images is seen in all, so that a small set gets more epochs than a large one.
  const double seen = tunes ? 15'000 : 48'000;
  const auto epochs = std::llround(seen / static_cast<double>(std::max<std::int64_t>(f.images, 1)));
  o.epochs = tunes ? std::clamp<std::int64_t>(epochs, 5, 30) : std::clamp<std::int64_t>(epochs, 10, 100);
  o.choices.push_back(std::to_string(o.epochs) + " epochs in batches of " + std::to_string(o.batch_size) +
                      (parts > 1 ? ", " + std::to_string(parts) + " of them in an update" : "") + ": there are " +
                      std::to_string(f.images) + " training images of " + std::to_string(f.classes) + " classes");
  if (tunes && said.recipe.empty())
    o.choices.emplace_back(said.pretrained.empty() ? "the recipe is finetune, as in the run that goes on"
                                                   : "the recipe is finetune, because --pretrained names weights");
  else if (!tunes && !before)
    o.choices.emplace_back(
        "the net begins with random weights; --pretrained FILE|RUN needs fewer images and less time");
}

void print_choices(const RunOptions& o) {
  for (const std::string& why : o.choices) std::printf("choice: %s\n", why.c_str());
  std::string line = "--model " + o.model + " --image-size " + std::to_string(o.image_size) + " --stem " + o.stem +
                     " --batch-size " + std::to_string(o.batch_size) +
                     (o.num_batches > 0 ? " --num-batches " + std::to_string(o.num_batches)
                                        : " --num-epochs " + std::to_string(o.epochs)) +
                     " --optimizer " + o.optimizer;
  char rate[64];
  std::snprintf(rate, sizeof rate, " --lr %.3g --wdecay %.3g", o.lr.value_or(0), o.wd.value_or(0));
  line += rate + (" --lr-decay-mode " + o.lr_schedule);
  std::printf("the options that count, yours before the choices: %s\n", line.c_str());
}

}  // namespace tutti::trainer
