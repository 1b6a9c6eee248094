// SPDX-License-Identifier: MIT
// Tests the transfer of batches to an emulated GPU (cuda_emulator.hpp): uploads on a separate stream, and windows that
// the device cuts from images. Every case runs with an upload stream that works as late as possible, and with one that
// works as early as possible.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>

#include "backends/device_input.hpp"
#include "backends/emulated_cuda.hpp"

using namespace tutti;
using namespace tutti::device_input;

TEST_CASE("images that the device crops and mirrors equal those of the host's augmentation byte by byte") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options(true));
  int cases = 0;
  struct Size {
    std::int64_t channels, height, width;
  };
  // The sizes of CIFAR-10 and Fashion-MNIST, rows that do not fill whole vectors, and one pixel.
  for (const Size& size : {Size{3, 32, 32}, {1, 28, 28}, {3, 5, 7}, {4, 6, 6}, {5, 3, 4}, {1, 1, 1}, {2, 8, 16}}) {
    const MemoryDataset source = images_of(7, size.channels, size.height, size.width);
    for (const auto& border : {std::pair<std::int64_t, PadMode>{0, PadMode::constant},
                               {1, PadMode::constant},
                               {4, PadMode::constant},
                               {0, PadMode::reflect},
                               {1, PadMode::reflect},
                               {2, PadMode::reflect},
                               {4, PadMode::reflect}})
      for (const bool crop : {false, true})
        for (const bool mirror : {false, true})
          for (const std::int64_t cut : {0, 1}) {
            const std::int64_t pad = border.first;
            const PadMode mode = border.second;
            if (mode == PadMode::reflect && pad >= std::min(size.height, size.width)) continue;
            Augment a;
            a.pad = pad;
            a.pad_mode = mode;
            a.random_crop = crop;
            a.mirror = mirror;
            a.crop_epochs = cut == 1 ? 1 : -1;
            if (cut == 1 && size.height > 1) {
              a.height = size.height - 1;
              a.width = size.width + 2 * pad;
            }
            for (std::int64_t c = 0; c < size.channels; ++c)
              a.fill.push_back(static_cast<std::uint8_t>(pad == 1 ? 17 : 50 * (c + 1)));
            const AnyDataset d{Augmented(source, a)};
            LoaderOptions o;
            o.placement.global_batch = 5;
            o.seed = 3;
            o.threads = 0;
            Loader loader(d, o);
            ResidentSource resident(backend, d, o);
            int wrong = 0;
            for (int step = 0; step < 4; ++step) {
              const Batch &expected = loader.next(), &got = resident.next();
              wrong += !same_step(expected, got) || gathered(backend, got) != read(expected);
              ++cases;
            }
            CAPTURE(size.channels);
            CAPTURE(pad);
            CAPTURE(static_cast<int>(mode));
            CHECK(wrong == 0);
          }
  }
  CHECK(cases > 1300);
}

TEST_CASE("images without augmentation can stay on the device, and unsuitable data sets are refused") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options(true));
  LoaderOptions o;
  o.placement.global_batch = 4;
  o.threads = 0;
  for (const AnyDataset& d : {AnyDataset(images_of(6, 3, 8, 8)), AnyDataset(images_of(6, 1, 3, 3)),
                              AnyDataset(Synthetic({.size = 6, .height = 5, .width = 5, .learnable = true}))}) {
    Loader loader(d, o);
    ResidentSource resident(backend, d, o);
    for (int step = 0; step < 3; ++step) {
      const Batch &expected = loader.next(), &got = resident.next();
      CHECK(same_step(expected, got));
      CHECK(gathered(backend, got) == read(expected));
    }
  }
  CHECK(resident_bytes(AnyDataset(images_of(6, 3, 8, 8))) == 6 * (3 * 8 * 8 + 4));
  struct Random {
    MemoryDataset d = images_of(6, 3, 8, 8);
    [[nodiscard]] std::int64_t size() const { return d.size(); }
    [[nodiscard]] const Schema& schema() const { return d.schema(); }
    void read(std::int64_t i, Rng& r, Sample s) const {
      d.read(i, r, s);
      s.image[0] = static_cast<std::uint8_t>(r.next());
    }
  };
  for (const AnyDataset& d : {AnyDataset(Random{}), AnyDataset(Augmented(Random{}, Augment::cifar()))}) {
    CHECK(d.stored() == nullptr);
    CHECK(resident_bytes(d) == 0);
    CHECK_THROWS_WITH_AS(ResidentSource(backend, d, o), doctest::Contains("images that do not change between reads"),
                         UsageError);
  }
}

