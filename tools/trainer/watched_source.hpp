// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti::trainer {

// How a WatchedSource reports progress.
struct WatchOptions {
  std::function<bool()> shows{};  // called before each line; only rank 0 prints
  std::function<void(const std::string& text)> write = [](const std::string& text) {
    std::fputs(text.c_str(), stderr);
  };
  std::function<double()> clock = [watch = Stopwatch()] { return watch.seconds(); };  // seconds
  bool terminal = ::isatty(STDERR_FILENO) != 0;
  // first: seconds until the first line. interval_on_terminal, interval: seconds between two lines, on a terminal and
  // in a file. A shorter pass prints no line.
  double first = 3, interval_on_terminal = 0.5, interval = 30;
};

// The source of an evaluation. Reports progress on standard error, because an evaluation of many images takes minutes.
// On a terminal the line is overwritten, and removed at the end.
class WatchedSource final : public BatchSource {
 public:
  WatchedSource(std::unique_ptr<BatchSource> source, WatchOptions options)
      : source_(std::move(source)), o_(std::move(options)) {}

  void start(Position p) override;
  void start(Position p, const Placement& placement) override;
  void start_assigned(const Placement& placement) override { source_->start_assigned(placement); }
  void add(Position p) override { source_->add(p); }
  [[nodiscard]] int reads_ahead() const override { return source_->reads_ahead(); }
  [[nodiscard]] const Placement& placement() const override { return source_->placement(); }
  [[nodiscard]] Sampler sampler() const override { return source_->sampler(); }
  const Batch& next() override;
  void release() override;
  [[nodiscard]] std::int64_t skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::vector<std::string> take_skip_messages() override { return source_->take_skip_messages(); }
  [[nodiscard]] double seconds_waited() const override { return source_->seconds_waited(); }
  [[nodiscard]] std::shared_ptr<const Schema> schema() const override { return source_->schema(); }
  [[nodiscard]] std::int64_t size() const override { return source_->size(); }

 private:
  void begin();
  void clear() {
    if (std::exchange(open_, false)) o_.write("\r\x1b[K");
  }
  void say();

  std::unique_ptr<BatchSource> source_;
  WatchOptions o_;
  std::int64_t images_ = 0;
  double began_ = 0, next_ = 0;
  bool open_ = false;
};

}  // namespace tutti::trainer
