// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace tutti {

// The activity on which a thread spent a period of time.
enum class Lane : std::uint8_t { step, compute, communication, data, evaluation, checkpoint, membership };

// Receives what the threads of this process do, and when (io/trace/trace_recorder.hpp). Exists until the process ends.
class SpanWatcher {
 public:
  virtual ~SpanWatcher() = default;
  // Starts a span of the calling thread. Of the thread's open spans, the last one ends first. number: the step, or the
  // number of rows, images or bytes; -1: no number.
  virtual void begin(Lane lane, std::string_view what, std::string_view name, std::int64_t number) noexcept = 0;
  virtual void end() noexcept = 0;
  // Reports a finished span that belongs to no single thread, with its duration in nanoseconds.
  virtual void over(Lane lane, std::string_view name, std::int64_t number, std::int64_t nanoseconds) noexcept = 0;
  // From now on `front` receives the calls in place of this watcher and forwards them.
  virtual void stand_behind(SpanWatcher& front) noexcept = 0;
};

// Null if there is no watcher. detail_watcher is for layers and images, of which a step has thousands.
inline constinit std::atomic<SpanWatcher*> span_watcher{nullptr}, detail_watcher{nullptr};

// Reports what this thread does until the end of the scope. Costs a load and a branch if there is no watcher.
class Span {
 public:
  explicit Span(Lane lane, std::string_view what, std::string_view name = {}, std::int64_t number = -1,
                const std::atomic<SpanWatcher*>& watcher = span_watcher) noexcept
      : watcher_(watcher.load(std::memory_order_acquire)) {
    if (watcher_ != nullptr) [[unlikely]]
      begin(lane, what, name, number);
  }
  ~Span() {
    if (watcher_ != nullptr) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  // Not inlined, so that code without a watcher stays small.
  [[gnu::cold, gnu::noinline]] void begin(Lane lane, std::string_view what, std::string_view name,
                                          std::int64_t number) noexcept {
    watcher_->begin(lane, what, name, number);
  }
  [[gnu::cold, gnu::noinline]] void end() noexcept { watcher_->end(); }

  SpanWatcher* watcher_;
};

}  // namespace tutti
