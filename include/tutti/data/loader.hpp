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
#include <tutti/core/rng.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti {

// The label of a sample that could not be read: no class. Such a row adds nothing to loss, gradient or hits.
inline constexpr std::int32_t skipped_label = -1;

// This rank's part of one step. `count` may be 0 in the short last step of an epoch.
struct Batch {
  std::span<const std::uint8_t> images;   // [count, height, width, channels], starts at a multiple of 64 bytes
  std::span<const std::int32_t> labels;   // [count]
  std::span<const std::int64_t> indices;  // [count], in the data set
  std::int64_t count = 0;
  std::int64_t global_count = 0;  // of all ranks together, skipped ones included
  // Of the `count` samples, those that could not be read (LoaderOptions::skip_bad_records): their label is
  // skipped_label. Known to this rank only; who wants the mean over the samples that were read sums it over the ranks.
  std::int64_t skipped = 0;
  std::int64_t epoch = 0;          // from 0
  std::int64_t step_in_epoch = 0;  // from 0; in steps of the present global batch
  bool last_of_epoch = false;
  Position after;  // where to go on once this step is committed
};

struct LoaderOptions {
  Placement placement;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool one_pass = false;    // stop after the epoch that start() began in, as evaluation does
  int threads = 1;          // of the loader's own; 0 reads in next()
  int slots = 4;            // batches in the ring
  std::int64_t group = 16;  // samples that a thread takes at a time
  // What read() throws as DataError: false, next() throws it; true, the sample keeps its place with the label
  // skipped_label and the next readable image of this rank's part of the batch, so that batch norm sees a real one
  // (zeros if there is none). Batches stay the same for any number of threads.
  bool skip_bad_records = false;
  // Memory for the images of one slot, aligned to 64 bytes or more; a backend may hand in pinned memory.
  std::function<std::shared_ptr<void>(std::size_t bytes)> allocate{};
};

