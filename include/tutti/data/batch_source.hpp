// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/core/mixed_label.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

struct Schema;  // data/dataset.hpp

// This rank's part of one step. `count` may be 0 in the short last step of an epoch.
struct Batch {
  std::span<const std::uint8_t> images;   // [count, height, width, channels], starts at a multiple of 64 bytes
  std::span<const std::int32_t> labels;   // [count], of each image itself
  std::span<const MixedLabel> mixed{};    // [count], if a loader mixes images (LoaderOptions::mix); else empty
  std::span<const std::int64_t> indices;  // [count], in the data set
  std::int64_t count = 0;
  std::int64_t global_count = 0;  // samples of all ranks together, including skipped ones
  // Number of this batch's samples that could not be read (LoaderOptions::skip_bad_records); their label is
  // ignored_label. Only this rank knows the number: to get the mean over the samples that were read, sum it over the
  // ranks.
  std::int64_t skipped = 0;
  std::int64_t epoch = 0;          // from 0; of the first sample of all ranks
  std::int64_t step_in_epoch = 0;  // from 0; in steps of the current global batch
  bool last_of_epoch = false;
  Position after;  // the position to continue from when this step is committed
  // Set if the data set lies in a backend's memory. Then `images` is empty, and `windows` says which parts of which
  // stored images to use.
  const ResidentImages* resident = nullptr;
  std::span<const ImageWindow> windows{};  // [count]
  std::span<const std::int64_t> epochs{};  // [count], in a step that continues into another epoch; else empty

  std::shared_ptr<const Schema> schema{};  // schema of the data set; null if the source does not know it

  [[nodiscard]] std::int64_t epoch_of(std::size_t sample) const { return epochs.empty() ? epoch : epochs[sample]; }
};

// The source of batches for a training loop or an evaluation. All calls come from one thread.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  // Starts (again) at p, with the current placement or another. Drops batches that were read ahead.
  virtual void start(Position p) = 0;
  virtual void start(Position p, const Placement& placement) = 0;
  // Starts steps that are assigned one by one to several workers: next() returns the batch of each position given to
  // add(), in that order. next() must not be called more often than add(). Throws UsageError if the source does not
  // support this.
  virtual void start_assigned(const Placement&) {
    fail<UsageError>("batches", "a source that supports assigned steps", "another source",
                     "use Loader or ResidentSource, leave out --elastic, or use another strategy than ps_async");
  }
  virtual void add(Position) {}
  // Returns the number of batches that are read ahead of the one that next() returns.
  [[nodiscard]] virtual int reads_ahead() const { return 1; }
  [[nodiscard]] virtual const Placement& placement() const = 0;
  // Returns a sampler that knows the samples of every rank in every step. Each call makes a new one, which holds a
  // permutation.
  [[nodiscard]] virtual Sampler sampler() const = 0;
  // Returns the next batch, valid until the following call of next(), release() or start(). Starts at {0, 0} if start()
  // was never called.
  virtual const Batch& next() = 0;
  // Returns the batch of the last next() to the source.
  virtual void release() = 0;

  // skipped(): total number of samples that were skipped in the batches that next() has returned. take_skip_messages():
  // the messages about them since its last call.
  [[nodiscard]] virtual std::int64_t skipped() const = 0;
  [[nodiscard]] virtual std::vector<std::string> take_skip_messages() = 0;
  // Returns the total seconds that next() has waited for data.
  [[nodiscard]] virtual double seconds_waited() const = 0;
  // Returns the schema of the images, or null if the source does not know it.
  [[nodiscard]] virtual std::shared_ptr<const Schema> schema() const { return nullptr; }
  // Returns the number of samples of an epoch.
  [[nodiscard]] virtual std::int64_t size() const = 0;

  // Returns the number of steps of an epoch with the current placement.
  [[nodiscard]] std::int64_t steps_per_epoch() const {
    return tutti::steps_per_epoch(size(), placement().global_batch, placement().epoch_end);
  }
  // Returns the number of steps from p to the end of `epochs` passes.
  [[nodiscard]] std::int64_t steps_left(Position p, std::int64_t epochs) const {
    return tutti::steps_left(p, size(), placement().global_batch, placement().epoch_end, epochs);
  }

 protected:
  // Returns the batch of this share of the step that starts at p, without its data.
  [[nodiscard]] static Batch batch_at(Position p, const Share& share, std::int64_t size, const Placement& placement) {
    const std::int64_t global_batch = placement.global_batch;
    Batch b;
    b.indices = share.indices;
    b.epochs = share.epochs;
    b.count = static_cast<std::int64_t>(share.indices.size());
    b.global_count = share.global_count;
    b.epoch = p.epoch;
    // If steps continue into the next epoch, the step that crossed into this epoch belongs to the epoch before.
    b.step_in_epoch = placement.epoch_end == EpochEnd::run_on ? p.consumed / global_batch
                                                              : tutti::steps_per_epoch(p.consumed, global_batch);
    b.after = advance(p, size, global_batch, placement.epoch_end);
    b.last_of_epoch = b.after.epoch != p.epoch;
    return b;
  }
};

}  // namespace tutti
