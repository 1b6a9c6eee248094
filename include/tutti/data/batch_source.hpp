// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

struct Schema;  // data/dataset.hpp

// This rank's part of one step. `count` may be 0 in the short last step of an epoch.
struct Batch {
  std::span<const std::uint8_t> images;   // [count, height, width, channels], starts at a multiple of 64 bytes
  std::span<const std::int32_t> labels;   // [count]
  std::span<const std::int64_t> indices;  // [count], in the data set
  std::int64_t count = 0;
  std::int64_t global_count = 0;  // of all ranks together, skipped ones included
  // Of the `count` samples, those that could not be read (LoaderOptions::skip_bad_records): their label is
  // ignored_label. Known to this rank only; who wants the mean over the samples that were read sums it over the ranks.
  std::int64_t skipped = 0;
  std::int64_t epoch = 0;          // from 0; of the first of all ranks' samples
  std::int64_t step_in_epoch = 0;  // from 0; in steps of the present global batch
  bool last_of_epoch = false;
  Position after;  // where to go on once this step is committed
  // Where the data set lies in a backend's memory: no images, but which parts of which of its images.
  const ResidentImages* resident = nullptr;
  std::span<const ImageWindow> windows{};  // [count]
  std::span<const std::int64_t> epochs{};  // [count], in a step that runs on into another epoch; else empty

  std::shared_ptr<const Schema> schema{};  // of the data set; null: the source does not tell

  [[nodiscard]] std::int64_t epoch_of(std::size_t sample) const { return epochs.empty() ? epoch : epochs[sample]; }
};

// Where a training loop or an evaluation takes its batches from. All calls come from one thread.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  // Begins (again) at p, with the present placement or another; what was read ahead is dropped.
  virtual void start(Position p) = 0;
  virtual void start(Position p, const Placement& placement) = 0;
  // Begins steps that are dealt out one by one, to several workers: next() gives the batch of each position that add()
  // has named, in that order, and is called for no more than these. UsageError where the source cannot.
  virtual void start_dealt(const Placement&) {
    fail<UsageError>(
        "batches", "a source whose steps can be dealt out", "another",
        "Loader and ResidentSource can; leave out --elastic, or train with another strategy than ps_async");
  }
  virtual void add(Position) {}
  // Batches that are read ahead of the one that next() gives.
  [[nodiscard]] virtual int reads_ahead() const { return 1; }
  [[nodiscard]] virtual const Placement& placement() const = 0;
  // Says which samples any rank has in any step; one of its own each time, which takes a permutation.
  [[nodiscard]] virtual Sampler sampler() const = 0;
  // The next batch, valid until the following call of next(), release() or start(). Begins at {0, 0} if start() was
  // never called.
  virtual const Batch& next() = 0;
  // Gives the batch of the last next() back.
  virtual void release() = 0;

  // Samples skipped in the batches that next() has given out, in all, and what was wrong with them since the last call.
  [[nodiscard]] virtual std::int64_t skipped() const = 0;
  [[nodiscard]] virtual std::vector<std::string> take_skip_messages() = 0;
  // Seconds that next() has waited for data, in all.
  [[nodiscard]] virtual double seconds_waited() const = 0;
  // What its images are; null: it does not tell.
  [[nodiscard]] virtual std::shared_ptr<const Schema> schema() const { return nullptr; }
  // Samples of an epoch.
  [[nodiscard]] virtual std::int64_t size() const = 0;

  // With the present placement.
  [[nodiscard]] std::int64_t steps_per_epoch() const {
    return tutti::steps_per_epoch(size(), placement().global_batch, placement().epoch_end);
  }
  // Steps from p to the end of `epochs` passes.
  [[nodiscard]] std::int64_t steps_left(Position p, std::int64_t epochs) const {
    return tutti::steps_left(p, size(), placement().global_batch, placement().epoch_end, epochs);
  }

 protected:
  // The batch of this share of the step that starts at p, without its data.
  [[nodiscard]] static Batch batch_at(Position p, const Share& share, std::int64_t size, const Placement& placement) {
    const std::int64_t global_batch = placement.global_batch;
    Batch b;
    b.indices = share.indices;
    b.epochs = share.epochs;
    b.count = static_cast<std::int64_t>(share.indices.size());
    b.global_count = share.global_count;
    b.epoch = p.epoch;
    // Where steps run on, the one that crossed into this epoch belongs to the epoch before.
    b.step_in_epoch = placement.epoch_end == EpochEnd::run_on ? p.consumed / global_batch
                                                              : tutti::steps_per_epoch(p.consumed, global_batch);
    b.after = advance(p, size, global_batch, placement.epoch_end);
    b.last_of_epoch = b.after.epoch != p.epoch;
    return b;
  }
};

}  // namespace tutti
