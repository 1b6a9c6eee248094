// SPDX-License-Identifier: MIT
// Tests Images, the type of fit()'s data argument, with images from different sources.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/images.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/io/file_writer.hpp>

#include "temp_folder.hpp"

using namespace tutti;

namespace {

struct NamedRecords {  // records with one record per class
  std::vector<std::string> names;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(names.size()); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    bytes.assign(1, 0);
    return static_cast<std::int32_t>(i);
  }
  [[nodiscard]] std::string where(std::int64_t i) const { return "record " + std::to_string(i); }
  [[nodiscard]] int classes() const { return static_cast<int>(names.size()); }
  [[nodiscard]] std::int64_t block() const { return 1; }
  [[nodiscard]] std::vector<std::string> class_names() const { return names; }
};

struct Opened {  // the kind of result that open_imagenet() returns
  AnyRecords records;
  io::Path folder;
};

MemoryDataset stored(std::vector<std::string> names) {
  Schema s;
  s.name = "stored";
  s.channels = 1;
  s.height = s.width = 2;
  s.classes = 2;
  s.mean = {128};
  s.stddev = {64};
  s.class_names = std::move(names);
  return {s, std::vector<std::uint8_t>(8), {0, 1}};
}

const std::function<const ImageDecoders&()> no_decoders = []() -> const ImageDecoders& {
  throw UsageError("nothing to decode");
};

}  // namespace

TEST_CASE("a data set of decoded images is used unchanged") {
  const Images images = stored({"cat", "dog"});
  CHECK_FALSE(images.encoded());
  CHECK(images.size() == 2);
  CHECK(images.schema().height == 2);
  CHECK(images.dataset(Split::train, no_decoders).size() == 2);
  CHECK(Images(AnyDataset(stored({}))).schema().class_names.empty());
}

TEST_CASE("records are decoded to the image size of the input options") {
  const Images usual = NamedRecords{{"cat", "dog"}}, large(NamedRecords{{"cat", "dog"}}, {.size = 224});
  CHECK(usual.encoded());
  CHECK(usual.schema().height == 64);
  CHECK(usual.schema().channels == 3);
  CHECK(large.schema().width == 224);
  CHECK(large.schema().mean == ImageAugment::torchvision(Split::test).mean);
  CHECK(large.schema().class_names == std::vector<std::string>{"cat", "dog"});
  const Images opened(Opened{AnyRecords(NamedRecords{{"a", "b", "c"}}), "somewhere"}, {.mean = {1, 2, 3}});
  CHECK(opened.schema().name == "somewhere");
  CHECK(opened.schema().mean == std::vector<float>{1, 2, 3});
  CHECK_THROWS_WITH_AS(Images(NamedRecords{{"cat"}}, {.size = 0}), "[image size] expected 1 to 4096 pixels, got 0.",
                       UsageError);
}

TEST_CASE("training images are augmented and test images are not") {
  const ImageInput input{.size = 32, .least_area = 0.5};
  const ImageAugment train = input.augment(Split::train), test = input.augment(Split::test);
  CHECK(train.crop == CropRule::random);
  CHECK(train.mirror);
  CHECK(train.least_area == 0.5);
  CHECK(test.crop == CropRule::centre);
  CHECK_FALSE(test.mirror);
  CHECK(test.short_side == 36);
  CHECK_FALSE(ImageInput{.mirror = false}.augment(Split::train).mirror);
}

TEST_CASE("a folder of images gives its schema and its classes") {
  const test::TempFolder temp;
  for (const char* name : {"dog", "cat"}) {
    std::filesystem::create_directories(temp.path() / name);
    io::atomic_write_file(temp.path() / name / "1.png", "no image yet");
  }
  const ImageFolder folder(temp.path(), {.size = 48});
  CHECK(folder.schema().height == 48);
  CHECK(folder.schema().classes == 2);
  CHECK(ImageFolder(temp.path()).schema().height == 64);
  const Images images = folder;
  CHECK(images.schema().class_names == std::vector<std::string>{"cat", "dog"});
  CHECK(images.schema().name == "image folder " + temp.path().string());
}

TEST_CASE("labels are converted to the class numbers of other images") {
  const std::vector<std::string> all{"cat", "dog", "fox"};
  const Images some = NamedRecords{{"dog", "fox"}};
  const Images of_all = some.with_classes(all);
  CHECK(of_all.schema().classes == 3);
  CHECK(of_all.schema().class_names == all);
  CHECK(of_all.with_classes(all).size() == 2);
  CHECK_THROWS_WITH_AS((void)Images(NamedRecords{{"cat", "owl"}}).with_classes(all),
                       "[records] expected classes of the training images: cat, dog, fox, got owl. hint: a net can be "
                       "tested only on classes that it was trained on.",
                       DataError);
  CHECK(Images(stored({"cat", "dog"})).with_classes({"cat", "dog"}).size() == 2);
  CHECK_THROWS_AS((void)Images(stored({"dog", "cat"})).with_classes({"cat", "dog"}), DataError);
  std::vector<std::string> many;
  for (int i = 0; i < 12; ++i) many.push_back("c" + std::to_string(i));
  CHECK_THROWS_WITH_AS((void)some.with_classes(many),
                       doctest::Contains("c0, c1, c2, c3, c4, c5, c6, c7 and 4 more, got dog"), DataError);
}
