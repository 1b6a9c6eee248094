// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/span.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json_write.hpp>
#include <tutti/io/trace/trace_event.hpp>

namespace tutti::io {

struct TraceOptions {  // Options of a recorder.
  Path file;
  std::int64_t process = 0;      // number of the process in the timeline: its rank
  std::string name = "process";  // name in the timeline
  std::string job{};             // the files of one job are merged (trace_merge.hpp)
  // The steps in which layers and images are recorded. 0: the first ten steps of this process.
  std::int64_t first_step = 0, last_step = 0;
  // The largest number of layers and images over all steps, and of other spans.
  std::int64_t most_details = 40'000, most_spans = 40'000;
  std::function<void(const std::string&)> complain{};
};

// The clocks of this host. All processes of the host have the same steady clock; `ahead` is the time of day minus this
// clock.
struct TraceClock {
  std::string boot;        // identity of the host since its last start
  std::int64_t ahead = 0;  // microseconds
  [[nodiscard]] static TraceClock now() {
    TraceClock c;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> c.boot;
    using std::chrono::duration_cast, std::chrono::microseconds;
    c.ahead = duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count() -
              duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    return c;
  }
};

// Writes the spans of this process to a file, as a timeline in Chrome's trace format. Each thread stores its own spans,
// and a thread of the recorder writes them several times a second. So memory is bounded, and a killed process loses
// only the last moments. Layers and images are recorded in a window of steps, other spans in the whole run, up to the
// limits of the options. The limit for evaluations, checkpoints and membership changes is twice as high.
class TraceRecorder final : public SpanWatcher {
 public:
  // Starts recording until close(). The recorder is never destroyed, because a thread may be in the middle of a span.
  // Throws FileError if the file cannot be written.
  static TraceRecorder& start(TraceOptions options) {
    static auto* const all = new std::vector<std::unique_ptr<TraceRecorder>>;
    all->push_back(std::unique_ptr<TraceRecorder>(new TraceRecorder(std::move(options))));
    return *all->back();
  }

  void begin(Lane lane, std::string_view what, std::string_view name, std::int64_t number) noexcept override {
    if (lane == Lane::step && what == "step") begin_step(number);
    if (lane == Lane::evaluation) watch_details(false);
    Thread& t = here();
    if (t.depth++ >= t.open.size()) return;
    TraceSpan& s = t.open[t.depth - 1];
    s.lane = lane;
    s.number = number;
    s.set_name(what, name);
    s.begin = clock();
  }
  void end() noexcept override {
    const std::int64_t now = clock();
    Thread& t = here();
    if (t.depth == 0 || --t.depth >= t.open.size()) return;
    t.open[t.depth].nanoseconds = now - t.open[t.depth].begin;
    keep(t, t.open[t.depth]);
  }
  void over(Lane lane, std::string_view name, std::int64_t number, std::int64_t nanoseconds) noexcept override {
    TraceSpan s;
    s.begin = clock() - nanoseconds;
    s.nanoseconds = nanoseconds;
    s.number = number;
    s.lane = lane;
    s.shared = true;
    s.set_name(name, {});
    keep(here(), s);
  }

