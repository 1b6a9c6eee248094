// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/data/records/packed_shard.hpp>

#include "tools/data/manifest.hpp"
#include "tools/data/source.hpp"

namespace tutti::data_tool {

// Returns the name of a form on the command line and in manifests.
[[nodiscard]] inline const char* word_of(Form form) {
  return form == Form::packed ? "packed" : form == Form::tfrecord ? "tfrecord" : "recordio";
}

// Returns the form with this name. Throws UsageError for an unknown name.
[[nodiscard]] Form form_of(std::string_view word, std::string_view option);

// Returns a file name such as "PREFIX-00017-of-01024". RecordIO files are named train.rec and val.rec, or train_0.rec
// and so on.
[[nodiscard]] std::string shard_name(Form form, const std::string& prefix, std::int64_t number, std::int64_t shards);

// Returns all files of one shard.
[[nodiscard]] std::vector<io::Path> shard_files(Form form, const io::Path& path);

// Returns whether the shard exists. A shard gets its name only when it is complete.
[[nodiscard]] bool is_finished(Form form, const io::Path& path);

// Writes one shard. The file appears when finish() has written and synced all of it.
class ShardWriter {
 public:
  ShardWriter() = default;
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  virtual ~ShardWriter() = default;
  virtual void add(const SourceRecord& record, std::string_view where) = 0;
  virtual void finish() = 0;
};

// Opens shard `shard`, counted from 0, of the set that the manifest describes.
[[nodiscard]] std::unique_ptr<ShardWriter> open_shard(const Manifest& m, std::int64_t shard, const io::Path& path);

}  // namespace tutti::data_tool
