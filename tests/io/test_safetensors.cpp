// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti::io;
using tutti::bf16;
using tutti::DataError;
using tutti::DType;
using tutti::Shape;
using tutti::UsageError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::TempFolder;

namespace {

// Returns the bytes of a file with this header text and this amount of data.
std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> out(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) out[8 + header.size() + i] = static_cast<std::byte>(i);
  return out;
}

std::string complaint(const std::vector<std::byte>& file) {
  return message_of<DataError>([&] { (void)Safetensors::view(file, "t"); });
}
std::string complaint(const std::string& header, std::size_t data_bytes) {
  return complaint(file_of(header, data_bytes));
}

}  // namespace

TEST_CASE("a written file is read back: types, shapes, order, alignment, metadata") {
  const TempFolder folder;
  const std::vector<std::uint8_t> u8{1, 2, 3};
  const std::vector<float> f32{1.5F, -2.0F, 3e-40F, 4, 5, 6};
  const std::vector<double> f64{0.1};
  const std::vector<bf16> b16{bf16(1.0F), bf16(-3.0F)};
  const std::vector<std::int64_t> i64{-1, 1LL << 62};
  const std::vector<std::int32_t> i32{7};
  const std::vector<TensorRecord> records{make_record<std::uint8_t>("bytes", {3}, u8),
                                          make_record<float>("weight", {2, 3}, f32),
                                          make_record<double>("scale", {}, f64),
                                          make_record<bf16>("half", {1, 2, 1, 1}, b16),
                                          make_record<std::int64_t>("steps", {2}, i64),
                                          make_record<std::int32_t>("one", {1}, i32),
                                          make_record<float>("empty", {0, 5}, std::span<const float>())};
  save_safetensors(folder / "a.safetensors", records, {{"made by", "tutti"}});

  auto opened = Safetensors::open(folder / "a.safetensors");
  const Safetensors file = std::move(opened);
  CHECK(file.entries().size() == 7);
  REQUIRE(file.metadata().size() == 1);
  CHECK(file.metadata()[0] == std::pair<std::string, std::string>("made by", "tutti"));
  CHECK(file.record("scale").shape == Shape{});
  CHECK(file.record("scale").values<double>()[0] == 0.1);
  CHECK(file.record("weight").shape == Shape{2, 3});
  CHECK(std::memcmp(file.record("weight").values<float>().data(), f32.data(), 24) == 0);
  CHECK(file.record("weight").copy_values<float>() == f32);
  CHECK(file.record("half").values<bf16>()[1].bits == b16[1].bits);
  CHECK(file.record("steps").copy_values<std::int64_t>() == i64);
  CHECK(file.record("one").values<std::int32_t>()[0] == 7);
  CHECK(file.record("bytes").copy_values<std::uint8_t>() == u8);
  CHECK(file.record("empty").shape == Shape{0, 5});
  CHECK(file.record("empty").values<float>().empty());
  const auto all = file.records();
  CHECK(all.size() == 7);
  CHECK(record_named(all, "one").dtype == DType::i32);
  CHECK_THROWS_AS((void)record_named(all, "none"), DataError);
  CHECK(contains(message_of<DataError>([&] { (void)file.record("none"); }), "'none'"));
  CHECK(contains(message_of<DataError>([&] { (void)file.record("one").values<float>(); }), "f32, got i32"));
}

TEST_CASE("a small file has the specified bytes") {
  const std::vector<float> v{1.0F};
  const std::vector<TensorRecord> records{make_record<float>("a", {1}, v)};
  std::vector<std::byte> out;
  write_safetensors([&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); }, records);
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  REQUIRE(header.size() == 54);
  CHECK(std::string(reinterpret_cast<const char*>(out.data()), out.size()) ==
        std::string("\x38\0\0\0\0\0\0\0", 8) + header + "  " + std::string("\0\0\x80\x3f", 4));
}

