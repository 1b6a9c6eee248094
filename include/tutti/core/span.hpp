// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace tutti {

// What a stretch of time on a thread was spent on.
enum class Lane : std::uint8_t { step, compute, communication, data, evaluation, checkpoint, membership };

// Is told what the threads of this process do, and when (io/trace_recorder.hpp). Lives until the process ends.
class SpanWatcher {
 public:
  virtual ~SpanWatcher() = default;
  // A span of the calling thread begins; the thread's spans end in the opposite order. number: the step, or how many
  // rows, images or bytes it is about; -1: none.
  virtual void begin(Lane lane, std::string_view what, std::string_view name, std::int64_t number) noexcept = 0;
  virtual void end() noexcept = 0;
  // The nanoseconds of a span that is over and was no thread's alone.
  virtual void over(Lane lane, std::string_view name, std::int64_t number, std::int64_t nanoseconds) noexcept = 0;
  // From now on `front` is told in its place, and passes on what it hears.
  virtual void stand_behind(SpanWatcher& front) noexcept = 0;
};

// Null: nobody watches. Layers and images, of which a step has thousands, have a watcher of their own.
inline constinit std::atomic<SpanWatcher*> span_watcher{nullptr}, detail_watcher{nullptr};

// What this thread does until the end of the scope. Costs a load and a branch where nobody watches.
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
  // Away from what runs where nobody watches.
  [[gnu::cold, gnu::noinline]] void begin(Lane lane, std::string_view what, std::string_view name,
                                          std::int64_t number) noexcept {
    watcher_->begin(lane, what, name, number);
  }
  [[gnu::cold, gnu::noinline]] void end() noexcept { watcher_->end(); }

  SpanWatcher* watcher_;
};

}  // namespace tutti
