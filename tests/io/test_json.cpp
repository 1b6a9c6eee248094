// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <tutti/core/rng.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/json/json_lines.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti::io;
using tutti::DataError;
using tutti::UsageError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::TempFolder;

namespace {

std::string complaint(std::string_view text, const JsonLimits& limits = {}) {
  return message_of<DataError>([&] { (void)parse_json(text, "t", limits); });
}

std::string slurp(const Path& path) { return read_text_file(path, 1 << 20); }

}  // namespace

TEST_CASE("parses each kind of value") {
  CHECK(parse_json("null").is_null());
  CHECK(parse_json(" true ").as_bool());
  CHECK_FALSE(parse_json("false").as_bool());
  CHECK(parse_json("-12").as_integer() == -12);
  CHECK(parse_json("9223372036854775807").as_integer() == std::numeric_limits<std::int64_t>::max());
  CHECK(parse_json("-9223372036854775808").as_integer() == std::numeric_limits<std::int64_t>::min());
  CHECK(parse_json("1.5e3").as_double() == 1500.0);
  CHECK(parse_json("1e2").is_double());
  CHECK(parse_json("0").is_integer());
  CHECK(parse_json("-0").is_double());
  CHECK(std::signbit(parse_json("-0").as_double()));
  CHECK(parse_json("7").as_double() == 7.0);
  const Json j = parse_json("{\"b\": [1, {}, []], \"a\": \"x\"}\n");
  CHECK(j.as_object()[0].first == "b");
  CHECK(j.as_object()[1].first == "a");
  CHECK(j.at("b").as_array().size() == 3);
  CHECK(j.at("a").as_string() == "x");
  CHECK(j.find("c") == nullptr);
}

TEST_CASE("reading a value as another kind fails, and the error names the value") {
  const Json j = parse_json("{\"a\": 1.5}");
  CHECK(contains(message_of<DataError>([&] { (void)j.at("a").as_integer("counters a"); }), "[counters a]"));
  CHECK(contains(message_of<DataError>([&] { (void)j.at("a").as_integer(); }), "an integer, got a double"));
  CHECK(contains(message_of<DataError>([&] { (void)j.at("b"); }), "'b'"));
  CHECK(contains(message_of<DataError>([&] { (void)Json(3).at("b"); }), "an object"));
}

TEST_CASE("strings are UTF-8 with escapes") {
  CHECK(parse_json(R"("\"\\\/\b\f\n\r\t")").as_string() == "\"\\/\b\f\n\r\t");
  CHECK(parse_json(R"("A\u00e9\u20AC")").as_string() == "A\xC3\xA9\xE2\x82\xAC");
  CHECK(parse_json(R"("\ud83d\ude00")").as_string() == "\xF0\x9F\x98\x80");
  CHECK(parse_json("\"\\u0000x\"").as_string() == std::string("\0x", 2));
  CHECK(parse_json("\"\xF0\x9F\x98\x80\"").as_string() == "\xF0\x9F\x98\x80");
  for (const char* bad : {R"("\ud83d")", R"("\ud83dx")", R"("\ud83d\u0041")", R"("\ude00")", R"("\u12g4")", R"("\u12")",
                          R"("\x41")", "\"\t\"", "\"\x01\"", "\"abc", "\"\\", "\"\\u"})
    CHECK_MESSAGE(!complaint(bad).empty(), bad);
  // Invalid UTF-8: a continuation byte alone, overlong forms, a surrogate, code points above U+10FFFF, a truncated
  // character.
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC1\x81", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF0\x80\x80\xAF", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"})
    CHECK_MESSAGE(contains(complaint("\"" + std::string(bad) + "\""), "UTF-8"), bad);
}

TEST_CASE("text that is not JSON is refused") {
  for (const char* bad : {"",
                          " ",
                          "nul",
                          "nulll",
                          "True",
                          "+1",
                          "01",
                          "-01",
                          "-",
                          "1.",
                          ".5",
                          "1e",
                          "1e+",
                          "0x10",
                          "1 2",
                          "[1,]",
                          "[,1]",
                          "[1 2]",
                          "{\"a\":1,}",
                          "{a:1}",
                          "{\"a\" 1}",
                          "{\"a\":}",
                          "{1:2}",
                          "[",
                          "{",
                          "{\"a\":1",
                          "]",
                          "'a'",
                          "// c\n1",
                          "NaN",
                          "Infinity",
                          "-Infinity",
                          "\xEF\xBB\xBF"
                          "1",
                          "1e999",
                          "-1e999",
                          "1e-999",
                          "9223372036854775808",
                          "-9223372036854775809",
                          "{\"a\":1,\"a\":1}",
                          "\"a\"b"})
    CHECK_MESSAGE(!complaint(bad).empty(), bad);
  CHECK(!complaint(std::string_view("1\0", 2)).empty());
}

TEST_CASE("errors contain line and column") {
  CHECK(contains(complaint("{\n  \"a\": 1,\n  \"b\" 2\n}"), "[json t:3:7] expected ':' after the key, got '2'"));
  CHECK(contains(complaint("[1, 2"), "t:1:6] expected ',' or ']', got the end of the text"));
  CHECK(contains(complaint("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"),
                 "t:3:2] expected each key once, got the key 'a' again"));
  CHECK(contains(complaint("[\x01]"), "t:1:2] expected a value, got the byte 0x01"));
}

