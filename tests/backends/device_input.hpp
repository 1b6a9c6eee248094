// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>

#include "backends/emulated_cuda.hpp"

namespace tutti::device_input {

using testing::Emulated;

// Calls f for an upload stream that works as late as possible, and for one that works as early as possible.
template <class F>
void with_both(F&& f) {
  auto& device = emulator::Device::instance();
  for (const bool hasty : {false, true}) {
    CAPTURE(hasty);
    device.hasty = hasty;
    f();
  }
  device.hasty = false;
}

inline MemoryDataset images_of(std::int64_t size, std::int64_t channels, std::int64_t height, std::int64_t width,
                               int classes = 3, std::uint64_t seed = 1) {
  Schema s;
  s.name = "test";
  s.channels = channels;
  s.height = height;
  s.width = width;
  s.classes = classes;
  s.mean.assign(static_cast<std::size_t>(channels), 120);
  s.stddev.assign(static_cast<std::size_t>(channels), 60);
  Rng r(seed, Purpose::user);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size * s.image_bytes()));
  for (auto& p : pixels) p = static_cast<std::uint8_t>(r.next());
  std::vector<std::int32_t> labels(static_cast<std::size_t>(size));
  for (auto& l : labels) l = static_cast<std::int32_t>(r.below(static_cast<std::uint32_t>(classes)));
  return {s, pixels, labels};
}

// The images and labels of a batch, copied from the device.
struct Slot {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  friend bool operator==(const Slot&, const Slot&) = default;
};
inline Slot gathered(Emulated& backend, const Batch& b) {
  const ResidentImages& from = *b.resident;
  Slot s;
  s.images.resize(static_cast<std::size_t>(b.count * from.out_height * from.out_width * from.channels));
  s.labels.resize(static_cast<std::size_t>(b.count));
  Buffer images(backend, s.images.size()), labels(backend, s.labels.size() * sizeof(std::int32_t));
  // A pattern that shows which bytes were not written.
  std::vector<std::uint8_t> never(s.images.size(), 0xab);
  backend.copy_in(images.data(), never.data(), never.size());
  backend.gather_images(from, b.windows.data(), b.count, images.data(), labels.data());
  backend.copy_out(s.images.data(), images.data(), images.bytes());
  backend.copy_out(s.labels.data(), labels.data(), labels.bytes());
  return s;
}
inline Slot read(const Batch& b) { return {{b.images.begin(), b.images.end()}, {b.labels.begin(), b.labels.end()}}; }
inline bool same_step(const Batch& a, const Batch& b) {
  return std::ranges::equal(a.indices, b.indices) && std::ranges::equal(a.labels, b.labels) && a.count == b.count &&
         a.global_count == b.global_count && a.skipped == b.skipped && a.epoch == b.epoch &&
         a.step_in_epoch == b.step_in_epoch && a.last_of_epoch == b.last_of_epoch && a.after == b.after;
}

}  // namespace tutti::device_input
