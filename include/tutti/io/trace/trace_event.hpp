// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/span.hpp>

// Events of Chrome's trace format, which chrome://tracing and Perfetto read. A file is a JSON array, here with one
// event on each line. Its closing bracket may be missing. Times are microseconds.
namespace tutti::io {

// A finished span, which a thread keeps until it is written.
struct TraceSpan {
  static constexpr std::size_t most_text = 60;

  std::int64_t begin = 0, nanoseconds = 0, number = -1;
  Lane lane = Lane::step;
  bool shared = false;  // belongs to several threads: other spans of its lane may overlap it
  std::uint8_t row = 0, length = 0;
  std::array<char, most_text> text{};

  [[nodiscard]] std::string_view name() const { return {text.data(), length}; }
  // Shortens names that are longer than most_text.
  void set_name(std::string_view what, std::string_view of) {
    length = 0;
    append(what);
    if (!what.empty() && !of.empty()) append(" ");
    append(of);
  }

 private:
  void append(std::string_view s) {
    const std::size_t n = std::min(s.size(), most_text - length);
    std::copy_n(s.data(), n, text.data() + length);
    length = static_cast<std::uint8_t>(length + n);
  }
};

[[nodiscard]] constexpr std::string_view name_of(Lane lane) {  // the name in the viewer
  constexpr std::string_view names[] = {"step",       "compute",    "communication", "data",
                                        "evaluation", "checkpoint", "membership"};
  return names[static_cast<std::size_t>(lane)];
}
// Returns the unit of the numbers of a lane's spans.
[[nodiscard]] constexpr std::string_view unit_of(Lane lane) {
  constexpr std::string_view names[] = {"step", "rows", "bytes", "images", "images", "step", "members"};
  return names[static_cast<std::size_t>(lane)];
}
// Returns the position of a lane's row in the viewer.
[[nodiscard]] constexpr int trace_row(Lane lane, int row) { return static_cast<int>(lane) * 1000 + row + 1; }

namespace detail {

// Appends a layer's name as a JSON string. Characters outside ASCII become '?'.
inline void append_trace_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= 0x20 && c < 0x7F ? c : '?';
  }
  out += '"';
}
inline void append_trace_number(std::string& out, std::int64_t n) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, n).ptr);
}
inline void append_microseconds(std::string& out, std::int64_t nanoseconds) {
  append_trace_number(out, nanoseconds / 1000);
  const auto rest = static_cast<int>(nanoseconds % 1000);
  out += '.';
  for (const int digit : {rest / 100, rest / 10 % 10, rest % 10}) out += static_cast<char>('0' + digit);
}

}  // namespace detail

// Appends the lines "{...},\n" of one span: one event, or, if the span is `shared`, two events joined by `id`.
inline void append_trace_span(std::string& out, const TraceSpan& s, std::int64_t process, std::uint64_t id) {
  using namespace detail;
  const auto event = [&](std::string_view phase, std::int64_t at) {
    out += R"({"ph":")";
    out += phase;
    out += R"(","cat":")";
    out += name_of(s.lane);
    out += R"(","name":)";
    append_trace_text(out, s.name());
    out += R"(,"pid":)";
    append_trace_number(out, process);
    out += R"(,"tid":)";
    append_trace_number(out, trace_row(s.lane, s.row));
    out += R"(,"ts":)";
    append_microseconds(out, at);
  };
  event(s.shared ? "b" : "X", s.begin);
  if (!s.shared) {
    out += R"(,"dur":)";
    append_microseconds(out, s.nanoseconds);
  } else {
    out += R"(,"id":)";
    append_trace_number(out, static_cast<std::int64_t>(id));
  }
  if (s.number >= 0) {
    out += R"(,"args":{")";
    out += unit_of(s.lane);
    out += R"(":)";
    append_trace_number(out, s.number);
    out += '}';
  }
  out += "},\n";
  if (!s.shared) return;
  event("e", s.begin + s.nanoseconds);
  out += R"(,"id":)";
  append_trace_number(out, static_cast<std::int64_t>(id));
  out += "},\n";
}

}  // namespace tutti::io