TEST_CASE("depth and size are limited") {
  const auto nested = [](int n) {
    return std::string(static_cast<std::size_t>(n), '[') + std::string(static_cast<std::size_t>(n), ']');
  };
  CHECK(parse_json(nested(64)).is_array());
  CHECK(contains(complaint(nested(65)), "64 levels"));
  CHECK(contains(complaint(std::string(100000, '[')), "64 levels"));
  CHECK(contains(complaint("[1,2,3]", {.bytes = 6}), "at most 6 bytes"));
  CHECK(contains(complaint("[1,2,3]", {.values = 3}), "at most 3 values"));
  CHECK(parse_json("[1,2,3]", "t", {.values = 4}).as_array().size() == 3);
  Json deep = 1;
  for (int i = 0; i < 65; ++i) deep = Json::array({deep});
  CHECK_THROWS_AS((void)write_json(deep), UsageError);
}

TEST_CASE("written values are read back") {
  const Json j = Json::object({{"i", -5},
                               {"d", 0.1},
                               {"whole", 3.0},
                               {"s", "a\"\\\n\x01\x7F\xC3\xA9"},
                               {"n", nullptr},
                               {"b", true},
                               {"list", Json::array({1, 2.5, "x"})},
                               {"empty", Json::object()}});
  CHECK(write_json(j) ==
        "{\"i\":-5,\"d\":0.1,\"whole\":3.0,\"s\":\"a\\\"\\\\\\n\\u0001\\u007f\xC3\xA9\",\"n\":null,"
        "\"b\":true,\"list\":[1,2.5,\"x\"],\"empty\":{}}");
  CHECK(parse_json(write_json(j)) == j);
  CHECK(parse_json(write_json(j, 2)) == j);
  CHECK(write_json(Json::object({{"a", Json::array({1})}}), 2) == "{\n  \"a\": [\n    1\n  ]\n}");
  CHECK(parse_json(write_json(3.0)).is_double());
  CHECK(write_json(-0.0) == "-0.0");
}

TEST_CASE("doubles round-trip bit by bit") {
  const auto same = [](double v) {
    const double back = parse_json(write_json(v)).as_double();
    return std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(v);
  };
  for (const double v : {0.0, -0.0, 0.1, 1e300, 1e20, 123456789012345680.0, 5e-324, 2.2250738585072014e-308,
                         std::numeric_limits<double>::max(), 1.0 / 3})
    CHECK(same(v));
  std::uint64_t x = 88172645463325252U;
  for (int i = 0; i < 20000; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    const auto v = std::bit_cast<double>(x);
    if (std::isfinite(v)) REQUIRE(same(v));
  }
}

TEST_CASE("values that JSON cannot represent are refused") {
  CHECK(contains(message_of<UsageError>([] { (void)write_json(std::nan("")); }), "NaN"));
  CHECK(contains(
      message_of<UsageError>([] { (void)write_json(Json::array({-std::numeric_limits<double>::infinity()})); }),
      "infinity"));
  CHECK(contains(message_of<UsageError>([] { (void)write_json("\xFF"); }), "UTF-8"));
  CHECK_THROWS_AS((void)Json(std::numeric_limits<std::uint64_t>::max()), UsageError);
  CHECK_THROWS_AS((void)Json::object({{"a", 1}, {"a", 2}}), UsageError);
}

TEST_CASE("set replaces the value of a key, and push_back appends") {
  Json j;
  j.set("a", 1).set("b", 2).set("a", 3);
  CHECK(write_json(j) == R"({"a":3,"b":2})");
  Json list;
  list.push_back(1).push_back("x");
  CHECK(write_json(list) == R"([1,"x"])");
  CHECK_THROWS_AS(list.set("a", 1), DataError);
}

TEST_CASE("duplicate keys in a large object are found quickly") {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  CHECK(parse_json(text + "\"x\":1}").as_object().size() == 200001);
  CHECK(contains(complaint(text + "\"777\":1}"), "'777' again"));
}

TEST_CASE("JsonLines appends whole lines and removes a partial line") {
  const TempFolder folder;
  const Path path = folder / "log.jsonl";
  {
    JsonLines log(path);
    log.write(Json::object({{"step", 1}}));
    log.write(Json::object({{"step", 2}}));
    CHECK_THROWS_AS(log.write(std::nan("")), UsageError);
    log.sync();
  }
  CHECK(slurp(path) == "{\"step\":1}\n{\"step\":2}\n");
  std::ofstream(path, std::ios::app) << "{\"step\":" << std::string(10000, '3');
  {
    JsonLines log(path);
    CHECK(slurp(path) == "{\"step\":1}\n{\"step\":2}\n");
    log.write(Json::object({{"step", 3}}));
  }
  CHECK(slurp(path) == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  std::ofstream(path, std::ios::trunc) << "{\"half";
  JsonLines log(path);
  CHECK(slurp(path).empty());
}
