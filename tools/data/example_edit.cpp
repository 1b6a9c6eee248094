// SPDX-License-Identifier: MIT
#include "tools/data/example_edit.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include <tutti/data/records/example_proto.hpp>

namespace tutti::data_tool {

std::string replace_image(std::span<const std::uint8_t> payload, int width, int height,
                          std::span<const std::uint8_t> jpeg, std::string_view where) {
  using protobuf::Reader;
  static constexpr std::string_view replaced[] = {"image/encoded",    "image/height",   "image/width",
                                                  "image/colorspace", "image/channels", "image/format"};
  const auto text = [](std::span<const std::uint8_t> b) {
    return std::string_view(reinterpret_cast<const char*>(b.data()), b.size());
  };
  std::string features, out;
  const auto keep = [&](std::span<const std::uint8_t> entry) {
    for (Reader pair(entry, where); !pair.done();) {
      const auto part = pair.next();
      if (part.number == 1 && part.wire == Reader::Wire::bytes &&
          std::find(std::begin(replaced), std::end(replaced), text(part.bytes)) != std::end(replaced))
        return;
    }
    protobuf::append_bytes(features, 1, text(entry));
  };
  const auto each_entry = [&](std::span<const std::uint8_t> example, auto&& f) {
    for (Reader r(example, where); !r.done();) {
      const auto field = r.next();
      if (field.number != 1 || field.wire != Reader::Wire::bytes) continue;
      for (Reader map(field.bytes, where); !map.done();) {
        const auto entry = map.next();
        if (entry.number == 1 && entry.wire == Reader::Wire::bytes) f(entry.bytes);
      }
    }
  };
  each_entry(payload, keep);
  ExampleWriter own;
  own.add_int("image/height", height);
  own.add_int("image/width", width);
  own.add("image/colorspace", "RGB");
  own.add_int("image/channels", 3);
  own.add("image/format", "JPEG");
  own.add("image/encoded", jpeg);
  const std::string added = own.payload();
  each_entry(std::span(reinterpret_cast<const std::uint8_t*>(added.data()), added.size()),
             [&](std::span<const std::uint8_t> entry) { protobuf::append_bytes(features, 1, text(entry)); });
  protobuf::append_bytes(out, 1, features);
  return out;
}

}  // namespace tutti::data_tool
