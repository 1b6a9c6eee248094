// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/datasets/imagenet/open.hpp>
#include <tutti/io/tfrecord.hpp>

#include "data/record_files.hpp"

using namespace tutti;
using namespace tutti::test;
using imagenet::Form;

namespace {

static_assert(Records<imagenet::TfRecords>);

std::string example(std::int64_t label, const std::string& image = "jpeg") {
  return imagenet::image_example(
      {.height = 4,
       .width = 5,
       .label = label,
       .synset = "n01",
       .filename = "a.JPEG",
       .encoded = std::span(reinterpret_cast<const std::uint8_t*>(image.data()), image.size())});
}

void write_records(const std::filesystem::path& path, const std::vector<std::string>& payloads) {
  std::string text;
  for (const auto& p : payloads) io::append_tfrecord(text, p);
  write_text(path, text);
}

void write_packed(const std::filesystem::path& path) {
  PackedShardWriter w(path, {3, 0, 1, 5, {"x", "y", "z"}});
  w.add(2, Bytes{1, 2, 3});
  w.finish();
}

void write_recordio(const std::filesystem::path& path, std::int32_t label = 4) {
  RecordIoWriter w(path);
  w.add(label, Bytes{1, 2, 3});
  w.finish();
}

std::string error_of(const std::filesystem::path& folder, Split split, const imagenet::OpenOptions& o = {}) {
  return message_of<DataError>([&] { (void)open_imagenet(folder, split, o); });
}

// Returns the label of the first record.
std::int32_t first_label(const imagenet::Opened& o) {
  Bytes b;
  return o.records.read(0, b);
}

}  // namespace

TEST_CASE("TFRecord files written by TensorFlow are read") {
  const TempFolder folder;
  std::filesystem::copy(fixture("tensorflow"), folder.path());
  const auto train = open_imagenet(folder.path(), Split::train);
  CHECK(train.form == Form::tfrecord);
  CHECK(train.classes == 1000);
  CHECK(train.records.block() == 256);
  REQUIRE(train.records.size() == 5);
  const std::vector<std::int32_t> labels{0, 999, 499, 1, 2};
  Bytes bytes;
  for (std::size_t k : {4U, 0U, 1U, 2U, 3U}) {
    CHECK(train.records.read(static_cast<std::int64_t>(k), bytes) == labels[k]);
    if (k > 0)
      CHECK(bytes == plain_image(k));
    else
      CHECK((bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[bytes.size() - 1] == 0xD9));
  }
  const auto test = open_imagenet(folder.path(), Split::test);
  REQUIRE(test.records.size() == 1);
  CHECK(first_label(test) == 999);
  // Reads all features.
  const TfRecordFiles files({folder / "train-00001-of-00002"}, folder / "index");
  Bytes frame;
  const auto e = imagenet::parse_image_example(files.read(0, frame), "test");
  CHECK(e.height == 6);
  CHECK(e.width == 8);
  CHECK(e.channels == 3);
  CHECK(e.colorspace == "RGB");
  CHECK(e.format == "JPEG");
  CHECK(e.label == 2);
  CHECK(e.synset == "n00000002");
  CHECK(e.filename == "ILSVRC_3.JPEG");
}

TEST_CASE("examples from the writer are read back") {
  const std::string payload = example(17, "the image");
  const auto e = imagenet::parse_image_example(
      std::span(reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size()), "test");
  CHECK(e.height == 4);
  CHECK(e.width == 5);
  CHECK(e.channels == 3);
  CHECK(e.colorspace == "RGB");
  CHECK(e.label == 17);
  CHECK(e.synset == "n01");
  CHECK(e.filename == "a.JPEG");
  CHECK(std::string(e.encoded.begin(), e.encoded.end()) == "the image");
}

