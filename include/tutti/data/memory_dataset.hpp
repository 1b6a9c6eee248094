// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti {

// Images held in memory as u8 [size, height, width, channels]. Copies share them, so the augmented training version and
// the plain evaluation version of a set use its memory only once.
class MemoryDataset {
 public:
  // Throws UsageError unless each image has one label in [0, classes).
  MemoryDataset(Schema schema, std::vector<std::uint8_t> pixels, std::vector<std::int32_t> labels)
      : storage_(std::make_shared<const Storage>(Storage{std::move(schema), std::move(pixels), std::move(labels)})),
        size_(static_cast<std::int64_t>(storage_->labels.size())) {
    const Schema& s = storage_->schema;
    s.check();
    const auto bytes = storage_->labels.size() * static_cast<std::size_t>(s.image_bytes());
    if (storage_->pixels.size() != bytes)
      fail<UsageError>(s.name, {bytes, " bytes of pixels"}, storage_->pixels.size());
    for (const auto l : storage_->labels)
      if (l < 0 || l >= s.classes) fail<UsageError>(s.name, {"labels in [0, ", s.classes, ")"}, l);
  }

  // Returns the first n images (all if there are fewer), which share the memory.
  [[nodiscard]] MemoryDataset first(std::int64_t n) const {
    MemoryDataset d = *this;
    d.size_ = std::clamp<std::int64_t>(n, 0, size_);
    return d;
  }

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] const Schema& schema() const noexcept { return storage_->schema; }
  [[nodiscard]] std::span<const std::uint8_t> image(std::int64_t i) const noexcept {
    const auto bytes = static_cast<std::size_t>(schema().image_bytes());
    return {storage_->pixels.data() + static_cast<std::size_t>(i) * bytes, bytes};
  }
  [[nodiscard]] std::int32_t label(std::int64_t i) const noexcept {
    return storage_->labels[static_cast<std::size_t>(i)];
  }
  void read(std::int64_t i, Rng&, Sample sample) const {
    check_read(schema(), size_, i, sample);
    std::ranges::copy(image(i), sample.image.begin());
    sample.label = label(i);
  }

 private:
  struct Storage {
    Schema schema;
    std::vector<std::uint8_t> pixels;
    std::vector<std::int32_t> labels;
  };
  std::shared_ptr<const Storage> storage_;
  std::int64_t size_;
};

static_assert(InMemoryDataset<MemoryDataset>);

}  // namespace tutti
