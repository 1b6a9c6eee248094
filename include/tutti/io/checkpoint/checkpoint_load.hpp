// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/io/checkpoint/checkpoint_manifest.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/io/safetensors/tensor_record.hpp>

namespace tutti::io {

// A checkpoint that has been read and checked. The bytes of the records are in mapped files that this object owns.
// Their addresses do not change when the object is moved.
class LoadedCheckpoint {
 public:
  [[nodiscard]] const Path& path() const noexcept { return path_; }
  [[nodiscard]] std::int64_t step() const noexcept { return manifest_.step; }
  [[nodiscard]] const Json& counters() const noexcept { return manifest_.counters; }
  [[nodiscard]] const Json& options() const noexcept { return manifest_.options; }
  [[nodiscard]] std::span<const TensorRecord> model() const noexcept { return span_of(model_); }
  [[nodiscard]] std::span<const TensorRecord> optimizer() const noexcept { return span_of(optimizer_); }

 private:
  friend LoadedCheckpoint load_checkpoint(const Path& folder);

  Path path_;
  CheckpointManifest manifest_;
  Safetensors model_file_;
  Safetensors optimizer_file_;
  std::vector<TensorRecord> model_;
  std::vector<TensorRecord> optimizer_;
};

namespace detail {

inline constexpr std::size_t most_manifest_bytes = std::size_t{16} << 20;

inline void require_file(const Path& path) {
  if (!path_exists(path))
    fail<DataError>({"checkpoint ", path.parent_path().native()}, {"a file ", path.filename().native()}, "no such file",
                    "the checkpoint is incomplete");
}

inline void check_crc(const Path& path, std::span<const std::byte> bytes, const CheckpointFile& expected) {
  const std::string where = "checkpoint " + path.string();
  if (bytes.size() != expected.size)
    fail<DataError>(where, {expected.size, " bytes"}, bytes.size(),
                    bytes.size() < expected.size ? "the file is truncated" : "the file has grown");
  const std::uint32_t crc = crc32c(bytes);
  if (crc != expected.crc32c)
    fail<DataError>(where, {"the CRC-32C ", crc_text(expected.crc32c)}, crc_text(crc), "the file is damaged");
}

[[nodiscard]] inline Safetensors open_checked(const Path& path, const CheckpointFile& expected) {
  require_file(path);
  MappedFile file(path);
  check_crc(path, file.bytes(), expected);
  return Safetensors::own(std::move(file), path.string());
}

}  // namespace detail

// Reads a checkpoint's folder and checks all of it. Throws DataError that names the file and what is wrong with it.
[[nodiscard]] inline LoadedCheckpoint load_checkpoint(const Path& folder) {
  if (!path_exists(folder)) fail<DataError>("checkpoint", {"a folder ", folder.native()}, "no such folder");
  const Path complete = folder / "COMPLETE";
  const Path manifest = folder / "manifest.json";
  detail::require_file(complete);
  detail::require_file(manifest);
  const std::string promised = read_text_file(complete, 9);
  const std::string text = read_text_file(manifest, detail::most_manifest_bytes);
  if (!promised.ends_with('\n'))
    fail<DataError>({"checkpoint ", complete.native()}, "one complete line", "a part of a line");
  const std::uint32_t crc =
      parse_crc_text(std::string_view(promised).substr(0, promised.size() - 1), "checkpoint " + complete.string());
  if (crc32c(text) != crc)
    fail<DataError>({"checkpoint ", manifest.native()}, {"the CRC-32C ", crc_text(crc), " recorded in COMPLETE"},
                    crc_text(crc32c(text)), "one of the two files is damaged");

  LoadedCheckpoint c;
  c.path_ = folder;
  c.manifest_ = parse_manifest(text, manifest.string());
  c.model_file_ = detail::open_checked(folder / "model.safetensors", c.manifest_.model);
  c.optimizer_file_ = detail::open_checked(folder / "optimizer.safetensors", c.manifest_.optimizer);
  c.model_ = c.model_file_.records();
  c.optimizer_ = c.optimizer_file_.records();
  return c;
}

}  // namespace tutti::io