TEST_CASE("the error names a label outside 1 to 1000, and the feature of an image or label that is missing") {
  const TempFolder folder;
  const auto error = [&](const std::string& payload) {
    write_records(folder / "train-00000-of-00001", {example(1), payload});
    std::filesystem::remove(folder / "train.tutti-index");
    const auto o = open_imagenet(folder.path(), Split::train);
    CHECK(first_label(o) == 0);
    Bytes b;
    return message_of<DataError>([&] { (void)o.records.read(1, b); });
  };
  const std::string where = (folder / "train-00000-of-00001").string() + " record 1";
  CHECK(error(example(1000)).empty());
  for (const std::int64_t label : {std::int64_t{0}, std::int64_t{1001}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
    CHECK(contains(error(example(label)), "label of 1 to 1000, got " + std::to_string(label)));
    CHECK(contains(error(example(label)), where));
  }
  CHECK(contains(error(example(1, "")), "image/encoded"));
  ExampleWriter w;
  w.add("image/encoded", "x");
  CHECK(contains(error(w.payload()), "image/class/label"));
  w.add("image/class/label", "5");  // not an integer
  CHECK(contains(error(w.payload()), "image/class/label"));
  w.add_int("image/class/label", 5);  // the last value counts
  CHECK(error(w.payload()).empty());
  CHECK(contains(error("garbage"), where));
  CHECK(contains(error(""), where));
}

TEST_CASE("the error for a missing shard names the shard") {
  const TempFolder folder;
  for (const char* n : {"0", "2"}) write_records(folder / ("train-0000" + std::string(n) + "-of-00003"), {example(1)});
  CHECK(contains(error_of(folder.path(), Split::train), "missing: train-00001-of-00003"));
}

TEST_CASE("each form of the data set is found in the folder, in its subfolders and next to the folder") {
  for (const char* below : {"", "train"}) {
    const TempFolder folder;
    const auto at = folder.path() / below;
    const std::string b = *below != 0 ? std::string(below) + "/" : "";
    // Adds the forms in the reverse order of preference: each form has precedence over the forms before it.
    write_text(folder / "train/n1/a.jpg", "x");
    write_text(folder / "train/n2/b.jpg", "y");
    CHECK(open_imagenet(folder.path(), Split::train).form == Form::image_folder);
    write_recordio(folder / (b + "train.rec"));
    CHECK(open_imagenet(folder.path(), Split::train).form == Form::recordio);
    write_records(folder / (b + "train-00000-of-00001"), {example(7)});
    CHECK(open_imagenet(folder.path(), Split::train).form == Form::tfrecord);
    write_packed(folder / (b + "train-00000-of-00001.tutti"));
    auto o = open_imagenet(folder.path(), Split::train);
    CHECK(o.form == Form::packed);
    CHECK(o.classes == 3);
    CHECK(o.class_names == std::vector<std::string>{"x", "y", "z"});
    CHECK(first_label(o) == 2);
    // The caller can select a form.
    CHECK(first_label(open_imagenet(folder.path(), Split::train, {.form = Form::tfrecord})) == 6);
    CHECK(first_label(open_imagenet(folder.path(), Split::train, {.form = Form::recordio})) == 4);
    o = open_imagenet(folder.path(), Split::train, {.form = Form::image_folder});
    CHECK(o.class_names == std::vector<std::string>{"n1", "n2"});
    CHECK(o.classes == 2);
    CHECK(o.folder == folder / "train");
    // Opens the folder of one split, for this split and for the other one.
    write_packed(folder / "validation-00000-of-00001.tutti");
    for (const char* p : {"train", "train/", "train/../train/."}) {
      CHECK(open_imagenet(folder / p, Split::train).form == Form::packed);
      CHECK(open_imagenet(folder / p, Split::test).form == Form::packed);
    }
  }
}

TEST_CASE("an image folder for evaluation has the labels of the training folder") {
  const TempFolder folder;
  for (const char* n : {"train/n1/a.jpg", "train/n2/a.jpg", "train/n3/a.jpg", "val/n2/a.jpg"})
    write_text(folder / n, n);
  auto o = open_imagenet(folder.path(), Split::test);
  CHECK(first_label(o) == 1);
  CHECK(o.classes == 3);
  CHECK(first_label(open_imagenet(folder / "val", Split::test)) == 1);
  CHECK(open_imagenet(folder / "val", Split::train).folder.filename() == "train");
  write_text(folder / "val/n4/a.jpg", "x");
  CHECK(contains(error_of(folder.path(), Split::test), "n4"));
  // The files are not in class folders, as in ImageNet's own archive.
  std::filesystem::remove_all(folder / "val");
  write_text(folder / "validation/a.JPEG", "x");
  write_text(folder / "validation/b.JPEG", "x");
  CHECK(!error_of(folder.path(), Split::test).empty());
  write_text(folder / "synset_labels.txt", "n3\nn1\n");
  o = open_imagenet(folder.path(), Split::test);
  CHECK(o.records.size() == 2);
  CHECK(first_label(o) == 2);
  // A folder with any name is accepted for training, but not for evaluation.
  const TempFolder other;
  write_text(other / "n1/a.jpg", "x");
  CHECK(open_imagenet(other.path(), Split::train).classes == 1);
  CHECK(contains(error_of(other.path(), Split::test), "validation/<class>"));
  // The error for an empty class folder names it.
  std::filesystem::create_directory(folder / "train/n0");
  CHECK(contains(error_of(folder.path(), Split::train), "train/n0"));
}

TEST_CASE("classes and their names come from tutti-data's file next to the records") {
  const TempFolder folder;
  const auto tell = [&](const std::string& split, const std::string& form, const std::string& names) {
    write_text(folder / ("tutti-data-" + split + ".json"), R"({"format": "tutti-data", "version": 1, "form": ")" +
                                                               form + R"(", "classes": 3, "class_names": )" + names +
                                                               "}");
  };
  write_records(folder / "train-00000-of-00001", {example(2)});
  write_recordio(folder / "val.rec", 1);
  CHECK(open_imagenet(folder.path(), Split::train).classes == 1000);
  tell("train", "tfrecord", R"(["x", "y & z", "ä"])");
  auto o = open_imagenet(folder.path(), Split::train);
  const std::vector<std::string> names{"x", "y & z", "ä"};
  CHECK(o.classes == 3);
  CHECK(o.class_names == names);
  CHECK(o.records.class_names() == names);
  // If the caller gives another number of classes, the class names are not used.
  o = open_imagenet(folder.path(), Split::train, {.classes = 5});
  CHECK(o.classes == 5);
  CHECK(o.class_names.empty());
  // This file describes another form than the one that exists, so it is not used.
  CHECK(open_imagenet(folder.path(), Split::test).classes == 1000);
  tell("validation", "recordio", "[]");
  o = open_imagenet(folder.path(), Split::test);
  CHECK(o.classes == 3);
  CHECK(o.class_names.empty());
  // Without a file for this split, the file of the other split is used.
  std::filesystem::remove(folder / "tutti-data-validation.json");
  tell("train", "recordio", R"(["x", "y", "z"])");
  CHECK(open_imagenet(folder.path(), Split::test).class_names == std::vector<std::string>{"x", "y", "z"});
  for (const char* bad :
       {"{", R"({"format": "other", "version": 1})",
        R"({"format": "tutti-data", "version": 1, "form": "recordio", "classes": 0, "class_names": []})"}) {
    write_text(folder / "tutti-data-train.json", bad);
    CHECK(contains(error_of(folder.path(), Split::test), "tutti-data-train.json"));
  }
}

