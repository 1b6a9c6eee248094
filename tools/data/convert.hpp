// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/io/file.hpp>

#include "tools/data/images.hpp"
#include "tools/data/manifest.hpp"
#include "tools/data/progress.hpp"
#include "tools/data/shard_writer.hpp"
#include "tools/data/source.hpp"

namespace tutti::data_tool {

// A split to be written, and the options for writing it.
struct Conversion {
  Source source;
  io::Path out;        // the output folder
  std::string prefix;  // prefix of the shards' names: train, validation
  Form form = Form::packed;
  std::int64_t shards = 1, first = 0;  // total number of shards; number of the first
  bool shard_a_file = false;           // one shard for each file of the source (TFRecord), in the same order
  bool shuffled = false;
  std::uint64_t seed = 0;
  ImageRules rules{};
  std::int64_t start = 0;              // the first shard that this process writes
  std::optional<std::int64_t> last{};  // the last shard that this process writes
  bool force = false;
  int threads = 1;
};

namespace detail {

// Assigns records to shards. Shard k has the records begin(k) to begin(k + 1) - 1. They are counted in the sequence
// `order` or, if `order` is empty, in the source's sequence.
struct ShardPlan {
  std::vector<std::uint32_t> order;
  std::vector<std::int64_t> begins;
  [[nodiscard]] std::int64_t shards() const noexcept { return static_cast<std::int64_t>(begins.size()) - 1; }
  [[nodiscard]] std::int64_t begin(std::int64_t shard) const { return begins[static_cast<std::size_t>(shard)]; }
  [[nodiscard]] std::int64_t record(std::int64_t at) const {
    return order.empty() ? at : static_cast<std::int64_t>(order[static_cast<std::size_t>(at)]);
  }
};

// Returns shards that differ in size by at most one record. The order is a Fisher-Yates shuffle that depends on the
// seed alone.
[[nodiscard]] ShardPlan plan_of(const Conversion& c);

inline void remove_all(const std::vector<io::Path>& paths) {
  for (const auto& p : paths) io::remove_tree(p);
}

}  // namespace detail

// Writes the missing shards of one split.
class Converter {
 public:
  explicit Converter(Conversion c);

  void run();

  [[nodiscard]] const Manifest& manifest() const noexcept { return m_; }

 private:
  // Returns whether other processes write some of the shards.
  [[nodiscard]] bool is_part() const noexcept { return c_.start > 0 || end_ < m_.shards; }
  [[nodiscard]] io::Path shard_path(std::int64_t shard) const {
    return c_.out / shard_name(c_.form, c_.prefix, c_.first + shard, m_.shards);
  }

  // Reads the manifest at `path`. Keeps existing shards if they were made with the same options. Otherwise removes them
  // (`force`) or throws UsageError.
  [[nodiscard]] std::optional<Manifest> prepare(const io::Path& path);

  // Writes several shards at the same time. If there are fewer shards than threads, each shard gets several threads.
  void write_all(const std::vector<std::int64_t>& pending, Progress& progress);

  void write(std::int64_t shard, int threads, Progress& progress);

  void finish(const io::Path& path);

  [[nodiscard]] static std::uint64_t new_id() noexcept;

  std::uint64_t id_ = new_id();
  Conversion c_;
  detail::ShardPlan plan_;
  Manifest m_;
  std::int64_t end_ = 0;  // one past the last shard to be written
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> changed_{0};
};

}  // namespace tutti::data_tool
