// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <tutti/data/records/packed_shard.hpp>
#include <tutti/data/records/records.hpp>

#include "record_files.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

static_assert(Records<PackedShards>);

PackedShardInfo info_of(std::uint32_t shard = 0, std::uint32_t shards = 1) {
  return {7, shard, shards, 0x1234567890ABCDEF, {"a", "b", "", "d e", "f", "g", "h"}};
}

std::filesystem::path write_shard(const TempFolder& folder, const std::string& name, const PackedShardInfo& info,
                                  std::size_t first, std::size_t count) {
  PackedShardWriter w(folder / name, info);
  for (std::size_t k = first; k < first + count; ++k) w.add(static_cast<std::int32_t>(k % 7), plain_image(k));
  w.finish();
  return folder / name;
}

Contents read(const std::filesystem::path& path) {
  return contents_by([&] { return PackedShards({path}); });
}

// Returns the number of bytes of memory that the process has in use, as the system reports it.
std::int64_t resident() {
  std::ifstream in("/proc/self/statm");
  std::int64_t all = 0, pages = 0;
  in >> all >> pages;
  return pages * 4096;
}

}  // namespace

TEST_CASE("packed shards return the written records") {
  const TempFolder folder;
  const auto a = write_shard(folder, "a", info_of(0, 3), 0, 5);
  const auto b = write_shard(folder, "b", info_of(1, 3), 0, 0);  // a shard may be empty
  const auto c = write_shard(folder, "c", info_of(2, 3), 5, 3);
  const PackedShards p({a, b, c});
  REQUIRE(p.size() == 8);
  CHECK(p.classes() == 7);
  CHECK(p.block() == 256);
  CHECK(p.class_names() == info_of().class_names);
  Bytes bytes;
  for (std::size_t k : {7U, 0U, 1U, 2U, 3U, 4U, 5U, 6U}) {
    CHECK(p.read(static_cast<std::int64_t>(k), bytes) == static_cast<std::int32_t>(k % 7));
    CHECK(bytes == plain_image(k));
    CHECK(p.entry(static_cast<std::int64_t>(k)).length == bytes.size());
  }
  CHECK(p.where(6) == c.string() + " record 1");
  for (const auto& e : std::filesystem::directory_iterator(folder.path()))
    CHECK(e.path().filename().string().size() == 1);
}

TEST_CASE("the bytes of a packed shard are those of docs/reference/formats.md") {
  const TempFolder folder;
  PackedShardWriter w(folder / "x", {2, 0, 1, 0x0807060504030201, {"no", "yes"}});
  w.add(1, Bytes{0xFF, 0xD8, 0xFF});
  w.finish();
  const Bytes b = read_bytes(folder / "x");
  CHECK(b.size() == 40 + 7 + 3 + 20 + 32);
  const auto text = [&](std::size_t at, std::size_t n) {
    return std::string(b.begin() + static_cast<long>(at), b.begin() + static_cast<long>(at + n));
  };
  const auto crc = [&](std::size_t at, std::size_t n) { return io::crc32c(text(at, n)); };
  CHECK(text(0, 8) == "tuttipak");
  CHECK(little_endian_32(&b[8]) == 1);
  CHECK(little_endian_32(&b[12]) == 2);
  CHECK(little_endian_32(&b[16]) == 0);
  CHECK(little_endian_32(&b[20]) == 1);
  CHECK(Bytes(b.begin() + 24, b.begin() + 32) == Bytes{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(little_endian_32(&b[32]) == 7);
  CHECK(little_endian_32(&b[36]) == io::crc32c(text(0, 36) + text(40, 7)));
  CHECK(text(40, 7) == "no\nyes\n");
  CHECK(text(47, 3) == "\xFF\xD8\xFF");
  CHECK(little_endian_64(&b[50]) == 47);
  CHECK(little_endian_32(&b[58]) == 3);
  CHECK(little_endian_32(&b[62]) == 1);
  CHECK(little_endian_32(&b[66]) == crc(47, 3));
  CHECK(little_endian_64(&b[70]) == 1);
  CHECK(little_endian_64(&b[78]) == 50);
  CHECK(little_endian_32(&b[86]) == crc(50, 20));
  CHECK(little_endian_32(&b[90]) == crc(70, 20));
  CHECK(text(94, 8) == "tuttiend");
}

TEST_CASE("every flipped bit and every missing byte of a packed shard is detected") {
  const TempFolder folder;
  const auto path = write_shard(folder, "x", info_of(), 0, 4);
  const Bytes good = read_bytes(path);
  REQUIRE(read(path).error.empty());
  const std::size_t images = 40 + 15;
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes b = good;
    b[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    write_file(path, b);
    const auto c = read(path);
    CHECK_MESSAGE(contains(c.error, path.string()), bit);
    if (bit / 8 >= images && bit / 8 < images + 20) CHECK(contains(c.error, "x record 0"));
    if (bit / 8 >= images + 20 && bit / 8 < images + 77) {
      CHECK(contains(c.error, "x record 1"));
      CHECK(c.labels.size() == 1);  // the record before it can be read
    }
  }
  for (std::size_t n = 0; n < good.size(); ++n) {
    write_file(path, std::span(good).first(n));
    CHECK(contains(read(path).error, path.string()));
  }
  Bytes longer = good;
  longer.push_back(0);
  write_file(path, longer);
  CHECK(!read(path).error.empty());
}

TEST_CASE("numbers that are too large allocate no memory, even with correct checksums") {
  const TempFolder folder;
  const auto path = write_shard(folder, "x", info_of(), 0, 2);
  const Bytes good = read_bytes(path);
  const auto put = [](Bytes& b, std::size_t at, std::uint64_t v, int n) {
    for (int i = 0; i < n; ++i) b[at + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(v >> (8 * i));
  };
  const auto error_with = [&](auto change) {
    Bytes b = good;
    change(b);
    // All checksums are recomputed so that they match the changed bytes.
    const std::size_t end = b.size(), footer = end - 32, index = footer - 40;
    const auto text = [&](std::size_t at, std::size_t n) {
      return std::string(b.begin() + static_cast<long>(at), b.begin() + static_cast<long>(at + n));
    };
    put(b, 36, io::crc32c(text(0, 36) + text(40, 15)), 4);
    put(b, footer + 16, io::crc32c(text(index, 40)), 4);
    put(b, footer + 20, io::crc32c(text(footer, 20)), 4);
    write_file(path, b);
    return read(path).error;
  };
  CHECK(error_with([](Bytes&) {}).empty());
  const std::size_t footer = good.size() - 32, index = footer - 40;
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1} << 32,
                                std::uint64_t{1} << 60, ~std::uint64_t{0}})
    CHECK(!error_with([&](Bytes& b) { put(b, footer, n, 8); }).empty());
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{index} + 1, std::uint64_t{1} << 60, ~std::uint64_t{0}})
    CHECK(!error_with([&](Bytes& b) { put(b, footer + 8, n, 8); }).empty());
  CHECK(contains(error_with([&](Bytes& b) { put(b, index + 8, 0xFFFFFFFF, 4); }), "record 0"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, index + 20, 0, 8); }), "record 1"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, index + 28, 56, 4); }), "index at the end"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, index + 12, 7, 4); }), "record 0 with label 7"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, index + 12, 0xFFFFFFFF, 4); }), "record 0 with label -1"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, 8, 2, 4); }), "version 1"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, 12, 6, 4); }), "a name for each"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, 12, 0, 4); }), "classes"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, 20, 0, 4); }), "a shard of"));
  CHECK(contains(error_with([&](Bytes& b) { put(b, 32, 0xFFFFFFFF, 4); }), "names that fit"));
}

