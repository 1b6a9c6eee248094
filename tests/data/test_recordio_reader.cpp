// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/data/records/records.hpp>

#include "record_files.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

static_assert(Records<RecordIoFiles>);

const std::string magic_text = "\x0A\x23\xD7\xCE";

// Returns the image of record k that tests/data/fixtures/mxnet/make.py writes.
Bytes mxnet_image(std::size_t k) {
  const Bytes plain = plain_image(k);
  const Bytes magic(magic_text.begin(), magic_text.end());
  if (k != 2 && k != 3) return plain;
  Bytes b;
  const auto add = [&](const Bytes& from, std::size_t n) {
    b.insert(b.end(), from.begin(), from.begin() + static_cast<long>(n));
  };
  if (k == 3) {
    add(plain, 3);
    add(magic, 4);
    add(plain, plain.size());
    return b;
  }
  add(magic, 4);
  add(plain, 8);
  add(magic, 4);
  add(magic, 4);
  add(plain, 5);
  add(magic, 4);
  add(plain, 3);
  add(magic, 4);
  return b;
}
const std::vector<std::int32_t> mxnet_labels{0, 999, 3, 4, 17, 5};

std::string payload_of(float label, std::uint32_t flag = 0, const std::string& rest = "image") {
  std::string d;
  io::append_little_endian(d, flag, 4);
  io::append_little_endian(d, std::bit_cast<std::uint32_t>(label), 4);
  io::append_little_endian(d, 0, 8);
  io::append_little_endian(d, 0, 8);
  return d + rest;
}

struct File {
  TempFolder folder;
  [[nodiscard]] Contents read(int classes = 1000) const {
    std::filesystem::remove(folder / "index");
    return contents_by([&] { return RecordIoFiles({folder / "a.rec"}, folder / "index", classes); });
  }
  [[nodiscard]] std::string error_of(const std::string& rec, int classes = 1000) const {
    write_text(folder / "a.rec", rec);
    return read(classes).error;
  }
};

}  // namespace

TEST_CASE("files written by MXNet are read, with and without .idx") {
  for (const bool with_list : {true, false}) {
    const TempFolder folder;
    std::filesystem::copy_file(fixture("mxnet/train.rec"), folder / "train.rec");
    if (with_list) std::filesystem::copy_file(fixture("mxnet/train.idx"), folder / "train.idx");
    const RecordIoFiles r({folder / "train.rec"}, folder / "index", 1000);
    REQUIRE(r.size() == 6);
    CHECK(r.classes() == 1000);
    CHECK(r.block() == 256);
    Bytes bytes;
    for (std::size_t i : {3U, 0U, 1U, 2U, 4U, 5U, 2U}) {
      CHECK(r.read(static_cast<std::int64_t>(i), bytes) == mxnet_labels[i]);
      CHECK(bytes == mxnet_image(i));
    }
    CHECK(r.where(4) == (folder / "train.rec").string() + " record 4");
  }
}

TEST_CASE("the .idx selects the records and their order") {
  const TempFolder folder;
  std::filesystem::copy_file(fixture("mxnet/train.rec"), folder / "train.rec");
  const auto labels = [&](const std::string& list) {
    write_text(folder / "train.idx", list);
    return contents_by([&] { return RecordIoFiles({folder / "train.rec"}, folder / "index", 1000); });
  };
  CHECK(labels("5\t612\n0\t0\r\n7\t228").labels == std::vector<std::int32_t>{5, 0, 4});
  CHECK(labels("0\t144\n").labels == std::vector<std::int32_t>{3});
  CHECK(contains(labels("0\t0\n1\t53\n").error, "train.idx line 2"));   // a record does not begin there
  CHECK(contains(labels("0\t0\n1\t176\n").error, "train.idx line 2"));  // in the middle of a split record
  CHECK(contains(labels("0\t856\n").error, "belongs to another file"));
  CHECK(contains(labels("0\t99999999999999999999\n").error, "train.idx line 1"));
  CHECK(contains(labels("0 0\n").error, "key, tab, offset"));
  CHECK(contains(labels("\n").error, "key, tab, offset"));
  CHECK(contains(labels("0\t-4\n").error, "key, tab, offset"));
  CHECK(contains(labels("0\t0x\n").error, "key, tab, offset"));
  CHECK(contains(labels("").error, "1 record or more"));
  std::filesystem::remove(folder / "train.idx");
  CHECK(contents_by([&] { return RecordIoFiles({folder / "train.rec"}, folder / "index", 1000); }).labels ==
        mxnet_labels);
}

