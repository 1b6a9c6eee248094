// SPDX-License-Identifier: MIT
#include <sys/resource.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/tfevents.hpp>
#include <tutti/io/tfevents_summary.hpp>

#include "../data/temp_folder.hpp"
#include "size_limit.hpp"

using namespace tutti::io;
using tutti::test::SizeLimit;
using tutti::test::TempFolder;

namespace {

// A small, independent decoder, which follows the documents of the formats.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] bool done() const { return bytes_.empty(); }
  std::string_view take(std::size_t n) {
    if (n > bytes_.size()) throw std::runtime_error("truncated");
    const auto out = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return out;
  }
  std::uint64_t fixed(std::size_t n) {
    std::uint64_t v = 0;
    const auto b = take(n);
    for (std::size_t i = n; i-- > 0;) v = v << 8 | static_cast<std::uint8_t>(b[i]);
    return v;
  }
  std::uint64_t varint() {
    std::uint64_t v = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto b = static_cast<std::uint8_t>(take(1)[0]);
      v |= static_cast<std::uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) return v;
    }
    throw std::runtime_error("varint");
  }

 private:
  std::string_view bytes_;
};

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::map<std::string, float> values;
};

std::pair<std::string, float> decode_value(std::string_view bytes) {
  std::pair<std::string, float> out;
  for (Reader r(bytes); !r.done();) {
    const auto key = r.varint();
    if (key == (1 << 3 | 2)) {
      out.first = r.take(r.varint());
    } else if (key == (2 << 3 | 5)) {
      out.second = std::bit_cast<float>(static_cast<std::uint32_t>(r.fixed(4)));
    } else {
      throw std::runtime_error("Value field");
    }
  }
  return out;
}

Event decode_event(std::string_view bytes) {
  Event e;
  for (Reader r(bytes); !r.done();) switch (r.varint()) {
      case 1 << 3 | 1:
        e.wall_time = std::bit_cast<double>(r.fixed(8));
        break;
      case 2 << 3 | 0:
        e.step = static_cast<std::int64_t>(r.varint());
        break;
      case 3 << 3 | 2:
        e.version = r.take(r.varint());
        break;
      case 5 << 3 | 2:
        for (Reader s(r.take(r.varint())); !s.done();) {
          if (s.varint() != (1 << 3 | 2)) throw std::runtime_error("Summary field");
          e.values.insert(decode_value(s.take(s.varint())));
        }
        break;
      default:
        throw std::runtime_error("Event field");
    }
  return e;
}

std::vector<Event> decode_file(const Path& path) {
  const std::string text = read_text_file(path, 1 << 20);
  std::vector<Event> events;
  for (Reader r(text); !r.done();) {
    const auto length = r.take(8);
    if (r.fixed(4) != mask_crc32c(crc32c(length))) throw std::runtime_error("length crc");
    const auto payload = r.take(Reader(length).fixed(8));
    if (r.fixed(4) != mask_crc32c(crc32c(payload))) throw std::runtime_error("data crc");
    events.push_back(decode_event(payload));
  }
  return events;
}

}  // namespace

TEST_CASE("scalars are read back unchanged") {
  const TempFolder folder;
  EventWriter writer(folder / "run" / "tb");
  writer.scalar("train/loss", 1, 2.5F);
  writer.scalars(300, {{"train/loss", 0.25F}, {"lr", 1e-3F}, {"nan", std::nanf("")}});
  writer.scalar("big", std::int64_t{1} << 40, -1.0F);
  CHECK(writer.path().filename().string().starts_with("events.out.tfevents."));

  const auto events = decode_file(writer.path());
  REQUIRE(events.size() == 4);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[1].step == 1);
  CHECK(events[1].values == std::map<std::string, float>{{"train/loss", 2.5F}});
  CHECK(events[2].step == 300);
  CHECK(events[2].values.size() == 3);
  CHECK(events[2].values.at("lr") == 1e-3F);
  CHECK(std::isnan(events[2].values.at("nan")));
  CHECK(events[3].step == std::int64_t{1} << 40);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& e : events) CHECK(std::abs(e.wall_time - now) < 3600);
}