TEST_CASE("packed shards that do not form one complete set are refused") {
  const TempFolder folder;
  const auto a = write_shard(folder, "a", info_of(0, 2), 0, 2), b = write_shard(folder, "b", info_of(1, 2), 2, 2);
  PackedShardInfo other = info_of(1, 2);
  other.set_id = 1;
  const auto c = write_shard(folder, "c", other, 2, 2);
  other = info_of(1, 2);
  other.class_names[0] = "z";
  const auto d = write_shard(folder, "d", other, 2, 2);
  const auto error = [](std::vector<io::Path> paths) {
    return message_of<DataError>([&] { const PackedShards p(std::move(paths)); });
  };
  CHECK(error({a, b}).empty());
  CHECK(contains(error({a}), "shard is missing"));
  CHECK(contains(error({b, a}), "shard 1 of 2"));
  CHECK(contains(error({a, a}), "shard 0 of 2"));
  CHECK(contains(error({a, c}), "another set"));
  CHECK(contains(error({a, d}), "another set"));
  CHECK(contains(error({}), "1 file or more"));
  CHECK(contains(error({write_shard(folder, "e", info_of(), 0, 0)}), "1 to 4294967295 records"));
  CHECK(contains(error({folder / "none"}), "none"));
}

TEST_CASE("the writer refuses records that no reader accepts, and leaves no unfinished file") {
  const TempFolder folder;
  {
    PackedShardWriter w(folder / "x", info_of());
    CHECK_THROWS_AS(w.add(7, Bytes{1}), UsageError);
    CHECK_THROWS_AS(w.add(-1, Bytes{1}), UsageError);
    CHECK_THROWS_AS(w.add(0, Bytes{}), UsageError);
    w.add(0, Bytes{1});
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  const auto refuses = [&](auto change) {
    PackedShardInfo i = info_of();
    change(i);
    CHECK_THROWS_AS(PackedShardWriter(folder / "x", i), UsageError);
  };
  refuses([](auto& i) { i.classes = 0; });
  refuses([](auto& i) { i.shard = 1; });
  refuses([](auto& i) { i.shards = 0; });
  refuses([](auto& i) { i.class_names.pop_back(); });
  refuses([](auto& i) { i.class_names[0] = "a\nb"; });
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("opening takes the same memory for few records and for many") {
  const TempFolder folder;
  const auto growth = [&](std::size_t records) {
    PackedShardWriter w(folder / "x", {10, 0, 1, 1, {}});
    const Bytes image(10, 1);
    for (std::size_t k = 0; k < records; ++k) w.add(static_cast<std::int32_t>(k % 10), image);
    w.finish();
    const auto before = resident();
    const PackedShards p({folder / "x"});
    CHECK(p.size() == static_cast<std::int64_t>(records));
    return resident() - before;
  };
  (void)growth(10);
  CHECK(growth(200000) < 1 << 20);  // the index has 4 MB, so it was not read into memory
}