TEST_CASE(
    "batches on the device equal batches of the loader for several ranks, batch sizes, passes and positions in an "
    "epoch") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options(true));
  const AnyDataset d{Augmented(images_of(23, 3, 8, 8), Augment::cifar())};
  for (const int world : {1, 3})
    for (int rank = 0; rank < world; ++rank)
      for (const bool one_pass : {false, true}) {
        LoaderOptions o;
        o.placement = {5, rank, world};
        o.seed = 11;
        o.threads = 0;
        o.one_pass = one_pass;
        o.shuffle = !one_pass;
        Loader loader(d, o);
        ResidentSource resident(backend, d, o);
        CHECK(loader.steps_per_epoch() == resident.steps_per_epoch());
        const auto compare = [&](int steps) {
          for (int i = 0; i < steps; ++i) {
            const Batch &expected = loader.next(), &got = resident.next();
            CHECK(same_step(expected, got));
            if (got.count > 0) CHECK(gathered(backend, got) == read(expected));
          }
        };
        compare(5);
        if (one_pass) {
          CHECK_THROWS_AS(loader.next(), UsageError);
          CHECK_THROWS_AS(resident.next(), UsageError);
        } else {
          compare(7);
        }
        const auto go_on = [&](Position p, const Placement& how) {
          loader.start(p, how);
          resident.start(p, how);
          compare(2);
        };
        go_on({2, 10}, {5, rank, world});
        go_on({1, 4}, {16, rank, world});
        go_on({0, 20}, {2, rank, world});
        CHECK_THROWS_AS(resident.start({0, 23}), UsageError);
      }
}

TEST_CASE("uploads: each step reads its own batch, and the host may reuse its memory when the batch has been read") {
  if (testing::no_emulator()) return;
  with_both([] {
    Emulated backend(testing::emulated_options(true));
    constexpr std::size_t images = 4000, rows = 50, steps = 9;
    Buffer slot(backend, images), labels(backend, rows * 4), seen(backend, steps * images),
        seen_labels(backend, steps * rows * 4);
    const auto pinned = backend.allocate_pinned(images);
    auto* const pixels = static_cast<std::uint8_t*>(pinned.get());
    std::vector<std::int32_t> numbers(rows);
    // Every third batch is short.
    const auto size = [&](std::size_t step) { return step % 3 == 2 ? rows / 5 : rows; };
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t n = size(step);
      std::fill_n(pixels, n * images / rows, static_cast<std::uint8_t>(step + 1));
      std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(1000 * step));
      backend.upload(pixels, n * images / rows, numbers.data(), n * 4, slot.data(), labels.data());
      std::fill(numbers.begin(), numbers.end(), -1);  // upload() has already copied the labels
      // Stands for the step: reads the slot.
      backend.copy(seen.at(step * images), slot.data(), images);
      backend.copy(seen_labels.at(step * rows * 4), labels.data(), rows * 4);
      backend.wait_for_uploads();
    }
    std::vector<std::uint8_t> all(steps * images);
    std::vector<std::int32_t> all_labels(steps * rows);
    backend.copy_out(all.data(), seen.data(), all.size());
    backend.copy_out(all_labels.data(), seen_labels.data(), all_labels.size() * 4);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t n = size(step);
      const auto* const begin = all.data() + step * images;
      CHECK(std::count(begin, begin + n * images / rows, static_cast<std::uint8_t>(step + 1)) ==
            static_cast<std::ptrdiff_t>(n * images / rows));
      for (std::size_t i = 0; i < n; ++i)
        CHECK(all_labels[step * rows + i] == static_cast<std::int32_t>(1000 * step + i));
    }
  });
}

TEST_CASE("the emulator detects a batch that is overwritten before the device has read it") {
  if (testing::no_emulator()) return;
  Emulated backend(testing::emulated_options(true));
  Buffer slot(backend, 64), labels(backend, 4);
  const auto pinned = backend.allocate_pinned(64);
  const std::int32_t label = 1;
  const auto first_byte = [&](bool waits) {
    std::memset(pinned.get(), 7, 64);
    backend.upload(pinned.get(), 64, &label, 4, slot.data(), labels.data());
    if (waits) backend.wait_for_uploads();
    std::memset(pinned.get(), 9, 64);
    std::uint8_t b = 0;
    backend.copy_out(&b, slot.data(), 1);
    return static_cast<int>(b);
  };
  CHECK(first_byte(true) == 7);
  CHECK(first_byte(false) == 9);
}

TEST_CASE("the crops of many steps can be in flight, and each step gets its own") {
  if (testing::no_emulator()) return;
  with_both([] {
    Emulated backend(testing::emulated_options(true));
    const AnyDataset d{Augmented(images_of(40, 3, 8, 8), Augment::cifar())};
    LoaderOptions o;
    o.placement.global_batch = 6;
    o.threads = 0;
    Loader loader(d, o);
    ResidentSource resident(backend, d, o);
    constexpr std::size_t bytes = 6 * 3 * 8 * 8, steps = 20;
    Buffer slot(backend, bytes), labels(backend, 24), seen(backend, steps * bytes);
    for (std::size_t step = 0; step < steps; ++step) {
      const Batch& b = resident.next();
      backend.gather_images(*b.resident, b.windows.data(), b.count, slot.data(), labels.data());
      backend.copy(seen.at(step * bytes), slot.data(), bytes);
    }
    std::vector<std::uint8_t> all(steps * bytes);
    backend.copy_out(all.data(), seen.data(), all.size());
    for (std::size_t step = 0; step < steps; ++step) {
      const Batch& b = loader.next();
      CHECK(std::equal(b.images.begin(), b.images.end(), all.begin() + static_cast<std::ptrdiff_t>(step * bytes)));
    }
  });
}
