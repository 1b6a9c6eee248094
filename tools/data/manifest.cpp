// SPDX-License-Identifier: MIT
#include "tools/data/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/utf8.hpp>

namespace tutti::data_tool {

std::vector<std::pair<std::string, io::Json>> Manifest::options() const {
  return {{"split", split},
          {"form", form},
          {"shards", shards},
          {"first_number", first},
          {"records", records},
          {"classes", classes},
          {"shuffled", shuffled},
          {"seed", std::to_string(seed)},
          {"size", rules.size},
          {"stretch", rules.stretch},
          {"quality", rules.quality},
          {"keep_format", rules.keep_format},
          {"input", input}};
}

std::uint64_t Manifest::set_id() const {
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a
  for (const auto& [name, value] : options())
    for (const char c : name + "=" + io::write_json(value) + "\n")
      hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3U;
  return hash;
}

void Manifest::save(const io::Path& path) const {
  io::Json json = io::Json::object({{"format", "tutti-data"}, {"version", 1}});
  for (const auto& [name, value] : options()) json.set(name, value);
  json.set("complete", complete);
  io::Json names = io::Json::array();
  for (const auto& n : class_names) {
    if (!is_utf8(n)) {
      names = io::Json::array();
      break;
    }
    names.push_back(n);
  }
  json.set("class_names", names);
  io::atomic_write_file(path, io::write_json(json, 1) + "\n");
}

std::optional<Manifest> Manifest::load(const io::Path& path) {
  if (!is_file(path)) return std::nullopt;
  const std::string where = path.string();
  const io::Json json = io::parse_json(io::read_text_file(path, std::size_t{1} << 27), where);
  const auto integer = [&](const char* key) { return json.at(key, where).as_integer(where); };
  const auto text = [&](const char* key) { return json.at(key, where).as_string(where); };
  const auto small = [&](const char* key, int most) {
    const std::int64_t v = integer(key);
    if (v < 0 || v > most) fail<DataError>(where, key + (" of 0 to " + std::to_string(most)), std::to_string(v));
    return static_cast<int>(v);
  };
  if (text("format") != "tutti-data" || integer("version") != 1)
    fail<DataError>(where, "a manifest of tutti-data, version 1", "another file");
  Manifest m;
  m.split = text("split");
  m.form = text("form");
  m.shards = integer("shards");
  m.first = integer("first_number");
  m.records = integer("records");
  m.classes = small("classes", 1 << 24);
  m.shuffled = json.at("shuffled", where).as_bool(where);
  m.rules.size = small("size", 1 << 16);
  m.rules.stretch = json.at("stretch", where).as_bool(where);
  m.rules.quality = small("quality", 100);
  m.rules.keep_format = json.at("keep_format", where).as_bool(where);
  m.input = text("input");
  m.complete = json.at("complete", where).as_bool(where);
  for (const auto& n : json.at("class_names", where).as_array(where)) m.class_names.push_back(n.as_string(where));
  for (const char c : text("seed")) {
    if (c < '0' || c > '9') fail<DataError>(where, "a seed of digits", text("seed"));
    m.seed = m.seed * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (m.classes < 1 || m.records < 0 || m.shards < 1)
    fail<DataError>(where, "positive numbers of classes, records and shards", "zero or less");
  return m;
}

void Manifest::check_same(const Manifest& wanted, const io::Path& path) const {
  const auto mine = options(), theirs = wanted.options();
  for (std::size_t k = 0; k < mine.size(); ++k)
    if (!(mine[k].second == theirs[k].second))
      fail<UsageError>(path.string(), mine[k].first + " " + io::write_json(mine[k].second) + ", as in the first call",
                       io::write_json(theirs[k].second),
                       "repeat the first call's options, name another folder, or start again with -f");
}

bool Manifest::is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = io::utf8_length(text, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

}  // namespace tutti::data_tool
