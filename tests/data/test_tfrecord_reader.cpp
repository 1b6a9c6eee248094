// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/data/records/example_proto.hpp>
#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/io/tfrecord.hpp>

#include "example_floats.hpp"
#include "record_files.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

std::span<const std::uint8_t> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

// A file of records. Each read opens the file again.
struct File {
  TempFolder folder;
  Bytes bytes;

  [[nodiscard]] std::string error() const {
    write_file(folder / "data", bytes);
    std::filesystem::remove(folder / "index");
    return message_of<DataError>([&] {
      const TfRecordFiles f({folder / "data"}, folder / "index");
      Bytes frame;
      for (std::int64_t i = 0; i < f.size(); ++i) (void)f.read(i, frame);
    });
  }
};

}  // namespace

TEST_CASE("TFRecords are read as they were written") {
  const TempFolder folder;
  std::vector<std::string> payloads{"a", "", std::string(100000, 'x'), "end"};
  for (int f = 0; f < 2; ++f) {
    std::string text;
    for (const auto& p : payloads) io::append_tfrecord(text, p + std::to_string(f));
    write_text(folder / ("f" + std::to_string(f)), text);
  }
  write_text(folder / "empty", "");
  const TfRecordFiles files({folder / "f0", folder / "empty", folder / "f1"}, folder / "index");
  REQUIRE(files.size() == 8);
  Bytes frame;
  for (std::int64_t i : {7, 0, 1, 2, 3, 4, 5, 6}) {
    const auto p = files.read(i, frame);
    CHECK(std::string(p.begin(), p.end()) == payloads[static_cast<std::size_t>(i) % 4] + std::to_string(i / 4));
  }
  CHECK(files.where(5) == (folder / "f1").string() + " record 1");
  CHECK(files.index().path() == folder / "index");
}

TEST_CASE("every flipped bit is detected, and the error names the file and the record") {
  File file;
  std::string text;
  for (const char* p : {"first record", "second", "3"}) io::append_tfrecord(text, p);
  file.bytes = Bytes(text.begin(), text.end());
  REQUIRE(file.error().empty());
  for (std::size_t k = 0; k < file.bytes.size() * 8; ++k) {
    file.bytes[k / 8] ^= static_cast<std::uint8_t>(1U << (k % 8));
    const std::string e = file.error();
    file.bytes[k / 8] ^= static_cast<std::uint8_t>(1U << (k % 8));
    const int record = k / 8 < 28 ? 0 : k / 8 < 50 ? 1 : 2;
    CHECK_MESSAGE(contains(e, (file.folder / "data").string() + " record " + std::to_string(record)), e);
  }
}

TEST_CASE("a file that does not end after a record is truncated") {
  File file;
  std::string text;
  for (const char* p : {"first record", "second", "3"}) io::append_tfrecord(text, p);
  for (std::size_t n = 0; n < text.size(); ++n) {
    file.bytes = Bytes(text.begin(), text.begin() + static_cast<long>(n));
    const std::string e = file.error();
    if (n == 28 || n == 50) {
      CHECK(e.empty());
    } else {
      CHECK_MESSAGE(contains(e, n == 0 ? "1 record or more" : "truncated"), e);
      CHECK(contains(e, (file.folder / "data").string()));
    }
  }
}

