// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/augment/col_out.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/rank_rows.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

// The samples of a data set as images of another size, for batches that begin in or after an epoch.
struct LaterImages {
  std::int64_t epoch = 0;
  AnyDataset images;
};

struct LoaderOptions {  // Options of a Loader.
  Placement placement;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool one_pass = false;    // stop after the epoch that start() began in, as evaluation does
  int threads = 1;          // threads of the loader itself; 0: next() reads
  int slots = 4;            // batches in the ring
  std::int64_t group = 16;  // samples that a thread takes at a time
  // If read() throws DataError: with false, next() throws it. With true, the sample keeps its position and gets the
  // label ignored_label and the next readable image of this rank's part of the batch, so that batch norm gets a real
  // image (zeros if no image is readable). Batches do not depend on the number of threads.
  bool skip_bad_records = false;
  // Added to the message about a damaged record that is not skipped; a program names its own option here.
  std::string bad_record_hint = "LoaderOptions::skip_bad_records continues without the record";
  // The sizes of images in the course of a run, for example for progressive sizes; ascending epochs over 0. A batch has
  // the size of the epoch of its first sample, which its schema names.
  std::vector<LaterImages> later{};
  // Changes the rows of each logical rank together, in a thread of the loader, after they were read, for example
  // mixer() of data/augment/mix.hpp. Batches then have mixed labels (Batch::mixed).
  RowMixer mix{};
  // Leaves out rows and columns of the images of each logical rank, the same ones of all its images, after `mix`. The
  // schema of the batches has the smaller size.
  ColOut col_out{};
  // Allocates the images of one slot, aligned to 64 bytes or more; a backend may supply pinned memory.
  std::function<std::shared_ptr<void>(std::size_t bytes)> allocate{};
  // Called before a returned batch may be overwritten: a device may still be reading it.
  std::function<void()> before_reuse{};
};

// Reads batches ahead of the consumer. Several threads fill one batch, a few samples at a time. A sample's random
// numbers are Rng(seed, Purpose::augment, epoch, index), so batches do not depend on the number of threads or ranks.
// After the first start() no memory is allocated until the batch grows. All calls come from one thread.
class Loader final : public BatchSource {
 public:
  explicit Loader(AnyDataset dataset, LoaderOptions options = {});
  ~Loader() override {
    try {
      Loader::release();
    } catch (...) {  // a device that has failed no longer reads
    }
    stop();
  }

  void start(Position p) override { start(p, options_.placement); }
  void start(Position p, const Placement& placement) override { begin(p, placement, false); }
  void start_assigned(const Placement& placement) override { begin({}, placement, true); }
  TUTTI_CORE_FUNCTION void add(Position p) override;
  [[nodiscard]] int reads_ahead() const override { return options_.slots; }
  [[nodiscard]] const Placement& placement() const noexcept override { return options_.placement; }
  [[nodiscard]] Sampler sampler() const override {
    const Schema& s = dataset_.schema();
    return {dataset_.size(), options_.seed, options_.shuffle && !s.own_order, s.block};
  }

  // Throws what read() threw, with the data set's name and the index, at each call until start().
  TUTTI_CORE_FUNCTION const Batch& next() override;

  // Allows the slot to be filled again.
  void release() override {
    if (!holds_) return;
    if (options_.before_reuse) options_.before_reuse();
    holds_ = false;
    const std::lock_guard lock(mutex_);
    ++released_;
    if (sleeping_ > 0) workers_wake_.notify_all();
  }

  [[nodiscard]] std::int64_t skipped() const noexcept override { return skipped_; }
  // Returns the messages since the last call, in the order of the batches: at most 8 for each batch, and 64 in all.
  [[nodiscard]] std::vector<std::string> take_skip_messages() override { return std::exchange(skip_messages_, {}); }