// Reads batches ahead of the consumer. Several threads fill one batch, a few samples at a time; a sample's random
// numbers are Rng(seed, Purpose::augment, epoch, index), so batches do not depend on the number of threads or ranks.
// After the first start() nothing is allocated until the batch grows. All calls come from one thread.
class Loader {
 public:
  explicit Loader(AnyDataset dataset, LoaderOptions options = {})
      : dataset_(std::move(dataset)),
        options_(std::move(options)),
        sampler_(dataset_.size(), options_.seed, options_.shuffle, dataset_.schema().block),
        row_bytes_(static_cast<std::size_t>(dataset_.schema().image_bytes())) {
    if (options_.threads < 0 || options_.threads > 1024)
      fail<UsageError>("loader", "0 to 1024 threads", std::to_string(options_.threads));
    if (options_.slots < 1 || options_.slots > 1024)
      fail<UsageError>("loader", "1 to 1024 slots", std::to_string(options_.slots));
    if (options_.group < 1) fail<UsageError>("loader", "groups of 1 or more", std::to_string(options_.group));
    ring_.resize(static_cast<std::size_t>(options_.slots));
    reserve();
    workers_.reserve(static_cast<std::size_t>(options_.threads));
    try {
      for (int i = 0; i < options_.threads; ++i) workers_.push_back(start_thread("loader", [this] { work(); }));
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Loader() { stop(); }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins (again) at p, with the present placement or another; what was read ahead is dropped.
  void start(Position p) { start(p, options_.placement); }
  void start(Position p, const Placement& placement) {
    placement.check();
    sampler_.check(p);
    std::unique_lock lock(mutex_);
    running_ = false;
    cancel_.store(true, std::memory_order_relaxed);
    consumer_.wait(lock, [&] { return busy_ == 0; });
    cancel_.store(false, std::memory_order_relaxed);
    holds_ = exhausted_ = false;
    opened_ = next_ = released_ = row_ = 0;
    position_ = p;
    options_.placement = placement;
    reserve();
    running_ = true;
    workers_wake_.notify_all();
  }

  // The next batch, valid until the following call of next(), release() or start(). Begins at {0, 0} if start() was
  // never called. Throws what read() threw, with the data set's name and the index, again and again until start().
  const Batch& next() {
    if (!running_) start({});
    release();
    std::unique_lock lock(mutex_);
    Ring& slot = ring_[static_cast<std::size_t>(next_ % options_.slots)];
    const auto ready = [&] { return next_ < opened_ && slot.pending == 0; };
    if (!ready()) {
      const Stopwatch watch;
      if (workers_.empty()) {
        while (!ready() && claimable()) run_one(lock);
      } else {
        consumer_.wait(lock, [&] { return ready() || (next_ == opened_ && exhausted_); });
      }
      waited_ += watch.seconds();
    }
    if (!ready()) fail<UsageError>("loader", "start() after the last batch of a pass", "next()");
    if (slot.error) std::rethrow_exception(slot.error);
    if (!slot.bad.empty()) fill_skipped(slot);
    ++next_;
    holds_ = true;
    return slot.batch;
  }

  // Gives the batch of the last next() back, so that its slot can be filled again.
  void release() {
    if (!holds_) return;
    holds_ = false;
    const std::lock_guard lock(mutex_);
    ++released_;
    if (sleeping_ > 0) workers_wake_.notify_all();
  }

  // Samples skipped in the batches that next() has given out, in all.
  [[nodiscard]] std::int64_t skipped() const noexcept { return skipped_; }
  // What was wrong with them, in the order of the batches, since the last call: up to 8 messages a batch, 64 in all.
  [[nodiscard]] std::vector<std::string> take_skip_messages() { return std::exchange(skip_messages_, {}); }

  // Seconds that next() has waited for data (with no threads: read it), in all.
  [[nodiscard]] double seconds_waited() const noexcept { return waited_; }
  [[nodiscard]] std::int64_t steps_per_epoch() const noexcept {
    return tutti::steps_per_epoch(sampler_.size(), options_.placement.global_batch);
  }
  [[nodiscard]] const AnyDataset& dataset() const noexcept { return dataset_; }
  [[nodiscard]] const LoaderOptions& options() const noexcept { return options_; }

 private:
  static constexpr std::size_t most_messages = 64, messages_per_batch = 8;

  // A row that could not be read.
  struct Bad {
    std::int64_t row = 0;
    std::string message;
  };
  // Sequence numbers count batches since start(); batch s lives in slot s % slots. opened_ batches have been handed out
  // to the threads, of the last one the rows below row_; next_ have been given to the consumer, released_ came back.
  struct Ring {
    std::shared_ptr<void> memory;
    std::uint8_t* images = nullptr;
    std::vector<std::int32_t> labels;
    std::vector<std::int64_t> indices;
    Batch batch;
    std::int64_t pending = 0;  // rows not read yet
    std::exception_ptr error;
    std::int64_t error_row = 0;
    std::vector<Bad> bad;
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      cancel_.store(true, std::memory_order_relaxed);
      workers_wake_.notify_all();
    }
    for (auto& w : workers_) w.join();
  }

  // Room for the largest share that this rank can get.
  void reserve() {
    options_.placement.check();
    const Placement& p = options_.placement;
    const auto rows = static_cast<std::size_t>(part_of(std::min(p.global_batch, sampler_.size()), 0, p.world).count);
    if (rows <= rows_) return;
    for (Ring& r : ring_) {
      r.memory = options_.allocate ? options_.allocate(rows * row_bytes_) : aligned(rows * row_bytes_);
      r.images = static_cast<std::uint8_t*>(r.memory.get());
      r.labels.resize(rows);
      r.indices.resize(rows);
    }
    rows_ = rows;
  }

  static std::shared_ptr<void> aligned(std::size_t bytes) {
    void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == nullptr) throw std::bad_alloc();
    return {p, [](void* q) { std::free(q); }};
  }

  [[nodiscard]] Ring& last_opened() { return ring_[static_cast<std::size_t>((opened_ - 1) % options_.slots)]; }
  [[nodiscard]] bool rows_left() { return opened_ > 0 && row_ < last_opened().batch.count; }
  [[nodiscard]] bool claimable() { return rows_left() || (!exhausted_ && opened_ < released_ + options_.slots); }

  // Decides what the next batch holds.
  void open() {
    const std::int64_t size = sampler_.size(), global_batch = options_.placement.global_batch;
    const Share share = sampler_.share(position_, options_.placement);
    Ring& r = ring_[static_cast<std::size_t>(opened_ % options_.slots)];
    const std::size_t n = share.indices.size();
    std::ranges::copy(share.indices, r.indices.begin());
    r.error = nullptr;
    r.bad.clear();
    r.pending = static_cast<std::int64_t>(n);
    const Position after = advance(position_, size, global_batch);
    r.batch = Batch{.images = {r.images, n * row_bytes_},
                    .labels = {r.labels.data(), n},
                    .indices = {r.indices.data(), n},
                    .count = r.pending,
                    .global_count = share.global_count,
                    .epoch = position_.epoch,
                    .step_in_epoch = tutti::steps_per_epoch(position_.consumed, global_batch),
                    .last_of_epoch = after.epoch != position_.epoch,
                    .after = after};
    position_ = after;
    exhausted_ = options_.one_pass && r.batch.last_of_epoch;
    row_ = 0;
    ++opened_;
  }

