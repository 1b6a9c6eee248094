// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/io/append_file.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/protobuf.hpp>
#include <tutti/io/tfrecord.hpp>

namespace tutti::io {

// One value of a curve that TensorBoard shows under `tag`.
struct Scalar {
  std::string_view tag;
  float value;
};

// Returns the Event message (tensorflow/core/util/event.proto) that starts each event file.
[[nodiscard]] inline std::string encode_version_event(double wall_time) {
  std::string event;
  protobuf::append_double(event, 1, wall_time);
  protobuf::append_bytes(event, 3, "brain.Event:2");
  return event;
}

// Returns an Event message with one summary value for each scalar. `wall_time` in seconds since 1970.
[[nodiscard]] inline std::string encode_scalar_event(double wall_time, std::int64_t step,
                                                     std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& s : scalars) {
    std::string value;
    protobuf::append_bytes(value, 1, s.tag);
    protobuf::append_float(value, 2, s.value);
    protobuf::append_bytes(summary, 1, value);
  }
  std::string event;
  protobuf::append_double(event, 1, wall_time);
  protobuf::append_int(event, 2, step);
  protobuf::append_bytes(event, 5, summary);
  return event;
}

// Writes scalars to a new file in `folder` with a name that TensorBoard finds. Makes the folder. A resumed run writes
// another file next to the first one, and TensorBoard joins them. Each event is written immediately. Throws FileError
// if an event cannot be written; earlier events stay, and the caller may try again.
class EventWriter {
 public:
  explicit EventWriter(const Path& folder) : file_(create(folder)) { append(encode_version_event(now())); }

  void scalars(std::int64_t step, std::span<const Scalar> values) { append(encode_scalar_event(now(), step, values)); }
  void scalars(std::int64_t step, std::initializer_list<Scalar> values) {
    scalars(step, std::span(values.begin(), values.size()));
  }
  // Writes an Event message, for example one from io/tfevents_summary.hpp.
  void event(const std::string& message) { append(message); }
  void scalar(std::string_view tag, std::int64_t step, float value) { scalars(step, {{tag, value}}); }

  [[nodiscard]] const Path& path() const noexcept { return file_.path(); }
  // Returns seconds since 1970.
  [[nodiscard]] static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

 private:
  [[nodiscard]] static AppendFile create(const Path& folder) {
    static std::atomic<int> count{0};
    make_directories(folder);
    // The seconds have ten digits, so that the names sort by time.
    std::string seconds = std::to_string(static_cast<std::int64_t>(now()));
    if (seconds.size() < 10) seconds.insert(0, 10 - seconds.size(), '0');
    return AppendFile(folder / ("events.out.tfevents." + seconds + "." + detail::host_name() + "." +
                                std::to_string(::getpid()) + "." + std::to_string(count.fetch_add(1))),
                      AppendFile::Mode::new_file);
  }
  void append(const std::string& event) {
    std::string record;
    append_tfrecord(record, event);
    file_.append(record);
  }

  AppendFile file_;
};

}  // namespace tutti::io
