// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/core/error.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::io {

// The size (bytes) and CRC-32C of one file of a checkpoint.
struct CheckpointFile {
  std::uint64_t size = 0;
  std::uint32_t crc32c = 0;

  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

// The content of manifest.json. `counters` and `options` are JSON objects; the trainer defines their members.
struct CheckpointManifest {
  static constexpr std::int64_t version = 1;
  static constexpr std::string_view format = "tutti-checkpoint";

  std::int64_t step = 0;
  Json counters = Json::object();
  Json options = Json::object();
  CheckpointFile model;
  CheckpointFile optimizer;

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// Returns a checksum as eight hexadecimal digits.
[[nodiscard]] inline std::string crc_text(std::uint32_t crc) {
  constexpr char hex[] = "0123456789abcdef";
  std::string out;
  for (int shift = 28; shift >= 0; shift -= 4) out.push_back(hex[(crc >> shift) & 15U]);
  return out;
}
// Returns the checksum that crc_text() has written. Throws DataError if the text is no checksum.
[[nodiscard]] inline std::uint32_t parse_crc_text(std::string_view text, std::string_view where) {
  std::uint32_t crc = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || end.ec != std::errc() || end.ptr != text.data() + text.size() || crc_text(crc) != text)
    fail<DataError>(where, "a CRC-32C as 8 hexadecimal digits", "another text");
  return crc;
}

[[nodiscard]] inline std::string write_manifest(const CheckpointManifest& m) {  // Returns the manifest as JSON.
  const auto file = [](std::string_view name, const CheckpointFile& f) {
    return Json::Member(name, Json::object({{"size", f.size}, {"crc32c", crc_text(f.crc32c)}}));
  };
  (void)m.counters.as_object("checkpoint counters");
  (void)m.options.as_object("checkpoint options");
  return write_json(Json::object({{"format", CheckpointManifest::format},
                                  {"version", CheckpointManifest::version},
                                  {"step", m.step},
                                  {"counters", m.counters},
                                  {"options", m.options},
                                  {"files", Json::Object{file("model.safetensors", m.model),
                                                         file("optimizer.safetensors", m.optimizer)}}}),
                    2) +
         "\n";
}

namespace detail {

inline void check_keys(const Json& object, std::span<const std::string_view> keys, std::string_view where) {
  for (const auto& [key, unused] : object.as_object(where))
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      fail<DataError>(where, "only members that this version knows", {"'", key, "'"});
}

[[nodiscard]] inline CheckpointFile manifest_file(const Json& files, std::string_view name, std::string_view where) {
  const Json& f = files.at(name, where);
  constexpr std::array<std::string_view, 2> keys{"size", "crc32c"};
  check_keys(f, keys, where);
  const std::int64_t size = f.at("size", where).as_integer(where);
  if (size < 0) fail<DataError>(where, "a size of 0 or more", size);
  return {static_cast<std::uint64_t>(size), parse_crc_text(f.at("crc32c", where).as_string(where), where)};
}

}  // namespace detail

// Reads the JSON of a manifest. Throws DataError that names `path` and what is wrong.
[[nodiscard]] inline CheckpointManifest parse_manifest(std::string_view text, std::string_view path) {
  const std::string where = "checkpoint " + std::string(path);
  const Json json = parse_json(text, path);
  // Checks the version first: another version may have other members.
  if (json.at("format", where).as_string(where) != CheckpointManifest::format)
    fail<DataError>(where, {"the format '", CheckpointManifest::format, "'"}, "another format");
  const std::int64_t version = json.at("version", where).as_integer(where);
  if (version != CheckpointManifest::version)
    fail<DataError>(where, {"format version ", CheckpointManifest::version}, version,
                    "another version of tutti wrote this checkpoint");
  constexpr std::array<std::string_view, 6> keys{"format", "version", "step", "counters", "options", "files"};
  detail::check_keys(json, keys, where);

  CheckpointManifest m;
  m.step = json.at("step", where).as_integer(where);
  if (m.step < 0) fail<DataError>(where, "a step of 0 or more", m.step);
  m.counters = json.at("counters", where);
  m.options = json.at("options", where);
  (void)m.counters.as_object(where + " counters");
  (void)m.options.as_object(where + " options");
  const Json& files = json.at("files", where);
  constexpr std::array<std::string_view, 2> names{"model.safetensors", "optimizer.safetensors"};
  detail::check_keys(files, names, where + " files");
  m.model = detail::manifest_file(files, names[0], where + " files " + std::string(names[0]));
  m.optimizer = detail::manifest_file(files, names[1], where + " files " + std::string(names[1]));
  return m;
}

}  // namespace tutti::io
