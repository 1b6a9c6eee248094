// SPDX-License-Identifier: MIT
// optimised
// Tests that --hardest trains on the images with the largest losses of a small net. Takes 7 s of processor time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>

#include "tools/trainer/hardest_source.hpp"

using namespace tutti;
using namespace tutti::trainer;

namespace {

constexpr std::int64_t size = 100, batch = 25;

// Images of which every tenth has the label of another class.
MemoryDataset images() {
  const Synthetic right({.size = size, .height = 16, .width = 16, .seed = 4, .learnable = true});
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(right.schema().image_bytes()));
  for (std::int64_t i = 0; i < size; ++i) {
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    right.read(i, rng, Sample{image, label});
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(i % 10 == 0 ? static_cast<std::int32_t>(1 + i / 10) % 10 : label);
  }
  return {right.schema(), std::move(pixels), std::move(labels)};
}

RunOptions options() {
  RunOptions o;
  o.network = "airbench96";
  o.width = 0.1;
  o.precision = "f32";
  o.hardest = 0.5;
  o.batch_size = o.global_batch_size = batch;
  o.epochs = 25;
  o.epoch_end = "run-on";
  o.label_smoothing = 0.2;
  o.lr = 0.6;
  o.lr_end = 0;
  o.lr_schedule = "linear";
  o.warmup_epochs = 0;
  o.mom = 0.85;
  o.wd = 1e-4;
  o.evaluation_batch = batch;
  return o;
}

}  // namespace

TEST_CASE("half of each batch is trained, the images with wrong labels among them") {
  const MemoryDataset all = images();
  const RunOptions o = options();
  CpuBackend backend;
  const auto make = [&] {
    LoaderOptions l;
    l.placement = {batch, 0, 1, EpochEnd::run_on};
    l.seed = 3;
    l.shuffle = true;
    return hardest_source(std::make_unique<Loader>(AnyDataset(all), std::move(l)), backend, o, all.schema(),
                          AnyDataset(all));
  };
  const auto source = make(), again = make();
  CHECK(source->size() == size);
  std::int64_t chosen_wrong = 0;
  for (std::int64_t step = 0; step < 100; ++step) {
    const Batch& b = source->next();
    REQUIRE(b.count == (batch + 1) / 2);
    REQUIRE(b.global_count == b.count);
    REQUIRE(b.labels.size() == static_cast<std::size_t>(b.count));
    const auto bytes = static_cast<std::size_t>(all.schema().image_bytes());
    REQUIRE(b.images.size() == static_cast<std::size_t>(b.count) * bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(b.images.data()) % 64 == 0);
    CHECK(b.after.epoch == (step + 1) * batch / size);
    for (std::size_t i = 0; i < b.labels.size(); ++i) {
      REQUIRE(b.labels[i] == all.label(b.indices[i]));
      const auto image = all.image(b.indices[i]);
      REQUIRE(std::equal(image.begin(), image.end(), b.images.begin() + static_cast<std::ptrdiff_t>(i * bytes)));
      if (step >= 80 && b.indices[i] % 10 == 0) ++chosen_wrong;
    }
    if (step < 3) {
      const Batch& same = again->next();
      CHECK(std::equal(b.indices.begin(), b.indices.end(), same.indices.begin(), same.indices.end()));
    }
  }
  CAPTURE(chosen_wrong);
  // The last 20 batches are 5 epochs.
  CHECK(chosen_wrong >= 5 * (size / 10) * 2 / 3);
  CHECK_THROWS_AS(source->start({1, 0}), UsageError);
}