TEST_CASE("two writers of one run do not share a file") {
  const TempFolder folder;
  const EventWriter a(folder.path());
  const EventWriter b(folder.path());
  CHECK(a.path() != b.path());
}

TEST_CASE("one event has the specified bytes") {
  const std::vector<Scalar> one{{"a", 1.0F}};
  CHECK(encode_scalar_event(2.0, 300, one) ==
        std::string("\x09\0\0\0\0\0\0\0\x40\x10\xAC\x02\x2A\x0A\x0A\x08\x0A\x01\x61\x15\0\0\x80\x3F", 24));
  CHECK(encode_version_event(2.0) == std::string("\x09\0\0\0\0\0\0\0\x40\x1A\x0D", 11) + "brain.Event:2");
}

TEST_CASE("a histogram counts the finite values in equal parts of their range") {
  std::vector<float> values{std::nanf(""), -std::numeric_limits<float>::infinity()};
  for (int i = 0; i <= 300; ++i) values.push_back(static_cast<float>(i) - 100);
  const Histogram h = Histogram::of(values);
  CHECK(h.least == -100);
  CHECK(h.greatest == 200);
  CHECK(h.count == 301);
  CHECK(h.sum == 301 * 50);
  CHECK(h.squares == 338350 + 2686700);  // squares of -100 to 0 and of 0 to 200
  CHECK(h.in_part.front() == 10);
  CHECK(h.in_part.back() == 11);  // the last part includes its upper limit

  const std::vector<float> same(7, 3.F);
  const Histogram one = Histogram::of(same);
  CHECK(one.in_part.front() == 7);
  CHECK(one.least == one.greatest);
  CHECK(Histogram::of({}).count == 0);

  const std::string bytes = encode_histogram_event(2.0, 300, "w", h);
  std::vector<double> numbers, limits, counts;
  std::string tag;
  Reader e(bytes);
  CHECK(e.varint() == (1 << 3 | 1));
  CHECK(e.fixed(8) == std::bit_cast<std::uint64_t>(2.0));
  CHECK(e.varint() == 2 << 3);
  CHECK(e.varint() == 300);
  REQUIRE(e.varint() == (5 << 3 | 2));
  Reader summary(e.take(e.varint()));
  REQUIRE(summary.varint() == (1 << 3 | 2));
  for (Reader value(summary.take(summary.varint())); !value.done();) {
    const auto key = value.varint();
    const auto field = value.take(value.varint());
    if (key == (1 << 3 | 2)) {
      tag = field;
      continue;
    }
    REQUIRE(key == (5 << 3 | 2));
    for (Reader r(field); !r.done();) {
      const auto part = r.varint();
      if ((part & 7) == 1) {
        numbers.push_back(std::bit_cast<double>(r.fixed(8)));
        continue;
      }
      for (Reader list(r.take(r.varint())); !list.done();)
        (part >> 3 == 6 ? limits : counts).push_back(std::bit_cast<double>(list.fixed(8)));
    }
  }
  CHECK(tag == "w");
  CHECK(numbers == std::vector<double>{h.least, h.greatest, h.count, h.sum, h.squares});
  REQUIRE(limits.size() == Histogram::parts);
  CHECK(limits.front() == -90);
  CHECK(limits.back() == 200);
  CHECK(counts == std::vector<double>(h.in_part.begin(), h.in_part.end()));
}

TEST_CASE("a failed write of an event leaves no bytes in the file") {
  const TempFolder folder;
  EventWriter writer(folder.path());
  {
    const SizeLimit limit(100);
    CHECK_THROWS_AS(writer.scalar(std::string(500, 'x'), 1, 1.0F), FileError);
  }
  writer.scalar("after", 2, 1.0F);
  const auto events = decode_file(writer.path());
  REQUIRE(events.size() == 2);
  CHECK(events[1].values.count("after") == 1);
}