  // Claims a group of rows and reads them, without the lock meanwhile.
  void run_one(std::unique_lock<std::mutex>& lock) {
    if (!rows_left()) open();
    Ring& r = last_opened();
    const std::int64_t begin = row_, end = std::min(begin + options_.group, r.batch.count);
    row_ = end;
    ++busy_;
    lock.unlock();
    std::int64_t row = begin;
    std::exception_ptr error;
    std::vector<Bad> bad;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      try {
        for (; row < end && !cancel_.load(std::memory_order_relaxed); ++row) read(r, static_cast<std::size_t>(row));
      } catch (...) {
        error = explain(r.indices[static_cast<std::size_t>(row)]);
        goes_on = options_.skip_bad_records && skip(error, row, bad);
        if (goes_on) ++row;
      }
    }
    lock.lock();
    std::ranges::move(bad, std::back_inserter(r.bad));
    --busy_;
    if (error && (!r.error || row < r.error_row)) {
      r.error = error;
      r.error_row = row;
    }
    r.pending -= end - begin;
    if (r.pending == 0 || (busy_ == 0 && !running_)) consumer_.notify_one();
  }

  void read(Ring& r, std::size_t row) const {
    const std::int64_t index = r.indices[row];
    Rng rng(options_.seed, Purpose::augment, static_cast<std::uint64_t>(r.batch.epoch),
            static_cast<std::uint64_t>(index));
    dataset_.read(index, rng, Slot{{r.images + row * row_bytes_, row_bytes_}, r.labels[row]});
  }

  // Notes a DataError and forgets it; false for any other error.
  static bool skip(std::exception_ptr& error, std::int64_t row, std::vector<Bad>& bad) {
    try {
      std::rethrow_exception(error);
    } catch (const DataError& e) {
      bad.push_back({row, e.what()});
      error = nullptr;
      return true;
    } catch (...) {
      return false;
    }
  }

  // Gives the rows that could not be read their label and image, once all others are there.
  void fill_skipped(Ring& r) {
    std::ranges::sort(r.bad, {}, &Bad::row);
    const auto n = static_cast<std::size_t>(r.batch.count);
    std::size_t first_good = 0;
    while (first_good < r.bad.size() && r.bad[first_good].row == static_cast<std::int64_t>(first_good)) ++first_good;
    // From the last on, so that the row behind a bad one is good, or filled already.
    for (std::size_t i = r.bad.size(); i-- > 0;) {
      const auto row = static_cast<std::size_t>(r.bad[i].row), from = row + 1 < n ? row + 1 : first_good;
      r.labels[row] = skipped_label;
      if (first_good == n)
        std::fill_n(r.images + row * row_bytes_, row_bytes_, std::uint8_t{0});
      else
        std::copy_n(r.images + from * row_bytes_, row_bytes_, r.images + row * row_bytes_);
    }
    r.batch.skipped = static_cast<std::int64_t>(r.bad.size());
    skipped_ += r.batch.skipped;
    for (std::size_t i = 0; i < std::min(r.bad.size(), messages_per_batch); ++i)
      if (skip_messages_.size() < most_messages) skip_messages_.push_back(std::move(r.bad[i].message));
    r.bad.clear();
  }

  // The exception being handled, with the data set and the sample in its message.
  [[nodiscard]] std::exception_ptr explain(std::int64_t index) const noexcept {
    try {
      const std::string where = "[loader] sample " + std::to_string(index) + " of " + dataset_.schema().name + ": ";
      try {
        throw;
      } catch (const DataError& e) {
        throw DataError(where + e.what());
      } catch (const Error& e) {
        throw Error(where + e.what(), static_cast<ExitCode>(e.exit_code()));
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& e) {
        throw Error(where + e.what());
      } catch (...) {
        throw Error(where + "an exception that is no std::exception");
      }
    } catch (...) {
      return std::current_exception();
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (running_ && claimable()) {
        run_one(lock);
      } else {
        ++sleeping_;
        workers_wake_.wait(lock);
        --sleeping_;
      }
    }
  }

  AnyDataset dataset_;
  LoaderOptions options_;
  Sampler sampler_;
  std::size_t row_bytes_, rows_ = 0;
  std::vector<Ring> ring_;
  std::mutex mutex_;
  std::condition_variable consumer_, workers_wake_;
  Position position_;
  std::int64_t opened_ = 0, row_ = 0, next_ = 0, released_ = 0;
  int busy_ = 0, sleeping_ = 0;
  bool running_ = false, stop_ = false, exhausted_ = false, holds_ = false;
  std::atomic<bool> cancel_{false};
  double waited_ = 0;
  std::int64_t skipped_ = 0;
  std::vector<std::string> skip_messages_;
  std::vector<std::thread> workers_;
};

}  // namespace tutti