TEST_CASE("a file may have no tensors") {
  CHECK(Safetensors::view(file_of("{}", 0)).entries().empty());
  CHECK(Safetensors::view(file_of("{}    ", 0)).entries().empty());
}

TEST_CASE("every truncation and extension is refused") {
  const std::vector<float> v{1, 2, 3};
  const std::vector<TensorRecord> records{make_record<float>("a", {3}, v), make_record<float>("b", {1, 3}, v)};
  std::vector<std::byte> whole;
  write_safetensors([&](std::span<const std::byte> b) { whole.insert(whole.end(), b.begin(), b.end()); }, records);
  REQUIRE(complaint(whole).empty());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    REQUIRE_MESSAGE(!complaint(part).empty(), n);
  }
  whole.push_back(std::byte{0});
  CHECK(contains(complaint(whole), "belong to no tensor"));
}

TEST_CASE("hostile headers are refused") {
  auto huge = file_of("{}", 0);
  const auto set_length = [&](std::uint64_t n) { std::memcpy(huge.data(), &n, 8); };
  set_length(100'000'001);
  CHECK(contains(complaint(huge), "at most 100000000 bytes"));
  set_length(~std::uint64_t{0});
  CHECK(contains(complaint(huge), "at most 100000000 bytes"));
  set_length(99'999'999);
  CHECK(contains(complaint(huge), "truncated"));
  set_length(0);
  CHECK(contains(complaint(huge), "begins with '{'"));
  CHECK(contains(complaint(" {}", 0), "begins with '{'"));
  CHECK(contains(complaint("[]", 0), "begins with '{'"));

  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  CHECK(complaint(tensor("F32", "[2]", "[0,8]"), 8).empty());
  CHECK(contains(complaint(tensor("F32", "[2]", "[0,8]"), 7), "within the 7 bytes"));
  CHECK(contains(complaint(tensor("F32", "[3]", "[0,8]"), 8), "tensor 'x'] expected 12 bytes"));
  CHECK(contains(complaint(tensor("F33", "[2]", "[0,8]"), 8), "'F33'"));
  CHECK(contains(complaint(tensor("F32", "[2]", "[8,0]"), 8), "data_offsets"));
  CHECK(contains(complaint(tensor("F32", "[-2]", "[0,8]"), 8), "shape"));
  CHECK(contains(complaint(tensor("F32", "[2.0]", "[0,8]"), 8), "an integer"));
  CHECK(contains(complaint(tensor("F32", "[2]", "[0]"), 8), "two data_offsets"));
  CHECK(contains(complaint(tensor("F32", "[2]", "[0,8,8]"), 8), "two data_offsets"));
  CHECK(contains(complaint(tensor("F32", "[2]", "[-8,0]"), 8), "data_offsets"));
  CHECK(contains(complaint(tensor("F32", "[4611686018427387904,4]", "[0,0]"), 0), "a shape of valid size"));
  CHECK(contains(complaint(tensor("F32", "[4611686018427387904]", "[0,0]"), 0), "a shape of valid size"));
  CHECK(contains(complaint(tensor("U8", "[0,9223372036854775807,2]", "[0,0]"), 0), "a shape of valid size"));
  // An empty tensor is refused if its extents other than 0 have a product of more than 2^48.
  CHECK(contains(complaint(tensor("F32", "[0,281474976710657]", "[0,0]"), 0), "a shape of valid size"));
  CHECK(contains(complaint(tensor("F32", "[281474976710656,0,3]", "[0,0]"), 0), "a shape of valid size"));
  CHECK(contains(complaint(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}})", 0), "'more'"));
  CHECK(contains(complaint(R"({"x":{"dtype":"U8","shape":[0]}})", 0), "'data_offsets'"));
  CHECK(contains(complaint(R"({"x":[]})", 0), "an object"));
  CHECK(contains(complaint(R"({"__metadata__":{"a":1}})", 0), "__metadata__ a] expected a string"));
  const std::string one = R"("dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string two = R"("dtype":"U8","shape":[4],"data_offsets":[4,8]})";
  const std::string far = R"("dtype":"U8","shape":[4],"data_offsets":[5,9]})";
  const std::string over = R"("dtype":"U8","shape":[4],"data_offsets":[3,7]})";
  CHECK(complaint("{\"a\":{" + two + ",\"b\":{" + one + "}", 8).empty());
  CHECK(contains(complaint("{\"a\":{" + one + ",\"a\":{" + two + "}", 8), "'a' again"));
  CHECK(contains(complaint("{\"a\":{" + one + ",\"b\":{" + far + "}", 9), "allows no gap"));
  CHECK(contains(complaint("{\"a\":{" + one + ",\"b\":{" + over + "}", 7), "overlap"));
  CHECK(contains(complaint("{\"a\":{" + one + ",\"b\":{" + one + "}", 4), "overlap"));
  CHECK(contains(complaint("{\"b\":{" + two + "}", 8), "allows no gap"));
}