TEST_CASE("an impossible length allocates no memory") {
  File file;
  for (const std::uint64_t length : {std::uint64_t{100}, most_record_bytes, most_record_bytes + 1,
                                     std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{0} - 15}) {
    std::string text;
    io::append_little_endian(text, length, 8);
    io::append_little_endian(text, io::mask_crc32c(io::crc32c(text)), 4);
    text += "some bytes";
    file.bytes = Bytes(text.begin(), text.end());
    CHECK_MESSAGE(contains(file.error(), "record 0"), file.error());
  }
  file.bytes = {0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  CHECK(contains(file.error(), "gunzip"));
}

TEST_CASE("a file that changes during use is an error") {
  const TempFolder folder;
  std::string text;
  for (int k = 0; k < 3; ++k) io::append_tfrecord(text, "payload " + std::to_string(k));
  write_text(folder / "data", text);
  const TfRecordFiles files({folder / "data"}, folder / "index");
  std::filesystem::resize_file(folder / "data", 40);
  Bytes frame;
  CHECK(files.read(0, frame).size() == 9);
  CHECK(contains(message_of<DataError>([&] { (void)files.read(2, frame); }), "record 2"));
  write_text(folder / "data", std::string(text.size(), 'x'));
  CHECK(contains(message_of<DataError>([&] { (void)files.read(1, frame); }), "record 1"));
  std::filesystem::remove(folder / "data");
  CHECK_THROWS_AS(TfRecordFiles({folder / "data"}, folder / "index"), DataError);
  std::filesystem::create_directory(folder / "data");
  CHECK_THROWS_AS(TfRecordFiles({folder / "data"}, folder / "index"), DataError);
}

TEST_CASE("a tf.train.Example that is read has the features that were written") {
  ExampleWriter w;
  const std::vector<std::int64_t> ints{-5, 0, 300, INT64_MIN, INT64_MAX};
  const std::vector<float> floats{1.5F, -2};
  w.add_ints("ints", ints);
  w.add_ints("none", std::vector<std::int64_t>{});
  w.add("text", "hello");
  w.add_int("one", 300);
  w.add("text", "later");
  const std::string payload = with_floats(w.payload(), "floats", floats);
  std::vector<std::string> names;
  std::string text;
  for_each_feature(bytes_of(payload), "test", [&](std::string_view name, const Feature& f) {
    names.emplace_back(name);
    if (name == "ints") CHECK(f.first_int() == -5);
    if (name == "one") CHECK(f.first_int() == 300);
    if (name == "none") CHECK(!f.first_int());
    if (name == "floats") CHECK((f.kind() == Feature::Kind::floats && !f.first_int() && !f.first_bytes()));
    if (name == "text") text += f.first_text().value();
    if (name == "text") CHECK(!f.first_int());
  });
  CHECK(names == std::vector<std::string>{"ints", "none", "text", "one", "text", "floats"});
  CHECK(text == "hellolater");
}

TEST_CASE("unpacked integers and unknown fields are read as protobuf specifies") {
  // The message is feature { key: "k" value { int64_list { value: 7 } } }. The value is not packed, and three unknown
  // fields precede it: a varint, a fixed64 and a fixed32.
  const Bytes list{0x10, 0x01, 0x08, 0x07};
  const Bytes value{0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x1A, 4, 0x10, 0x01, 0x08, 0x07};
  Bytes entry{0x0A, 1, 'k', 0x12, static_cast<std::uint8_t>(value.size())};
  entry.insert(entry.end(), value.begin(), value.end());
  Bytes map{0x0A, static_cast<std::uint8_t>(entry.size())};
  map.insert(map.end(), entry.begin(), entry.end());
  Bytes all{0x7D, 9, 9, 9, 9, 0x0A, static_cast<std::uint8_t>(map.size())};
  all.insert(all.end(), map.begin(), map.end());
  int seen = 0;
  for_each_feature(all, "test", [&](std::string_view name, const Feature& f) {
    CHECK(name == "k");
    CHECK(f.first_int() == 7);
    ++seen;
  });
  CHECK(seen == 1);
}

TEST_CASE("bytes that are not a protobuf message are an error") {
  const auto error = [](const Bytes& b) {
    return message_of<DataError>(
        [&] { for_each_feature(b, "here", [](std::string_view, const Feature& f) { (void)f.first_int(); }); });
  };
  CHECK(contains(error({0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 1}), "here"));  // states 4 GiB, has 1 byte
  CHECK(contains(error({0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}), "here"));
  CHECK(contains(error({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F}), "64 bits"));
  CHECK(contains(error({0x0B}), "wire type"));  // a field of type group
  CHECK(contains(error({0x02, 0}), "number"));  // the field number 0
  CHECK(contains(error({0x0A}), "bytes"));      // the message ends after the tag
  CHECK(contains(error({0x0A, 2, 0x0A, 5}), "bytes"));
  // The message is cut after any byte.
  ExampleWriter w;
  w.add_int("a", 1000);
  w.add("b", "text");
  const std::string payload = w.payload();
  for (std::size_t n = 1; n < payload.size(); ++n)
    CHECK(!error(Bytes(payload.begin(), payload.begin() + static_cast<long>(n))).empty());
}
