// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/load_weights.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

Graph net(int classes) {
  Builder b(3, 8, 8);
  models::resnet_cifar(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = 8, .classes = classes, .width = 4});
  return std::move(b).take();
}

struct Run {
  explicit Run(int classes, TrainerOptions o = {}) : trainer(backend, solo, net(classes), std::move(o)) {}
  // Returns the values of all tensors of the model with this prefix, from the committed copy.
  std::vector<float> values(const std::string& prefix = "") {
    trainer.commit();
    std::vector<float> all;
    for (const StateSpan& s : trainer.committed_tensors(false)) {
      if (!s.name.starts_with(prefix)) continue;
      const auto* p = reinterpret_cast<const float*>(s.bytes.data());
      all.insert(all.end(), p, p + s.bytes.size() / sizeof(float));
    }
    return all;
  }
  std::vector<io::TensorRecord> records() {
    trainer.commit();
    std::vector<io::TensorRecord> list;
    for (const StateSpan& s : trainer.committed_tensors(false)) list.push_back({s.name, s.dtype, s.shape, s.bytes});
    return list;
  }
  CpuBackend backend{{1}};
  Solo solo;
  Trainer trainer;
};

const io::TensorRecord& find(const std::vector<io::TensorRecord>& list, const std::string& name) {
  return io::record_named(list, name);
}

}  // namespace

TEST_CASE("loading restores weights, whatever their values were") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  io::save_safetensors(folder / "w.safetensors", from.records());
  REQUIRE(from.values() != to.values());
  const LoadedWeights r = load_weights(to.trainer, folder / "w.safetensors");
  CHECK(r.loaded == from.records().size());
  CHECK(r.skipped.empty());
  CHECK(from.values() == to.values());
  CHECK(to.trainer.counters() == Counters{});
}

TEST_CASE("weights of a fully connected layer fit a 1x1 convolution, and no other one") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  std::vector<io::TensorRecord> records = from.records();
  io::TensorRecord& w = const_cast<io::TensorRecord&>(find(records, "layer2.0.downsample.0.weight"));
  REQUIRE(w.shape == Shape{8, 4, 1, 1});
  w.shape = Shape{8, 4};
  io::save_safetensors(folder / "w.safetensors", records);
  load_weights(to.trainer, folder / "w.safetensors");
  CHECK(from.values() == to.values());
  for (const Shape& other : {Shape{8, 4, 1}, Shape{4, 8}, Shape{32}, Shape{1, 1, 8, 4}}) {
    w.shape = other;
    io::save_safetensors(folder / "w.safetensors", records);
    CHECK_THROWS_WITH_AS(load_weights(to.trainer, folder / "w.safetensors"), doctest::Contains("of another shape"),
                         DataError);
  }
}

TEST_CASE("a checkpoint's folder is accepted too, with its number of batches") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  from.trainer.counters().step = 3;
  from.trainer.counters().batches = 7;
  from.trainer.commit();
  const std::string saved = Checkpoints(folder.path(), 1, io::Json::object()).save(from.trainer);
  load_weights(to.trainer, saved);
  CHECK(from.values() == to.values());
  CHECK(to.trainer.counters().step == 0);
  CHECK(to.trainer.counters().batches == 7);
}

TEST_CASE("the average of the weights starts with the loaded values") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.ema_decay = 0.9, .seed = 2});
  io::save_safetensors(folder / "w.safetensors", from.records());
  load_weights(to.trainer, folder / "w.safetensors");
  std::vector<float> averaged;
  to.trainer.with_ema([&] { averaged = to.values(); });
  CHECK(averaged == from.values());
}

TEST_CASE("f64 and bf16 are converted") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  auto records = from.records();
  std::vector<double> wide;
  std::vector<bf16> half;
  for (io::TensorRecord& r : records) {
    if (r.name == "conv1.weight") {
      for (const float v : r.values<float>()) wide.push_back(static_cast<double>(v));
      r = io::make_record<double>(r.name, r.shape, wide);
    } else if (r.name == "fc.weight") {
      for (const float v : r.values<float>()) half.push_back(bf16(v));
      r = io::make_record<bf16>(r.name, r.shape, half);
    }
  }
  io::save_safetensors(folder / "w.safetensors", records);
  load_weights(to.trainer, folder / "w.safetensors");
  CHECK(to.values("conv1.") == from.values("conv1."));
  const auto fc = to.values("fc.weight");
  REQUIRE(fc.size() == half.size());
  CHECK(std::equal(fc.begin(), fc.end(), half.begin(), [](float a, bf16 b) { return a == static_cast<float>(b); }));
}