  // Writes all finished spans. If the file cannot be written, no more spans are recorded.
  void flush() noexcept {
    const std::lock_guard lock(file_mutex_);
    write_all();
  }
  // Ends the file. No more spans are recorded, and other processes may merge it.
  void close() noexcept {
    if (closed_.exchange(true)) return;
    leave();
    {
      const std::lock_guard lock(wake_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    writer_.join();
    const std::lock_guard lock(file_mutex_);
    write_all();
    write("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + std::to_string(o_.process) +
          ",\"args\":{\"sort_index\":" + std::to_string(o_.process) + "}}\n]\n");
    file_ = Descriptor();
  }

  // Returns the last step in which layers and images were recorded if --trace-steps requested more; 0 if all requested
  // steps were recorded.
  [[nodiscard]] std::int64_t details_end_at() const noexcept { return cut_.load(); }
  // Returns the number of spans that were not recorded because there were too many.
  [[nodiscard]] std::int64_t lost() const noexcept { return lost_.load(); }
  [[nodiscard]] const TraceOptions& options() const noexcept { return o_; }

  void stand_behind(SpanWatcher& front) noexcept override {
    front_ = &front;
    span_watcher.store(&front);
    detail_watcher.store(&front);
  }

 private:
  static constexpr std::size_t most_kept = std::size_t{1} << 16;  // spans of a thread that are not yet written
  static constexpr std::size_t lanes = 7;

  struct Thread {
    std::mutex mutex;
    std::vector<TraceSpan> spans;
    std::array<int, lanes> row{-1, -1, -1, -1, -1, -1, -1};
    // only the thread itself uses these two members
    std::size_t depth = 0;
    std::array<TraceSpan, 24> open;
  };

  explicit TraceRecorder(TraceOptions options) : o_(std::move(options)) {
    file_ = Descriptor::open(o_.file, O_WRONLY | O_CREAT | O_APPEND, "write");
    // Locks the file until this process ends. The system removes the lock, even if the process is killed.
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
      fail<UsageError>("--trace", "a file that no other process writes to", o_.file.native());
    if (::ftruncate(file_.get(), 0) != 0) fail_file("empty", o_.file, errno);
    const TraceClock clock = TraceClock::now();
    const Json about = Json::object(
        {{"ph", "M"},
         {"name", "process_name"},
         {"pid", o_.process},
         {"args",
          Json::object({{"name", o_.name}, {"job", o_.job}, {"boot", clock.boot}, {"clock_ahead", clock.ahead}})}});
    detail::write_fully(file_.get(), bytes_of("[\n" + write_json(about) + ",\n"), o_.file);
    details_ = o_.first_step <= 1;
    writer_ = start_thread("trace", [this] { serve(); });
    span_watcher.store(this);
    if (details_) detail_watcher.store(this);
  }

  [[nodiscard]] static std::int64_t clock() noexcept {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  [[nodiscard]] static std::span<const std::byte> bytes_of(std::string_view s) {
    return std::as_bytes(std::span(s.data(), s.size()));
  }
  [[nodiscard]] static bool is_detail(Lane lane) noexcept { return lane == Lane::compute || lane == Lane::data; }

  Thread& here() noexcept {
    thread_local TraceRecorder* of = nullptr;
    thread_local Thread* mine = nullptr;
    if (of != this) {
      const std::lock_guard lock(threads_mutex_);
      mine = threads_.emplace_back(std::make_unique<Thread>()).get();
      of = this;
    }
    return *mine;
  }

  void keep(Thread& t, const TraceSpan& s) noexcept {
    if (closed_.load(std::memory_order_relaxed)) return;
    // The watcher in front of this one receives the details of all steps, so this one filters them.
    if (is_detail(s.lane) && front_ != this && !details_) return;
    const bool rare = s.lane == Lane::evaluation || s.lane == Lane::checkpoint || s.lane == Lane::membership;
    const std::int64_t before = is_detail(s.lane) ? details_kept_.fetch_add(1, std::memory_order_relaxed)
                                                  : spans_kept_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(t.mutex);
    if (t.spans.size() >= most_kept || (!is_detail(s.lane) && before >= (rare ? 2 : 1) * o_.most_spans)) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    t.spans.push_back(s);
  }

  // ---- the window of steps; the thread that trains calls these functions ----
  void begin_step(std::int64_t step) noexcept {
    if (first_ == 0) first_ = o_.first_step > 0 ? o_.first_step : step;
    const std::int64_t last = o_.last_step > 0 ? o_.last_step : first_ + 9;
    const std::int64_t so_far = details_kept_.load(std::memory_order_relaxed);
    most_of_step_ = std::max(most_of_step_, so_far - before_step_);
    before_step_ = so_far;
    bool wanted = step >= first_ && step <= last;
    if (wanted && (cut_ != 0 || (step > first_ && so_far + most_of_step_ > o_.most_details))) {
      if (cut_ == 0) cut_ = step - 1;
      wanted = false;
    }
    watch_details(wanted);
  }
  void watch_details(bool on) noexcept {
    if (closed_ || details_.exchange(on) == on) return;
    if (front_ == this) detail_watcher.store(on ? this : nullptr);
  }

  // ---- the thread that writes the file ----
  void serve() noexcept {
    std::unique_lock lock(wake_mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(200), [&] { return stop_; })) {
      lock.unlock();
      flush();
      lock.lock();
    }
  }
  void write_all() noexcept {
    try {
      std::vector<Thread*> threads;
      {
        const std::lock_guard lock(threads_mutex_);
        for (const auto& t : threads_) threads.push_back(t.get());
      }
      for (Thread* const t : threads) {
        taken_.clear();
        {
          const std::lock_guard lock(t->mutex);
          taken_.swap(t->spans);
        }
        std::string text;
        for (TraceSpan& s : taken_) {
          s.row = row_of(*t, s.lane, text);
          append_trace_span(text, s, o_.process, ++shared_);
        }
        write(text);
      }
    } catch (const std::exception& e) {
      give_up(e.what());
    }
  }
  // Returns the row of this thread in this lane. Writes the name of a new row to the file.
  std::uint8_t row_of(Thread& t, Lane lane, std::string& text) {
    const auto i = static_cast<std::size_t>(lane);
    if (t.row[i] >= 0) return static_cast<std::uint8_t>(t.row[i]);
    t.row[i] = std::min(rows_[i]++, 255);
    const int id = trace_row(lane, t.row[i]);
    std::string name(name_of(lane));
    if (lane == Lane::compute || lane == Lane::data || t.row[i] > 0) name += " " + std::to_string(t.row[i]);
    for (const auto& [what, args] : {std::pair{"thread_name", Json::object({{"name", name}})},
                                     {"thread_sort_index", Json::object({{"sort_index", id}})}})
      text +=
          write_json(Json::object({{"ph", "M"}, {"name", what}, {"pid", o_.process}, {"tid", id}, {"args", args}})) +
          ",\n";
    return static_cast<std::uint8_t>(t.row[i]);
  }
  // Stops watching. The watcher in front of this one continues without it.
  void leave() noexcept {
    if (front_ != this) return;
    span_watcher.store(nullptr);
    detail_watcher.store(nullptr);
  }
  void write(const std::string& text) noexcept {
    if (failed_ || text.empty()) return;
    try {
      detail::write_fully(file_.get(), bytes_of(text), o_.file);
    } catch (const std::exception& e) {
      give_up(e.what());
    }
  }
  void give_up(const char* why) noexcept {
    if (std::exchange(failed_, true)) return;
    leave();
    try {
      if (o_.complain) o_.complain("the timeline ends here: " + std::string(why) + " Training continues.");
    } catch (...) {  // no code could handle an error of the callback
    }
  }

  TraceOptions o_;
  Descriptor file_;
  std::atomic<SpanWatcher*> front_{this};  // the watcher that is called first, and calls this one
  std::mutex threads_mutex_, file_mutex_, wake_mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::array<int, lanes> rows_{};
  std::vector<TraceSpan> taken_;
  std::uint64_t shared_ = 0;
  bool failed_ = false, stop_ = false;
  std::atomic<bool> closed_{false}, details_{false};
  std::atomic<std::int64_t> details_kept_{0}, spans_kept_{0}, lost_{0}, cut_{0};
  std::int64_t first_ = 0, before_step_ = 0, most_of_step_ = 0;
  std::condition_variable wake_;
  std::thread writer_;
};

}  // namespace tutti::io