TEST_CASE("a TFRecord set with missing files is accepted on request") {
  const TempFolder folder;
  write_records(folder / "train-00001-of-00002", {example(7)});
  CHECK(contains(error_of(folder.path(), Split::train), "missing: train-00000-of-00002"));
  const auto o = open_imagenet(folder.path(), Split::train, {.missing_shards = true});
  CHECK(o.records.size() == 1);
  CHECK(first_label(o) == 6);
  CHECK(contains(o.missing, "train-00000-of-00002"));
  std::filesystem::remove(folder / "train-00001-of-00002");
  write_packed(folder / "train-00000-of-00002.tutti");
  CHECK(contains(error_of(folder.path(), Split::train, {.missing_shards = true}), "missing"));
}

TEST_CASE("the error for a folder without data lists what was searched for and what exists") {
  const TempFolder folder;
  std::string e = error_of(folder / "none", Split::train);
  CHECK(contains(e, "train-*-of-*"));
  CHECK(contains(e, "train.rec"));
  CHECK(contains(e, "train/<class>"));
  CHECK(contains(e, "no folder " + (folder / "none").string()));
  CHECK(contains(e, "prepare"));
  write_text(folder / "things/readme.txt", "x");
  write_text(folder / "readme.txt", "x");
  e = error_of(folder.path(), Split::train);
  CHECK(contains(e, "readme.txt"));
  CHECK(contains(error_of(folder / "readme.txt", Split::test), "not a folder"));
  CHECK(contains(error_of(folder.path(), Split::train, {.form = Form::recordio}), "RecordIO"));
  CHECK_THROWS_AS((void)open_imagenet(folder.path(), Split::train, {.form = {}, .classes = -1}), UsageError);
}

TEST_CASE("RecordIO files are found by their names") {
  const TempFolder folder;
  const auto names = [&](Split s) {
    std::string all;
    for (const auto& p : imagenet::find_recordio(folder.path(), s)) all += p.filename().string() + " ";
    return all;
  };
  CHECK(names(Split::train).empty());
  for (const char* n : {"imagenet-train-480.rec", "val_256.rec", "training.rec", "constraint.rec", "train.idx"})
    write_text(folder / n, "x");
  CHECK(names(Split::train) == "imagenet-train-480.rec ");
  CHECK(names(Split::test) == "val_256.rec ");
  write_text(folder / "train.rec", "x");
  CHECK_THROWS_AS((void)names(Split::train), DataError);
  std::filesystem::remove(folder / "train.rec");
  std::filesystem::remove(folder / "imagenet-train-480.rec");
  for (int k = 0; k < 11; ++k) write_text(folder / ("train_" + std::to_string(k) + ".rec"), "x");
  CHECK(contains(names(Split::train), "train_9.rec train_10.rec "));  // in the order of the numbers
  std::filesystem::remove(folder / "train_3.rec");
  CHECK(contains(message_of<DataError>([&] { (void)names(Split::train); }), "train_3.rec"));
}

TEST_CASE("several RecordIO files form one set") {
  const TempFolder folder;
  write_recordio(folder / "train_0.rec", 5);
  write_recordio(folder / "train_1.rec", 6);
  std::filesystem::remove(folder / "train_0.idx");
  const auto o = open_imagenet(folder.path(), Split::train);
  REQUIRE(o.records.size() == 2);
  Bytes b;
  CHECK(o.records.read(0, b) == 5);
  CHECK(o.records.read(1, b) == 6);
  CHECK(contains(o.records.where(1), "train_1.rec record 0"));
}
