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

// What a split's shards were made from and how: the file tutti-data-SPLIT.json beside them. It is there before the
// first shard, so that work that was interrupted goes on only with the same options.
struct Manifest {
  std::string split, form;             // of the shards
  std::int64_t shards = 0, first = 0;  // how many, and the number of the first
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

  // All but `complete` and the names of the classes, which the fingerprint covers.
  [[nodiscard]] std::vector<std::pair<std::string, io::Json>> options() const;

  // The same in all shards of a set and, by chance, in no other.
  [[nodiscard]] std::uint64_t set_id() const;

  void save(const io::Path& path) const;

  // Nothing where there is no such file; DataError for one that is no manifest.
  [[nodiscard]] static std::optional<Manifest> load(const io::Path& path);

  // Throws UsageError that names the first option in which the work begun at `path` differs from `wanted`.
  void check_same(const Manifest& wanted, const io::Path& path) const;

 private:
  [[nodiscard]] static bool is_utf8(std::string_view text);
};

}  // namespace tutti::data_tool
