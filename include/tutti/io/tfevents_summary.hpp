// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/io/json/json_value.hpp>
#include <tutti/io/protobuf.hpp>
#include <tutti/io/tfrecord.hpp>

// Event messages for images, histograms and the hyper-parameters of a run, as TensorBoard shows them
// (tensorflow/core/framework/summary.proto, tensorboard/plugins/hparams/plugin_data.proto).
namespace tutti::io {

// An image as a PNG file. The channels are those of the file.
struct ImageSummary {
  std::string_view tag;
  std::int64_t height = 0, width = 0, channels = 0;
  std::string_view png;
};

// Counts how many finite values are in each of `parts` equal intervals of their range.
struct Histogram {
  static constexpr std::size_t parts = 30;
  double least = 0, greatest = 0, count = 0, sum = 0, squares = 0;
  std::array<double, parts> in_part{};

  [[nodiscard]] static Histogram of(std::span<const float> values) {
    Histogram h;
    for (const float v : values) {
      if (!math::is_finite(v)) continue;
      h.least = h.count == 0 ? v : std::min(h.least, static_cast<double>(v));
      h.greatest = h.count == 0 ? v : std::max(h.greatest, static_cast<double>(v));
      ++h.count;
      h.sum += v;
      h.squares += static_cast<double>(v) * v;
    }
    const double width = (h.greatest - h.least) / parts;
    for (const float v : values) {
      if (!math::is_finite(v)) continue;
      const double at = width > 0 ? (v - h.least) / width : 0;
      ++h.in_part[std::min(static_cast<std::size_t>(at), parts - 1)];
    }
    return h;
  }
};

// How a run ended, as HPARAMS shows it (tensorboard/plugins/hparams/api.proto: Status).
enum class RunStatus : std::uint8_t { unknown = 0, success = 1, failure = 2 };

namespace detail {

[[nodiscard]] inline std::string encode_summaries(double wall_time, std::int64_t step,
                                                  std::span<const std::string> values) {
  std::string summary, event;
  for (const std::string& v : values) protobuf::append_bytes(summary, 1, v);
  protobuf::append_double(event, 1, wall_time);
  protobuf::append_int(event, 2, step);
  protobuf::append_bytes(event, 5, summary);
  return event;
}

// Returns an event for TensorBoard's hparams plugin. field: number of the field in HParamsPluginData.
[[nodiscard]] inline std::string hparams_event(double wall_time, std::string_view tag, unsigned field,
                                               std::string_view message) {
  std::string data, plugin, metadata, value;
  protobuf::append_bytes(data, field, message);
  protobuf::append_bytes(plugin, 1, "hparams");
  protobuf::append_bytes(plugin, 2, data);
  protobuf::append_bytes(metadata, 1, plugin);
  protobuf::append_bytes(value, 1, tag);
  // The plugin requires an empty tensor of f32.
  std::string tensor, shape;
  protobuf::append_bytes(shape, 2, "");
  protobuf::append_int(tensor, 1, 1);
  protobuf::append_bytes(tensor, 2, shape);
  protobuf::append_bytes(value, 8, tensor);
  protobuf::append_bytes(value, 9, metadata);
  return encode_summaries(wall_time, 0, {&value, 1});
}

}  // namespace detail

// Returns an Event message with these images.
[[nodiscard]] inline std::string encode_image_event(double wall_time, std::int64_t step,
                                                    std::span<const ImageSummary> images) {
  std::vector<std::string> values;
  for (const ImageSummary& i : images) {
    std::string image, value;
    protobuf::append_int(image, 1, i.height);
    protobuf::append_int(image, 2, i.width);
    protobuf::append_int(image, 3, i.channels);
    protobuf::append_bytes(image, 4, i.png);
    protobuf::append_bytes(value, 1, i.tag);
    protobuf::append_bytes(value, 4, image);
    values.push_back(std::move(value));
  }
  return detail::encode_summaries(wall_time, step, values);
}

// Returns an event with the histogram of a tag's values at a step. wall_time: seconds since 1970.
[[nodiscard]] inline std::string encode_histogram_event(double wall_time, std::int64_t step, std::string_view tag,
                                                        const Histogram& h) {
  std::string histogram, limits, counts, value;
  for (std::size_t i = 0; i < Histogram::parts; ++i) {
    const double width = (h.greatest - h.least) / Histogram::parts;
    const double right = i + 1 == Histogram::parts ? h.greatest : h.least + width * static_cast<double>(i + 1);
    append_little_endian(limits, std::bit_cast<std::uint64_t>(right), 8);
    append_little_endian(counts, std::bit_cast<std::uint64_t>(h.in_part[i]), 8);
  }
  const double numbers[] = {h.least, h.greatest, h.count, h.sum, h.squares};
  for (unsigned i = 0; i < 5; ++i) protobuf::append_double(histogram, i + 1, numbers[i]);
  protobuf::append_bytes(histogram, 6, limits);
  protobuf::append_bytes(histogram, 7, counts);
  protobuf::append_bytes(value, 1, tag);
  protobuf::append_bytes(value, 5, histogram);
  return detail::encode_summaries(wall_time, step, {&value, 1});
}

// Returns an event with the hyper-parameters of a run that starts: the members of an object that are strings, numbers
// or booleans.
[[nodiscard]] inline std::string encode_hparams_event(double wall_time, const Json& hparams) {
  std::string session;
  for (const auto& [name, v] : hparams.as_object()) {
    std::string value, entry;
    if (v.is_bool())
      protobuf::append_int(value, 4, v.as_bool() ? 1 : 0);
    else if (v.is_integer() || v.is_double())
      protobuf::append_double(value, 2, v.as_double());
    else if (v.is_string())
      protobuf::append_bytes(value, 3, v.as_string());
    else
      continue;
    protobuf::append_bytes(entry, 1, name);
    protobuf::append_bytes(entry, 2, value);
    protobuf::append_bytes(session, 1, entry);
  }
  protobuf::append_double(session, 5, wall_time);
  return detail::hparams_event(wall_time, "_hparams_/session_start_info", 3, session);
}
// Returns an event that says how the run ended.
[[nodiscard]] inline std::string encode_hparams_end(double wall_time, RunStatus status) {
  std::string session;
  protobuf::append_int(session, 1, static_cast<std::int64_t>(status));
  protobuf::append_double(session, 2, wall_time);
  return detail::hparams_event(wall_time, "_hparams_/session_end_info", 4, session);
}

}  // namespace tutti::io