TEST_CASE("the writer writes the same bytes as MXNet, and the file can be read") {
  const TempFolder folder;
  {
    RecordIoWriter w(folder / "a.rec");
    for (std::size_t k = 0; k < 6; ++k) w.add(static_cast<std::int32_t>(k), mxnet_image(k));
    CHECK(!std::filesystem::exists(folder / "a.rec"));
    w.finish();
  }
  const RecordIoFiles r({folder / "a.rec"}, folder / "index", 6);
  REQUIRE(r.size() == 6);
  Bytes bytes;
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(r.read(static_cast<std::int64_t>(i), bytes) == static_cast<std::int32_t>(i));
    CHECK(bytes == mxnet_image(i));
  }
  // Compares the record that MXNet's writer split with the record that tutti writes, byte by byte.
  const Bytes theirs = read_bytes(fixture("mxnet/train.rec"));
  const Bytes image = mxnet_image(2);
  std::string ours, data = payload_of(3);
  data.resize(24);
  data[8] = 12;
  data.append(image.begin(), image.end());
  recordio::append_record(ours, data);
  CHECK(ours == std::string(theirs.begin() + 144, theirs.begin() + 228));
  // The destructor removes an unfinished file.
  { RecordIoWriter w(folder / "b.rec"); }
  for (const auto& e : std::filesystem::directory_iterator(folder.path()))
    CHECK(!contains(e.path().filename().string(), "b.rec"));
}

TEST_CASE("a RecordIO file that does not end after a record is truncated") {
  const File file;
  const Bytes whole = read_bytes(fixture("mxnet/train.rec"));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    write_file(file.folder / "a.rec", std::span(whole).first(n));
    const auto c = file.read();
    const std::vector<std::size_t> ends{52, 144, 228, 400, 612};
    if (std::ranges::count(ends, n) != 0)
      CHECK(c.error.empty());
    else
      CHECK_MESSAGE(contains(c.error, n == 0 ? "1 record or more" : "truncated"), c.error);
    if (n > 0 && !c.error.empty()) CHECK(contains(c.error, (file.folder / "a.rec").string() + " record "));
  }
}

TEST_CASE("a flipped bit in a magic number is detected, and no other flipped bit causes a crash") {
  const File file;
  const Bytes whole = read_bytes(fixture("mxnet/train.rec"));
  const std::vector<std::size_t> headers{0, 52, 144, 228, 400, 612};
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes b = whole;
    b[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    write_file(file.folder / "a.rec", b);
    const auto c = file.read();
    // A changed bit may be in a magic number, or in the flag that marks a part of a split record.
    const bool in_magic = std::ranges::any_of(headers, [&](std::size_t h) { return bit / 8 >= h && bit / 8 < h + 4; });
    if (in_magic) CHECK(contains(c.error, "magic number"));
    if (c.error.empty()) CHECK(c.labels.size() <= 6);
  }
}

TEST_CASE("invalid labels, lengths and flags are errors") {
  const File file;
  const auto record = [](const std::string& data) {
    std::string out;
    recordio::append_record(out, data);
    return out;
  };
  CHECK(file.error_of(record(payload_of(9)), 10).empty());
  for (const float label :
       {10.0F, -1.0F, 0.5F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e9F}) {
    const std::string e = file.error_of(record(payload_of(1)) + record(payload_of(label)), 10);
    CHECK_MESSAGE(contains(e, "label of 0 to 9"), e);
    CHECK(contains(e, "a.rec record 1"));
  }
  CHECK(contains(file.error_of(record(payload_of(1, 2))), "2 labels"));  // states 8 bytes, has 5
  CHECK(contains(file.error_of(record(payload_of(1, 0xFFFFFFFF))), "4294967295 labels"));
  CHECK(contains(file.error_of(record(payload_of(1, 1, std::string(4, '\0')))), "an encoded image"));
  CHECK(contains(file.error_of(record("too short")), "24 bytes"));
  const auto part = [](std::uint32_t flag, std::uint32_t length, const std::string& data) {
    std::string out = magic_text;
    io::append_little_endian(out, (std::uint64_t{flag} << 29) | length, 4);
    return out + data;
  };
  CHECK(contains(file.error_of(part(0, 0x1FFFFFFF, "abcd")), "record 0"));  // states a huge length
  CHECK(contains(file.error_of(part(0, 1U << 28, "abcd")), "truncated"));
  CHECK(contains(file.error_of(part(2, 4, "abcd")), "flag 2"));
  CHECK(contains(file.error_of(part(3, 4, "abcd")), "flag 3"));
  CHECK(contains(file.error_of(part(5, 4, "abcd")), "flag 5"));
  CHECK(contains(file.error_of(part(1, 4, "abcd")), "truncated"));
  CHECK(contains(file.error_of(part(1, 4, "abcd") + part(0, 4, "abcd")), "flag 0"));
  CHECK(contains(file.error_of(part(1, 4, "abcd") + part(1, 4, "abcd")), "flag 1"));
}
