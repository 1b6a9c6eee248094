// SPDX-License-Identifier: MIT
#include "tools/trainer/watched_source.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>

#include <tutti/train/progress.hpp>

namespace tutti::trainer {

void WatchedSource::start(Position p) {
  begin();
  source_->start(p);
}

void WatchedSource::start(Position p, const Placement& placement) {
  begin();
  source_->start(p, placement);
}

const Batch& WatchedSource::next() {
  say();
  const Batch& batch = source_->next();
  images_ += batch.global_count;
  return batch;
}

void WatchedSource::release() {
  clear();
  source_->release();
}

void WatchedSource::begin() {
  clear();
  images_ = 0;
  began_ = o_.clock();
  next_ = began_ + (o_.terminal ? o_.first : o_.interval);
}

void WatchedSource::say() {
  const double now = o_.clock();
  if (images_ == 0 || now < next_ || (o_.shows && !o_.shows())) return;
  next_ = now + (o_.terminal ? o_.interval_on_terminal : o_.interval);
  const auto done = static_cast<double>(images_), left = static_cast<double>(size() - images_);
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.1f", done / (now - began_));
  const std::string line = "evaluating: " + std::to_string(images_) + "/" + std::to_string(size()) + " images, " +
                           rate + " images/s, left " + format_duration(left * (now - began_) / done);
  o_.write(o_.terminal ? "\r" + line + "\x1b[K" : line + "\n");
  open_ = o_.terminal;
}

}  // namespace tutti::trainer
