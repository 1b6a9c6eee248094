// SPDX-License-Identifier: MIT
#include "tools/data/shard_writer.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/datasets/imagenet/tfrecords.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/tfrecord.hpp>

#include "tools/data/example_edit.hpp"

namespace tutti::data_tool {

Form form_of(std::string_view word, std::string_view option) {
  for (const Form f : {Form::packed, Form::tfrecord, Form::recordio})
    if (word == word_of(f)) return f;
  fail<UsageError>(option, "packed, tfrecord or recordio", "'" + std::string(word) + "'");
}

std::string shard_name(Form form, const std::string& prefix, std::int64_t number, std::int64_t shards) {
  if (form == Form::recordio) {
    const std::string stem = prefix == "validation" ? "val" : prefix;
    return stem + (shards == 1 ? "" : "_" + std::to_string(number)) + ".rec";
  }
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld", static_cast<long long>(number), static_cast<long long>(shards));
  return prefix + text + (form == Form::packed ? ".tutti" : "");
}

std::vector<io::Path> shard_files(Form form, const io::Path& path) {
  if (form == Form::recordio) return {path, io::Path(path).replace_extension(".idx")};
  return {path};
}

bool is_finished(Form form, const io::Path& path) {
  for (const auto& f : shard_files(form, path))
    if (!is_file(f)) return false;
  return true;
}

namespace {

class PackedWriter final : public ShardWriter {
 public:
  PackedWriter(const io::Path& path, const PackedShardInfo& info) : out_(path, info) {}
  void add(const SourceRecord& r, std::string_view) override { out_.add(r.label, r.image); }
  void finish() override { out_.finish(); }

 private:
  PackedShardWriter out_;
};

class RecordWriter final : public ShardWriter {
 public:
  explicit RecordWriter(const io::Path& path) : out_(path) {}
  void add(const SourceRecord& r, std::string_view) override { out_.add(r.label, r.image); }
  void finish() override { out_.finish(); }

 private:
  RecordIoWriter out_;
};

class TfWriter final : public ShardWriter {
 public:
  explicit TfWriter(io::Path path) : path_(std::move(path)), aside_(io::aside_path(path_)), out_(aside_, path_) {}
  ~TfWriter() override {
    if (!finished_) ::unlink(aside_.c_str());
  }
  // Copies the Example byte for byte if its image has not changed.
  void add(const SourceRecord& r, std::string_view where) override {
    record_.clear();
    if (!r.example.empty() && !r.changed)
      io::append_tfrecord(record_, {reinterpret_cast<const char*>(r.example.data()), r.example.size()});
    else if (!r.example.empty())
      io::append_tfrecord(record_, replace_image(r.example, r.size.width, r.size.height, r.image, where));
    else
      io::append_tfrecord(record_,
                          imagenet::image_example({r.size.height, r.size.width, 3, "RGB", is_png(r) ? "PNG" : "JPEG",
                                                   std::int64_t{r.label} + 1, r.synset, r.filename, r.image}));
    out_.write(record_);
  }
  void finish() override {
    out_.sync();
    out_.close();
    io::rename_path(aside_, path_);
    finished_ = true;
    io::fsync_directory(io::folder_of(path_));
  }

 private:
  [[nodiscard]] static bool is_png(const SourceRecord& r) { return !r.image.empty() && r.image[0] == 0x89; }

  io::Path path_, aside_;
  io::FileWriter out_;
  std::string record_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<ShardWriter> open_shard(const Manifest& m, std::int64_t shard, const io::Path& path) {
  switch (form_of(m.form, "form")) {
    case Form::packed: {
      PackedShardInfo info;
      info.classes = static_cast<std::uint32_t>(m.classes);
      info.shard = static_cast<std::uint32_t>(shard);
      info.shards = static_cast<std::uint32_t>(m.shards);
      info.set_id = m.set_id();
      info.class_names = m.class_names;
      return std::make_unique<PackedWriter>(path, info);
    }
    case Form::recordio:
      return std::make_unique<RecordWriter>(path);
    default:
      return std::make_unique<TfWriter>(path);
  }
}

}  // namespace tutti::data_tool
