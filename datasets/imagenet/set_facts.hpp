// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

// Reads the classes that tutti-data has written next to record files. TFRecord and RecordIO do not store them.
namespace tutti::imagenet {

// Returns the path of tutti-data-train.json or tutti-data-validation.json, next to the files of a split.
[[nodiscard]] inline io::Path set_facts_path(const io::Path& folder, Split split) {
  return folder / (std::string("tutti-data-") + (split == Split::train ? "train" : "validation") + ".json");
}

// The classes that such a file lists.
struct SetFacts {
  std::string form;  // the word of tutti-data, such as "tfrecord"
  int classes = 0;
  std::vector<std::string> class_names;  // one per class, or empty
};

// Returns no value if the file does not exist. Throws DataError if tutti-data has not written it.
[[nodiscard]] inline std::optional<SetFacts> read_set_facts(const io::Path& folder, Split split) {
  const io::Path path = set_facts_path(folder, split);
  if (!is_file(path)) return std::nullopt;
  const std::string where = path.string();
  const io::Json json = io::parse_json(io::read_text_file(path, std::size_t{1} << 27), where);
  const auto text = [&](const char* key) -> const std::string& { return json.at(key, where).as_string(where); };
  if (text("format") != "tutti-data" || json.at("version", where).as_integer(where) != 1)
    fail<DataError>(where, "a file of tutti-data, version 1", "another file or version");
  SetFacts facts;
  facts.form = text("form");
  const std::int64_t classes = json.at("classes", where).as_integer(where);
  if (classes < 1 || classes > (1 << 24)) fail<DataError>(where, "1 to 16777216 classes", classes);
  facts.classes = static_cast<int>(classes);
  for (const io::Json& name : json.at("class_names", where).as_array(where))
    facts.class_names.push_back(name.as_string(where));
  if (facts.class_names.size() != static_cast<std::size_t>(classes)) facts.class_names.clear();
  return facts;
}

}  // namespace tutti::imagenet