TEST_CASE("entries are sorted by the offsets of the data") {
  const auto file = file_of(R"({"z":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                            R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                            R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                            4);
  const auto st = Safetensors::view(file);
  REQUIRE(st.entries().size() == 3);
  CHECK(st.entries()[0].name == "a");
  CHECK(st.entries()[1].name == "e");
  CHECK(st.entries()[2].name == "z");
  CHECK(static_cast<int>(st.record("z").bytes[1]) == 3);
}

TEST_CASE("tensors of unsupported type or rank are listed; reading fails with an error that names the tensor") {
  const auto file = file_of(R"({"h":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                            R"("b":{"dtype":"BOOL","shape":[1],"data_offsets":[2,3]},)"
                            R"("six":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[3,4]}})",
                            4);
  const auto st = Safetensors::view(file, "old.safetensors");
  REQUIRE(st.entries().size() == 3);
  CHECK(st.find("h")->type->name == "F16");
  CHECK(contains(message_of<DataError>([&] { (void)st.record("h"); }),
                 "[safetensors old.safetensors tensor 'h'] expected F32, BF16, F64, U8, I32 or I64, got F16. hint"));
  CHECK(contains(message_of<DataError>([&] { (void)st.record("b"); }), "BOOL"));
  CHECK(contains(message_of<DataError>([&] { (void)st.record("six"); }), "at most 5 dimensions, got 6"));
  CHECK_THROWS_AS((void)st.records(), DataError);
}

TEST_CASE("unaligned values of a file can be copied") {
  const auto file = file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})" +
                                std::string(2, ' '),
                            5);
  const auto b = Safetensors::view(file).record("b");
  REQUIRE(reinterpret_cast<std::uintptr_t>(b.bytes.data()) % 4 != 0);
  CHECK(contains(message_of<DataError>([&] { (void)b.values<float>(); }), "copy_values"));
  CHECK(b.copy_values<float>().size() == 1);
}

TEST_CASE("the writer refuses tensors that no reader accepts") {
  const std::vector<float> v{1, 2};
  const auto write = [](const std::vector<TensorRecord>& records, const SafetensorsMetadata& metadata = {}) {
    return message_of<UsageError>([&] { write_safetensors([](std::span<const std::byte>) {}, records, metadata); });
  };
  const auto a = make_record<float>("a", {2}, v);
  CHECK(write({a}).empty());
  CHECK(contains(write({a, a}), "'a'"));
  CHECK(contains(write({make_record<float>("__metadata__", {2}, v)}), "__metadata__"));
  CHECK(contains(write({make_record<float>("\xFF", {2}, v)}), "UTF-8"));
  CHECK(contains(write({{"a", DType::f32, {3}, std::as_bytes(std::span(v))}}), "12 bytes, got 8"));
  CHECK(contains(write({a}, {{"k", "1"}, {"k", "2"}}), "'k'"));
  CHECK_THROWS_AS((void)make_record<float>("a", {3}, v), tutti::ShapeError);
}
