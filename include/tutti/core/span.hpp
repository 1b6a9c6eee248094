// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace tutti {

// The activity that a thread spent a period of time on.
enum class Lane : std::uint8_t { step, compute, communication, data, evaluation, checkpoint, membership };

// Receives what the threads of this process do, and when (io/trace/trace_recorder.hpp). Lives until the process ends.
class SpanWatcher {
 public:
  virtual ~SpanWatcher() = default;
  // Starts a span of the calling thread; the thread's spans end in the opposite order. number: the step, or the number
  // of rows, images or bytes; -1: no number.
  virtual void begin(Lane lane, std::string_view what, std::string_view name, std::int64_t number) noexcept = 0;
  virtual void end() noexcept = 0;
  // Reports a finished span that belonged to no single thread, with its duration in nanoseconds.
  virtual void over(Lane lane, std::string_view name, std::int64_t number, std::int64_t nanoseconds) noexcept = 0;
  // From now on `front` receives the calls in place of this watcher and forwards them.
  virtual void stand_behind(SpanWatcher& front) noexcept = 0;
};

// Null if there is no watcher. Layers and images, of which a step has thousands, have a separate watcher.
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
  // Out of line, so that code without a watcher stays small.
  [[gnu::cold, gnu::noinline]] void begin(Lane lane, std::string_view what, std::string_view name,
                                          std::int64_t number) noexcept {
    watcher_->begin(lane, what, name, number);
  }
  [[gnu::cold, gnu::noinline]] void end() noexcept { watcher_->end(); }

  SpanWatcher* watcher_;
};

}  // namespace tutti