  // Without threads, this is the time spent reading.
  [[nodiscard]] double seconds_waited() const noexcept override { return waited_; }
  [[nodiscard]] std::shared_ptr<const Schema> schema() const override { return schema_; }
  [[nodiscard]] std::int64_t size() const noexcept override { return sampler_.size(); }
  [[nodiscard]] const AnyDataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }

 private:
  static constexpr std::size_t most_messages = 64, messages_per_batch = 8;

  // A row that could not be read.
  struct Bad {
    std::int64_t row = 0;
    std::string message;
  };
  // Sequence numbers count batches since start(); batch s is in slot s % slots. opened_: number of batches that the
  // threads may read; of the last one they have taken the rows below row_. next_: number of batches given to the
  // consumer. released_: number of batches that it has returned.
  struct Ring {
    std::shared_ptr<void> memory;
    std::uint8_t* images = nullptr;
    std::vector<std::int32_t> labels;
    std::vector<std::int64_t> indices, epochs;
    std::vector<MixedLabel> mixed;
    Batch batch;
    const AnyDataset* images_from = nullptr;
    std::size_t row_bytes = 0;
    Position at;               // at which the batch starts
    std::int64_t pending = 0;  // rows not read yet; 1 while the batch is changed
    std::exception_ptr error;
    std::int64_t error_row = 0;
    std::vector<Bad> bad;
    ColOutDraw kept;
  };

  void stop();
  void begin(Position p, const Placement& placement, bool assigned);

  // Allocates memory for the largest share that this rank can get.
  void reserve();

  static std::shared_ptr<void> aligned(std::size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == nullptr) throw std::bad_alloc();
    return {p, [](void* q) { std::free(q); }};
  }

  [[nodiscard]] Ring& last_opened() { return ring_[static_cast<std::size_t>((opened_ - 1) % options_.slots)]; }
  [[nodiscard]] bool rows_left() { return opened_ > 0 && row_ < last_opened().batch.count; }
  [[nodiscard]] bool claimable() {
    return rows_left() || (!exhausted_ && opened_ < released_ + options_.slots && !(assigned_ && added_.empty()));
  }

  // Decides the samples of the next batch.
  void open();

  // Throws UsageError unless all data sets have the same samples.
  void check_later() const;

  // Claims a group of rows and reads them; releases the lock while it reads.
  void run_one(std::unique_lock<std::mutex>& lock);

  void read(Ring& r, std::size_t row) const;

  // Records a DataError and clears it; returns false for any other error.
  static bool skip(std::exception_ptr& error, std::int64_t row, std::vector<Bad>& bad);

  // Sets label and image of the rows that could not be read, when all other rows are complete.
  void fill_skipped(Ring& r) const;

  // Counts these rows and keeps their messages.
  void record_skipped(Ring& r);

  // Whether the rows of a batch are changed together.
  [[nodiscard]] bool changes() const noexcept { return options_.mix || options_.col_out.any(); }

  // Changes the rows of each logical rank, when all rows are complete.
  void change(Ring& r) const noexcept;

  // Returns the exception being handled, with the data set and the sample in its message.
  [[nodiscard]] std::exception_ptr explain(std::int64_t index) const noexcept;

  void work();

  AnyDataset dataset_;
  std::shared_ptr<const Schema> schema_;  // of the batches
  std::vector<std::shared_ptr<const Schema>> later_schemas_;
  LoaderOptions options_;
  Sampler sampler_;
  std::size_t row_bytes_, rows_ = 0;
  std::vector<Ring> ring_;
  std::mutex mutex_;
  std::condition_variable consumer_, workers_wake_;
  Position position_;
  std::vector<Position> added_;  // of assigned steps that are not opened yet
  std::int64_t opened_ = 0, row_ = 0, next_ = 0, released_ = 0;
  int busy_ = 0, sleeping_ = 0;
  bool running_ = false, stop_ = false, exhausted_ = false, holds_ = false, assigned_ = false;
  std::atomic<bool> cancel_{false};
  double waited_ = 0;
  std::int64_t skipped_ = 0;
  std::vector<std::string> skip_messages_;
  std::vector<std::thread> workers_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/data/loader_definitions.hpp>
#endif