TEST_CASE("fine-tuning keeps the classifier's initial values on request") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(3, {.seed = 2});
  io::save_safetensors(folder / "w.safetensors", from.records());
  const auto before = to.values(), classifier = to.values("fc.");
  const std::string message = test::message_of<DataError>([&] { load_weights(to.trainer, folder / "w.safetensors"); });
  CHECK(test::contains(message, "fc.weight [10, 16] for [3, 16], fc.bias [10] for [3]"));
  CHECK(to.values() == before);

  const LoadedWeights r = load_weights(to.trainer, folder / "w.safetensors", {.skip_classifier = true});
  CHECK(r.skipped == std::vector<std::string>{"fc.weight", "fc.bias"});
  CHECK(to.values("fc.") == classifier);
  CHECK(to.values("layer3.") == from.values("layer3."));
  CHECK(to.values("conv1.") == from.values("conv1."));

  SUBCASE("a classifier with the same number of classes is loaded") {
    Run same(10, {.seed = 3});
    CHECK(load_weights(same.trainer, folder / "w.safetensors", {.skip_classifier = true}).skipped.empty());
    CHECK(same.values() == from.values());
  }
  SUBCASE("no classifier in the file") {
    auto records = from.records();
    std::erase_if(records, [](const auto& t) { return t.name.starts_with("fc."); });
    io::save_safetensors(folder / "trunk.safetensors", records);
    Run same(10, {.seed = 3});
    const auto own = same.values("fc.");
    CHECK(load_weights(same.trainer, folder / "trunk.safetensors", {.skip_classifier = true}).skipped.size() == 2);
    CHECK(same.values("fc.") == own);
    CHECK(same.values("layer1.") == from.values("layer1."));
  }
  SUBCASE("a classifier with a different number of inputs is refused") {
    auto records = from.records();
    const std::vector<float> other(10 * 20);
    for (auto& t : records)
      if (t.name == "fc.weight") t = io::make_record<float>(t.name, {10, 20}, other);
    io::save_safetensors(folder / "other.safetensors", records);
    CHECK_THROWS_AS(load_weights(to.trainer, folder / "other.safetensors", {.skip_classifier = true}), DataError);
  }
}

TEST_CASE("the error names all differences, and no tensor changes") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  auto records = from.records();
  const std::vector<float> values(5);
  const std::vector<std::int32_t> integers(static_cast<std::size_t>(find(records, "layer1.0.bn2.bias").shape.numel()));
  const std::int64_t count = 4;
  std::erase_if(records, [](const auto& t) { return t.name == "bn1.weight" || t.name == "layer2.0.conv1.weight"; });
  for (auto& t : records) {
    if (t.name == "bn1.running_var") t = io::make_record<float>(t.name, {5}, values);
    if (t.name == "layer1.0.bn2.bias") t = io::make_record<std::int32_t>(t.name, t.shape, integers);
  }
  records.push_back(io::make_record<float>("layer9.weight", {5}, values));
  records.push_back(io::make_record<float>("fc2.bias", {5}, values));
  // A file may contain the count of a batch norm only if the net has this batch norm.
  records.push_back({"bn1.num_batches_tracked", DType::i64, Shape{}, std::as_bytes(std::span(&count, 1))});
  records.push_back({"bn9.num_batches_tracked", DType::i64, Shape{}, std::as_bytes(std::span(&count, 1))});
  io::save_safetensors(folder / "w.safetensors", records);
  const auto before = to.values();
  const std::string m = test::message_of<DataError>([&] { load_weights(to.trainer, folder / "w.safetensors"); });
  CAPTURE(m);
  CHECK(test::contains(m, "w.safetensors"));
  CHECK(test::contains(m, "missing: "));
  CHECK(test::contains(m, "bn1.weight [4]"));
  CHECK(test::contains(m, "layer2.0.conv1.weight [8, 4, 3, 3]"));
  CHECK(test::contains(m, "not in the net: "));
  CHECK(test::contains(m, "layer9.weight [5]"));
  CHECK(test::contains(m, "fc2.bias [5]"));
  CHECK(test::contains(m, "bn9.num_batches_tracked []"));
  CHECK(!test::contains(m, "bn1.num_batches_tracked"));
  CHECK(test::contains(m, "of another shape: bn1.running_var [5] for [4]"));
  CHECK(test::contains(m, "of another type: layer1.0.bn2.bias I32"));
  CHECK(to.values() == before);
  CHECK(to.trainer.counters().batches == 0);
}

TEST_CASE("a file that is not a weights file") {
  const test::TempFolder folder;
  Run to(10);
  test::write_text(folder / "w.safetensors", "PK\x03\x04 this is a zip archive, as torch.save writes them");
  CHECK_THROWS_AS(load_weights(to.trainer, folder / "w.safetensors"), DataError);
  CHECK_THROWS_AS(load_weights(to.trainer, folder / "none.safetensors"), Error);
}

TEST_CASE("tensors that may be missing keep their values") {
  const test::TempFolder folder;
  Run from(10, {.seed = 1}), to(10, {.seed = 2});
  auto records = from.records();
  records.erase(std::remove_if(records.begin(), records.end(), [](const auto& r) { return r.name == "fc.bias"; }),
                records.end());
  io::save_safetensors(folder / "w.safetensors", records);
  CHECK_THROWS_WITH_AS(load_weights(to.trainer, folder / "w.safetensors"), doctest::Contains("missing: fc.bias [10]"),
                       DataError);
  // Tensors named in may_be_missing may also be in the file.
  const LoadedWeights r =
      load_weights(to.trainer, folder / "w.safetensors", {.may_be_missing = {"fc.bias", "fc.weight"}});
  CHECK(r.skipped == std::vector<std::string>{"fc.bias"});
  CHECK(r.loaded == records.size());
  CHECK(to.values("fc.weight") == from.values("fc.weight"));
  CHECK_THROWS_WITH_AS(load_weights(to.trainer, folder / "w.safetensors", {.may_be_missing = {"fc.bais"}}),
                       doctest::Contains("'fc.bais'"), UsageError);
}
