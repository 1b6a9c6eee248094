// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/gunzip.hpp>

#include "temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

std::vector<std::uint8_t> bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// As gzip itself packs it.
std::vector<std::uint8_t> packed(const TempFolder& folder, const std::vector<std::uint8_t>& data,
                                 const std::string& options) {
  write_file(folder / "data", data);
  const std::string name = (folder / "data").string();
  REQUIRE(std::system(("gzip -c " + options + " '" + name + "' > '" + name + ".gz'").c_str()) == 0);
  return bytes_of(folder / "data.gz");
}

std::vector<std::uint8_t> mixed(std::size_t n, unsigned different) {
  Rng rng(n, Purpose::user);
  std::vector<std::uint8_t> v(n);
  for (std::size_t i = 0; i < n; ++i)
    v[i] = i > 1000 && rng.below(4) != 0 ? v[i - 1 - rng.below(900)] : static_cast<std::uint8_t>(rng.below(different));
  return v;
}

constexpr std::size_t most = 1 << 24;

}  // namespace

TEST_CASE("what gzip packs comes out again") {
  const TempFolder folder;
  for (const std::size_t n : {0U, 1U, 5U, 300U, 70000U, 1000000U})
    for (const unsigned different : {1U, 7U, 256U})
      for (const std::string options : {"-1", "-9", "-n -6"}) {
        const auto data = mixed(n, different);
        CAPTURE(n);
        CAPTURE(different);
        CHECK(gunzip(packed(folder, data, options), most, "test") == data);
      }
  // Noise, which gzip stores.
  Rng rng(1, Purpose::user);
  std::vector<std::uint8_t> noise(200000);
  for (auto& b : noise) b = static_cast<std::uint8_t>(rng.next());
  CHECK(gunzip(packed(folder, noise, ""), most, "test") == noise);
}

TEST_CASE("every cut and every changed byte of a packed file is noticed") {
  const TempFolder folder;
  const auto data = mixed(3000, 60);
  const auto file = packed(folder, data, "-n");
  for (std::size_t n = 0; n < file.size(); ++n)
    REQUIRE_THROWS_AS((void)gunzip(std::span(file).first(n), most, "test"), DataError);
  int unchanged = 0;
  for (std::size_t i = 0; i < file.size(); ++i)
    for (const unsigned flip : {0x01U, 0x10U, 0x80U}) {
      auto damaged = file;
      damaged[i] = static_cast<std::uint8_t>(damaged[i] ^ flip);
      std::vector<std::uint8_t> got;
      if (!message_of<DataError>([&] { got = gunzip(damaged, most, "test"); }).empty()) continue;
      // Time stamp, operating system and the like may change without harm, the contents may not.
      REQUIRE(got == data);
      ++unchanged;
    }
  CHECK(unchanged <= 3 * 6 + 3);
  auto longer = file;
  longer.push_back(0);
  CHECK_THROWS_AS((void)gunzip(longer, most, "test"), DataError);
}

TEST_CASE("no more is unpacked than allowed") {
  const TempFolder folder;
  const std::vector<std::uint8_t> zeros(1'000'000);
  const auto file = packed(folder, zeros, "");
  CHECK(gunzip(file, 1'000'000, "test").size() == 1'000'000);
  CHECK(contains(message_of<DataError>([&] { (void)gunzip(file, 999'999, "bomb.gz"); }), "[bomb.gz]"));
}
