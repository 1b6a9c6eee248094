// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/data/images.hpp"

namespace tutti::data_tool {

// Describes the source and the options of a split's shards: the file tutti-data-SPLIT.json in their folder. It is
// written before the first shard, so that interrupted work continues only with the same options.
struct Manifest {
  std::string split, form;             // split and form of the shards
  std::int64_t shards = 0, first = 0;  // number of shards, and the number of the first
  std::int64_t records = 0;
  int classes = 0;
  bool shuffled = false;
  std::uint64_t seed = 0;
  ImageRules rules;
  std::string input;  // form and fingerprint of the source
  std::vector<std::string> class_names;
  bool complete = false;

  [[nodiscard]] static io::Path path_in(const io::Path& folder, const std::string& split) {
    return folder / ("tutti-data-" + split + ".json");
  }

  // Returns all fields except `complete` and the class names. The fingerprint covers the class names.
  [[nodiscard]] std::vector<std::pair<std::string, io::Json>> options() const;

  // Returns an identifier that all shards of a set share. Two sets have equal identifiers only by chance.
  [[nodiscard]] std::uint64_t set_id() const;

  void save(const io::Path& path) const;

  // Reads the manifest at `path`. Returns nullopt if there is no such file. Throws DataError if the file is not a
  // manifest.
  [[nodiscard]] static std::optional<Manifest> load(const io::Path& path);

  // Throws UsageError that names the first option of `wanted` that differs from this manifest, read from `path`.
  void check_same(const Manifest& wanted, const io::Path& path) const;

 private:
  [[nodiscard]] static bool is_utf8(std::string_view text);
};

}  // namespace tutti::data_tool
