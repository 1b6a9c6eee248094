// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/loader.hpp>

// Definitions of Loader's functions.
namespace tutti {

TUTTI_CORE_FUNCTION Loader::Loader(AnyDataset dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      sampler_(Loader::sampler()),
      row_bytes_(static_cast<std::size_t>(dataset_.schema().image_bytes())) {
  if (options_.threads < 0 || options_.threads > 1024)
    fail<UsageError>("loader", "0 to 1024 threads", options_.threads);
  if (options_.slots < 1 || options_.slots > 1024) fail<UsageError>("loader", "1 to 1024 slots", options_.slots);
  if (options_.group < 1) fail<UsageError>("loader", "groups of 1 or more", options_.group);
  check_later();
  const auto schema_of = [&](const AnyDataset& images) {
    check(options_.col_out, images.schema());
    return std::make_shared<const Schema>(smaller(options_.col_out, images.schema()));
  };
  schema_ = schema_of(dataset_);
  for (const LaterImages& later : options_.later) {
    later_schemas_.push_back(schema_of(later.images));
    row_bytes_ = std::max(row_bytes_, static_cast<std::size_t>(later.images.schema().image_bytes()));
  }
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

TUTTI_CORE_FUNCTION void Loader::check_later() const {
  std::int64_t before = 0;
  for (const LaterImages& later : options_.later) {
    const Schema &first = dataset_.schema(), &s = later.images.schema();
    if (later.epoch <= before) fail<UsageError>("loader", {"a later epoch than ", before}, later.epoch);
    before = later.epoch;
    if (later.images.size() != dataset_.size() || s.channels != first.channels || s.classes != first.classes)
      fail<UsageError>("loader", {"images of other sizes of ", first.name}, s.name);
  }
}

TUTTI_CORE_FUNCTION void Loader::begin(Position p, const Placement& placement, bool assigned) {
  placement.check();
  sampler_.check(p);
  if (holds_ && options_.before_reuse) options_.before_reuse();
  std::unique_lock lock(mutex_);
  running_ = false;
  cancel_.store(true, std::memory_order_relaxed);
  consumer_.wait(lock, [&] { return busy_ == 0; });
  cancel_.store(false, std::memory_order_relaxed);
  holds_ = exhausted_ = false;
  opened_ = next_ = released_ = row_ = 0;
  position_ = p;
  assigned_ = assigned;
  added_.clear();
  options_.placement = placement;
  reserve();
  running_ = true;
  workers_wake_.notify_all();
}

TUTTI_CORE_FUNCTION void Loader::add(Position p) {
  sampler_.check(p);
  const std::lock_guard lock(mutex_);
  added_.push_back(p);
  if (sleeping_ > 0) workers_wake_.notify_all();
}

TUTTI_CORE_FUNCTION const Batch& Loader::next() {
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
  if (!slot.bad.empty()) {
    if (!changes()) fill_skipped(slot);
    record_skipped(slot);
  }
  ++next_;
  holds_ = true;
  return slot.batch;
}

TUTTI_CORE_FUNCTION void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    cancel_.store(true, std::memory_order_relaxed);
    workers_wake_.notify_all();
  }
  for (auto& w : workers_) w.join();
}

TUTTI_CORE_FUNCTION void Loader::reserve() {
  options_.placement.check();
  const Placement& p = options_.placement;
  const std::int64_t most = step_count({}, sampler_.size(), p.global_batch, p.epoch_end);
  const auto rows = static_cast<std::size_t>(p.most_rows(most));
  if (rows <= rows_) return;
  for (Ring& r : ring_) {
    r.memory = options_.allocate ? options_.allocate(rows * row_bytes_) : aligned(rows * row_bytes_);
    r.images = static_cast<std::uint8_t*>(r.memory.get());
    r.labels.resize(rows);
    if (options_.mix) r.mixed.resize(rows);
    r.indices.resize(rows);
    if (p.epoch_end == EpochEnd::run_on) r.epochs.reserve(rows);
  }
  rows_ = rows;
}

TUTTI_CORE_FUNCTION void Loader::open() {
  if (assigned_) {
    position_ = added_.front();
    added_.erase(added_.begin());
  }
  const Share share = sampler_.share(position_, options_.placement);
  Ring& r = ring_[static_cast<std::size_t>(opened_ % options_.slots)];
  const std::size_t n = share.indices.size();
  std::copy(share.indices.begin(), share.indices.end(), r.indices.begin());
  r.error = nullptr;
  r.bad.clear();
  r.pending = static_cast<std::int64_t>(n);
  r.batch = batch_at(position_, share, sampler_.size(), options_.placement);
  r.batch.schema = schema_;
  r.images_from = &dataset_;
  for (std::size_t i = 0; i < options_.later.size() && options_.later[i].epoch <= position_.epoch; ++i) {
    r.batch.schema = later_schemas_[i];
    r.images_from = &options_.later[i].images;
  }
  r.row_bytes = static_cast<std::size_t>(r.images_from->schema().image_bytes());
  r.at = position_;
  r.epochs.assign(share.epochs.begin(), share.epochs.end());
  r.batch.epochs = span_of(r.epochs);
  r.batch.images = {r.images, n * static_cast<std::size_t>(r.batch.schema->image_bytes())};
  r.batch.labels = {r.labels.data(), n};
  r.batch.mixed = {r.mixed.data(), options_.mix ? n : 0};
  r.batch.indices = {r.indices.data(), n};
  position_ = r.batch.after;
  exhausted_ = options_.one_pass && r.batch.last_of_epoch;
  row_ = 0;
  ++opened_;
}

TUTTI_CORE_FUNCTION void Loader::run_one(std::unique_lock<std::mutex>& lock) {
  if (!rows_left()) open();
  Ring& r = last_opened();
  const std::int64_t begin = row_, end = std::min(begin + options_.group, r.batch.count);
  row_ = end;
  ++busy_;
  lock.unlock();
  const Span span(Lane::data, "images", {}, end - begin, detail_watcher);
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
  for (Bad& b : bad) r.bad.push_back(std::move(b));
  if (error && (!r.error || row < r.error_row)) {
    r.error = error;
    r.error_row = row;
  }
  r.pending -= end - begin;
  if (r.pending == 0 && changes()) {
    r.pending = 1;
    lock.unlock();
    change(r);
    lock.lock();
    r.pending = 0;
  }
  --busy_;
  if (r.pending == 0 || (busy_ == 0 && !running_)) consumer_.notify_one();
}

TUTTI_CORE_FUNCTION void Loader::read(Ring& r, std::size_t row) const {
  const std::int64_t index = r.indices[row];
  Rng rng(options_.seed, Purpose::augment, static_cast<std::uint64_t>(r.batch.epoch_of(row)),
          static_cast<std::uint64_t>(index));
  r.images_from->read(index, rng, Sample{{r.images + row * r.row_bytes, r.row_bytes}, r.labels[row]});
}

TUTTI_CORE_FUNCTION bool Loader::skip(std::exception_ptr& error, std::int64_t row, std::vector<Bad>& bad) {
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

TUTTI_CORE_FUNCTION void Loader::fill_skipped(Ring& r) const {
  // Insertion sort: there are few rows, and they are nearly sorted.
  for (std::size_t i = 1; i < r.bad.size(); ++i)
    for (std::size_t j = i; j > 0 && r.bad[j].row < r.bad[j - 1].row; --j) std::swap(r.bad[j], r.bad[j - 1]);
  const auto n = static_cast<std::size_t>(r.batch.count);
  std::size_t first_good = 0;
  while (first_good < r.bad.size() && r.bad[first_good].row == static_cast<std::int64_t>(first_good)) ++first_good;
  // From the last row to the first, so that the row after a bad one is good or already filled.
  for (std::size_t i = r.bad.size(); i-- > 0;) {
    const auto row = static_cast<std::size_t>(r.bad[i].row), from = row + 1 < n ? row + 1 : first_good;
    r.labels[row] = ignored_label;
    if (first_good == n)
      std::fill_n(r.images + row * r.row_bytes, r.row_bytes, std::uint8_t{0});
    else
      std::copy_n(r.images + from * r.row_bytes, r.row_bytes, r.images + row * r.row_bytes);
  }
}

TUTTI_CORE_FUNCTION void Loader::record_skipped(Ring& r) {
  r.batch.skipped = static_cast<std::int64_t>(r.bad.size());
  skipped_ += r.batch.skipped;
  for (std::size_t i = 0; i < std::min(r.bad.size(), messages_per_batch); ++i)
    if (skip_messages_.size() < most_messages) skip_messages_.push_back(std::move(r.bad[i].message));
  r.bad.clear();
}

TUTTI_CORE_FUNCTION void Loader::change(Ring& r) const noexcept {
  if (r.error) return;
  try {
    if (!r.bad.empty()) fill_skipped(r);
    const auto n = static_cast<std::size_t>(r.batch.count);
    if (options_.mix)
      for (std::size_t row = 0; row < n; ++row) r.mixed[row] = {r.labels[row], r.labels[row], 1};
    const Schema& stored = r.images_from->schema();
    const auto smaller_bytes = static_cast<std::size_t>(r.batch.schema->image_bytes());
    const Placement& p = options_.placement;
    const Part ranks = p.logical();
    const std::int64_t total = r.batch.global_count, first = p.rows(total).begin;
    // A position in the run belongs to one step only, also if the global batch changes.
    const auto step = static_cast<std::uint64_t>(r.at.epoch * sampler_.size() + r.at.consumed);
    for (std::int64_t v = ranks.begin; v < ranks.begin + ranks.count; ++v) {
      const Part of = p.rows_of(v, total);
      if (of.count == 0) continue;
      const auto begin = static_cast<std::size_t>(of.begin - first), count = static_cast<std::size_t>(of.count);
      RankRows rows{{r.images + begin * r.row_bytes, count * r.row_bytes},
                    {r.mixed.data() + begin, options_.mix ? count : 0},
                    stored,
                    batch_rng(options_.seed, Purpose::mixing, step, static_cast<std::uint64_t>(v))};
      if (options_.mix) options_.mix(rows);
      if (!options_.col_out.any()) continue;
      // The smaller images lie one after another from the first row of the slot on.
      draw_col_out(options_.col_out, stored, rows.rng, r.kept);
      for (std::size_t row = begin; row < begin + count; ++row)
        leave_out(r.kept, stored, r.images + row * r.row_bytes, r.images + row * smaller_bytes);
    }
  } catch (...) {
    r.error = std::current_exception();
  }
}

TUTTI_CORE_FUNCTION std::exception_ptr Loader::explain(std::int64_t index) const noexcept {
  try {
    const std::string where = concat({"[loader] sample ", index, " of ", dataset_.schema().name, ": "});
    try {
      throw;
    } catch (const DataError& e) {
      std::string message = where + e.what();
      if (!options_.skip_bad_records && !options_.bad_record_hint.empty())
        message +=
            concat({message.find(" hint: ") == std::string::npos ? " hint: " : " ", options_.bad_record_hint, "."});
      throw DataError(message);
    } catch (const Error& e) {
      throw Error(where + e.what(), static_cast<ExitCode>(e.exit_code()));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(where + e.what());
    } catch (...) {
      throw Error(where + "an exception that is not a std::exception");
    }
  } catch (...) {
    return std::current_exception();
  }
}

TUTTI_CORE_FUNCTION void Loader::work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (running_ && claimable()) {
      run_one(lock);
    } else {
      ++sleeping_;
      const Span span(Lane::data, "wait", {}, -1, detail_watcher);
      workers_wake_.wait(lock);
      --sleeping_;
    }
  }
}

}  // namespace tutti
