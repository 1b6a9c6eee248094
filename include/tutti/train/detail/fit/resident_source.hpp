// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/detail/trainer/batch_view.hpp>

// Batches of a data set that is completely in the backend's memory.
namespace tutti {

// Returns the size of a data set in a backend's memory; 0: it cannot be kept there, because its images are made again
// each time.
[[nodiscard]] inline std::size_t resident_bytes(const AnyDataset& d) {
  if (d.stored() == nullptr) return 0;
  const auto each = static_cast<std::size_t>(d.stored()->stored().image_bytes()) + sizeof(std::int32_t);
  return each * static_cast<std::size_t>(d.size());
}

// Returns the same batches, bit by bit, as a Loader with the same options, as windows. The images were copied to the
// backend's memory once, and a step costs the host only the random numbers of its rows.
class ResidentSource final : public BatchSource {
 public:
  // Copies the images. Throws UsageError for a data set that makes its images again each time, DeviceError if the
  // memory is not enough. Ignores the options of the loader's ring.
  ResidentSource(Backend& backend, AnyDataset dataset, LoaderOptions options)
      : dataset_(std::move(dataset)),
        schema_(std::make_shared<const Schema>(dataset_.schema())),
        options_(std::move(options)),
        sampler_(dataset_.size(), options_.seed, options_.shuffle, dataset_.schema().block) {
    const Schema& seen = dataset_.schema();
    if (dataset_.stored() == nullptr)
      fail<UsageError>(seen.name, "images that do not change between reads, to keep them in the backend's memory",
                       "images that are computed anew at each read");
    const Schema& s = dataset_.stored()->stored();
    constexpr std::int64_t most = std::int64_t{1} << 30;
    for (const std::int64_t bytes : {s.image_bytes(), seen.image_bytes()})
      if (bytes > most) fail<UsageError>(s.name, "images of at most 2^30 bytes", bytes);
    if (dataset_.size() > std::numeric_limits<std::int32_t>::max())
      fail<UsageError>(s.name, "at most 2^31 - 1 images", dataset_.size());
    reserve();
    copy_images(backend.memory(), s);
    const std::vector<std::uint8_t> fill = dataset_.stored()->fill();
    fill_ = Buffer(backend.memory(), fill.size());
    backend.memory().copy_in(fill_.data(), fill.data(), fill.size());
    backend.memory().synchronise();
    const auto small = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
    resident_ = {static_cast<const std::uint8_t*>(images_.data()),
                 static_cast<const std::int32_t*>(labels_.data()),
                 static_cast<const std::uint8_t*>(fill_.data()),
                 dataset_.size(),
                 small(s.height),
                 small(s.width),
                 small(s.channels),
                 small(seen.height),
                 small(seen.width),
                 dataset_.stored()->pad_mode()};
  }

  void start(Position p) override { start(p, options_.placement); }
  void start(Position p, const Placement& placement) override {
    placement.check();
    sampler_.check(p);
    options_.placement = placement;
    reserve();
    position_ = p;
    running_ = true;
    exhausted_ = assigned_ = false;
    added_.clear();
  }
  void start_assigned(const Placement& placement) override {
    start({}, placement);
    assigned_ = true;
  }
  void add(Position p) override {
    sampler_.check(p);
    added_.push_back(p);
  }

  [[nodiscard]] const Placement& placement() const override { return options_.placement; }
  [[nodiscard]] Sampler sampler() const override {
    return {dataset_.size(), options_.seed, options_.shuffle, dataset_.schema().block};
  }

  const Batch& next() override {
    if (!running_) start({});
    if (assigned_ && added_.empty())
      fail<UsageError>("resident images", "an assigned step before next()", "no assigned step");
    if (assigned_) {
      position_ = added_.front();
      added_.erase(added_.begin());
    }
    if (exhausted_) fail<UsageError>("resident images", "start() after the last batch of a pass", "next()");
    const Stopwatch watch;
    const Placement& placement = options_.placement;
    batch_ = batch_at(position_, sampler_.share(position_, placement), sampler_.size(), placement);
    const StoredImages& stored = *dataset_.stored();
    for (std::size_t i = 0; i < batch_.indices.size(); ++i) {
      const std::int64_t index = batch_.indices[i];
      Rng rng(options_.seed, Purpose::augment, static_cast<std::uint64_t>(batch_.epoch_of(i)),
              static_cast<std::uint64_t>(index));
      windows_[i] = stored.window(rng);
      windows_[i].image = static_cast<std::int32_t>(index);
      labels_of_batch_[i] = host_labels_[static_cast<std::size_t>(index)];
    }
    batch_.labels = std::span<const std::int32_t>(labels_of_batch_).first(batch_.indices.size());
    batch_.windows = std::span<const ImageWindow>(windows_).first(batch_.indices.size());
    batch_.resident = &resident_;
    batch_.schema = schema_;
    position_ = batch_.after;
    exhausted_ = options_.one_pass && batch_.last_of_epoch;
    waited_ += watch.seconds();
    return batch_;
  }
  void release() override {}

  [[nodiscard]] std::int64_t skipped() const override { return 0; }
  [[nodiscard]] std::vector<std::string> take_skip_messages() override { return {}; }
  [[nodiscard]] double seconds_waited() const override { return waited_; }
  [[nodiscard]] std::shared_ptr<const Schema> schema() const override { return schema_; }
  [[nodiscard]] std::int64_t size() const noexcept override { return sampler_.size(); }
  [[nodiscard]] const ResidentImages& images() const noexcept { return resident_; }

 private:
  // Allocates for the largest step of this rank.
  void reserve() {
    options_.placement.check();
    const Placement& p = options_.placement;
    const std::int64_t most = step_count({}, sampler_.size(), p.global_batch, p.epoch_end);
    const auto rows = static_cast<std::size_t>(p.most_rows(most));
    if (windows_.size() >= rows) return;
    windows_.resize(rows);
    labels_of_batch_.resize(rows);
  }

  void copy_images(Memory& memory, const Schema& s) {
    const auto size = static_cast<std::size_t>(dataset_.size()), bytes = static_cast<std::size_t>(s.image_bytes());
    images_ = Buffer(memory, size * bytes);
    labels_ = Buffer(memory, size * sizeof(std::int32_t));
    host_labels_.resize(size);
    // A few MiB at a time: the host has the images already, or makes them one by one.
    const std::size_t some = std::clamp<std::size_t>((std::size_t{8} << 20) / bytes, 1, size);
    std::vector<std::uint8_t> chunk(some * bytes);
    for (std::size_t begin = 0; begin < size; begin += some) {
      const std::size_t n = std::min(some, size - begin);
      for (std::size_t i = 0; i < n; ++i)
        dataset_.stored()->read_stored(static_cast<std::int64_t>(begin + i),
                                       Sample{{chunk.data() + i * bytes, bytes}, host_labels_[begin + i]});
      memory.copy_in(images_.at(begin * bytes), chunk.data(), n * bytes);
      memory.synchronise();
    }
    memory.copy_in(labels_.data(), host_labels_.data(), size * sizeof(std::int32_t));
  }

  AnyDataset dataset_;
  std::shared_ptr<const Schema> schema_;
  LoaderOptions options_;
  Sampler sampler_;
  Buffer images_, labels_, fill_;
  ResidentImages resident_;
  Batch batch_;
  std::vector<ImageWindow> windows_;
  std::vector<std::int32_t> host_labels_, labels_of_batch_;
  Position position_;
  std::vector<Position> added_;
  bool running_ = false, exhausted_ = false, assigned_ = false;
  double waited_ = 0;
};

}  // namespace tutti
