// SPDX-License-Identifier: MIT
// Tests bf16, data types, shapes, errors, random numbers and arenas.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/tensor/view.hpp>

#include "core/sanitizers.hpp"

using namespace tutti;

namespace {

float from_bits(std::uint32_t u) { return std::bit_cast<float>(u); }

// Returns the bf16 with the smallest distance in f64; in a tie, the even one. For the rounding, the value after the
// largest number is 2^128.
std::uint16_t nearest_bf16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const auto below = static_cast<std::uint16_t>((u >> 16) & 0x7fffU);
  if (below >= 0x7f80U) return static_cast<std::uint16_t>(sign | below);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const auto value = [](std::uint16_t b) {
    return b == 0x7f80U ? 0x1p128 : static_cast<double>(from_bits(static_cast<std::uint32_t>(b) << 16));
  };
  const double x = std::fabs(static_cast<double>(f)), down = x - value(below), up = value(above) - x;
  const bool take_below = down < up || (down == up && (below & 1U) == 0);
  return static_cast<std::uint16_t>(sign | (take_below ? below : above));
}

template <class E, class F>
std::string thrown(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("bf16: every value survives conversion to f32 and back") {
  int wrong = 0;
  for (std::uint32_t b = 0; b <= 0xffff; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const bf16 again(static_cast<float>(bf16::from_bits(bits)));
    const bool nan = (b & 0x7fffU) > 0x7f80U;
    wrong += again.bits != (nan ? (bits | 0x40U) : bits);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16: rounds to nearest, ties to even, for every upper half") {
  int wrong = 0;
  for (std::uint32_t b = 0; b <= 0xffff; ++b)
    for (std::uint32_t low : {0x0U, 0x1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU, 0x1234U, 0xcdefU}) {
      const float f = from_bits(b << 16 | low);
      const bf16 r(f);
      if (std::isnan(f))
        wrong += !std::isnan(static_cast<float>(r)) || (r.bits & 0x40U) == 0 || (r.bits >> 15) != (b >> 15);
      else
        wrong += r.bits != nearest_bf16(f);
    }
  CHECK(wrong == 0);
}

TEST_CASE("bf16: overflow, infinity, denormals, signed zero and NaN are converted correctly") {
  CHECK(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bf16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
  CHECK(bf16(-0.0F).bits == 0x8000);
  CHECK(bf16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(bf16(from_bits(0x00008001U)).bits == 1);  // slightly more than half of the smallest denormal
  CHECK(bf16(from_bits(0x00018000U)).bits == 2);  // a tie, rounded to the even denormal
  // A NaN; its upper 16 bits are those of infinity.
  CHECK(std::isnan(static_cast<float>(bf16(from_bits(0x7f800001U)))));
  CHECK(static_cast<float>(bf16(1.0 + 1.0 / 128)) == 1.0078125F);
}

TEST_CASE("dtypes have sizes and names") {
  for (DType t : {DType::f32, DType::bf16, DType::f64, DType::u8, DType::i32, DType::i64}) CHECK(name_of(t) != "?");
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(dtype_of<double>) == 8);
  CHECK(with_float_type(DType::bf16, [](auto v) { return sizeof v; }) == 2);
  CHECK_THROWS_AS(with_float_type(DType::u8, [](auto) {}), UsageError);
}

TEST_CASE("shapes give their extents, their product and a text") {
  const Shape s{2, 3, 4, 5};
  CHECK(s.rank() == 4);
  CHECK(s.numel() == 120);
  CHECK(s.row_numel() == 60);
  CHECK(to_string(s) == "[2, 3, 4, 5]");
  CHECK(s.with_rows(7) == Shape{7, 3, 4, 5});
  CHECK(s != Shape{2, 3, 4});
  CHECK(Shape{}.numel() == 1);
  CHECK(to_string(Shape{}) == "[]");
  CHECK(Shape{0, 3}.numel() == 0);
  CHECK(thrown<ShapeError>([] { (void)Shape{1, -2}; }) == "[Shape] expected extents of 0 or more, got -2.");
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1}), ShapeError);
  // The number of elements is computed before memory is allocated. It is an error if 63 bits cannot hold it.
  CHECK_THROWS_AS((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
  CHECK_THROWS_AS((Shape{0, std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
}

TEST_CASE("all error messages have the same form, and each kind of error has its exit code") {
  CHECK(error_message("here", "a", "b") == "[here] expected a, got b.");
  CHECK(error_message("here", "a", "b", "do c") == "[here] expected a, got b. hint: do c.");
  CHECK(thrown<DataError>([] { fail<DataError>("f", "x", "y"); }) == "[f] expected x, got y.");
  // Error messages accept strings of each kind, numbers as std::to_string() writes them, nested lists, and an empty
  // hint.
  const std::string name = "conv1";
  CHECK(error_message({"layer ", name}, {"at most ", 3, " of ", std::size_t{1} << 63}, -2.5,
                      {std::string_view("a"), ""}) ==
        "[layer conv1] expected at most 3 of 9223372036854775808, got " + std::to_string(-2.5) + ". hint: a.");
  CHECK(error_message("here", {{"rank ", std::int64_t{-1}}, " of ", std::uint8_t{200}}, 0.1F, {"", ""}) ==
        "[here] expected rank -1 of 200, got " + std::to_string(0.1F) + ".");
  CHECK(concat({}).empty());
  CHECK(concat({"a ", name, std::string_view(" and more", 4), 1}) == "a conv1 and1");
  CHECK(Error("m").exit_code() == 1);
  CHECK(UsageError("m").exit_code() == 2);
  CHECK(ShapeError("m").exit_code() == 2);
  CHECK(DataError("m").exit_code() == 3);
  CHECK(DeviceError("m").exit_code() == 4);
  CHECK(CommunicationError("m").exit_code() == 5);
  CHECK(NotFiniteError("m").exit_code() == 6);
  CHECK(Error("m", ExitCode::restart).exit_code() == 75);
  CHECK(Error("m", ExitCode::interrupted).exit_code() == 130);
  CHECK(Error("m", ExitCode::terminated).exit_code() == 143);
}

TEST_CASE("rng: Philox4x32-10 known answers of Random123") {
  using A4 = std::array<std::uint32_t, 4>;
  using A2 = std::array<std::uint32_t, 2>;
  CHECK(philox4x32(A4{}, A2{}) == A4{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
  const std::uint32_t f = 0xffffffffU;
  CHECK(philox4x32(A4{f, f, f, f}, A2{f, f}) == A4{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
  CHECK(philox4x32(A4{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, A2{0xa4093822U, 0x299f31d0U}) ==
        A4{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});
}

TEST_CASE("rng: streams are repeatable and differ by seed, purpose, epoch and index") {
  std::set<std::vector<std::uint32_t>> streams;
  int made = 0;
  const auto take = [](Rng r) {
    std::vector<std::uint32_t> v(8);
    for (auto& x : v) x = r.next();
    return v;
  };
  for (std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32})
    for (Purpose p : {Purpose::init, Purpose::shuffle, Purpose::augment, Purpose::synthetic, Purpose::dropout,
                      Purpose::mixing, Purpose::user})
      for (std::uint64_t epoch : {0ULL, 1ULL, 90ULL})
        for (std::uint64_t index : {0ULL, 1ULL, 2ULL, 49999ULL, 1ULL << 32, (1ULL << 32) + 1}) {
          const auto s = take(Rng(seed, p, epoch, index));
          CHECK(s == take(Rng(seed, p, epoch, index)));
          streams.insert(s);
          ++made;
        }
  CHECK(static_cast<int>(streams.size()) == made);
  // Streams do not overlap by a few blocks either.
  std::set<std::uint32_t> numbers;
  std::size_t total = 0;
  for (std::uint64_t index = 0; index < 64; ++index) {
    Rng r(7, Purpose::augment, 3, index);
    for (int i = 0; i < 64; ++i, ++total) numbers.insert(r.next());
  }
  CHECK(numbers.size() + 4 > total);  // 4096 draws of 2^32 values: two equal ones are rare
}

TEST_CASE("rng: the numbers of a batch are a function of seed, purpose, step and logical rank") {
  // Fixed values: all versions and processors must draw the same.
  Rng known = batch_rng(1, Purpose::dropout, 3, 2), same(1, Purpose::dropout, 2, 3);
  CHECK(known.next() == 708167294U);
  CHECK(same.next() == 708167294U);
  std::set<std::uint64_t> first;
  std::size_t made = 0;
  for (const std::uint64_t seed : {1ULL, 2ULL})
    for (const Purpose p : {Purpose::dropout, Purpose::mixing})
      for (std::uint64_t step = 0; step < 20; ++step)
        for (std::uint64_t rank = 0; rank < 20; ++rank, ++made) {
          const std::uint64_t number = batch_rng(seed, p, step, rank).next64();
          CHECK(number == batch_rng(seed, p, step, rank).next64());
          first.insert(number);
        }
  CHECK(first.size() == made);
}

TEST_CASE("rng: below() is unbiased") {
  const auto chi_square = [](const std::vector<int>& counts) {
    double n = 0, chi = 0;
    for (int c : counts) n += c;
    const double expected = n / static_cast<double>(counts.size());
    for (int c : counts) chi += (c - expected) * (c - expected) / expected;
    return chi;
  };
  for (std::uint32_t n : {2U, 3U, 7U, 10U}) {
    std::vector<int> counts(n);
    Rng r(11, Purpose::shuffle, 0, n);
    for (int i = 0; i < 70000; ++i) {
      const std::uint32_t v = r.below(n);
      REQUIRE(v < n);
      ++counts[v];
    }
    CHECK(chi_square(counts) < 35);  // 9 degrees of freedom or fewer: p < 1e-4
  }
  // Three quarters of 2^32: without rejection every third value would occur twice as often.
  std::vector<int> thirds(3);
  Rng r(12, Purpose::shuffle);
  for (int i = 0; i < 30000; ++i) ++thirds[r.below(0xC0000000U) % 3];
  CHECK(chi_square(thirds) < 20);
  CHECK(r.below(0) == 0);
  CHECK(r.below(1) == 0);
}

TEST_CASE("rng: the distributions have the expected mean and variance") {
  Rng r(5, Purpose::init);
  const int n = 200000;
  double sum = 0, squares = 0, uniform = 0, least = 1, most = 0;
  for (int i = 0; i < n; ++i) {
    const double z = r.normal(), u = static_cast<double>(r.uniform());
    sum += z;
    squares += z * z;
    uniform += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  CHECK(std::fabs(sum / n) < 0.01);
  CHECK(std::fabs(squares / n - 1) < 0.02);
  CHECK(std::fabs(uniform / n - 0.5) < 0.005);
  CHECK(least >= 0);
  CHECK(most < 1);
}

TEST_CASE("arena: slices start on 64 bytes and are found by name") {
  for (DType t : {DType::f32, DType::bf16, DType::f64}) {
    ArenaLayout a;
    a.dtype = t;
    a.append("a", Shape{3, 5});
    a.append("b", Shape{1}, true, false);
    a.append("c", Shape{100}, false);
    std::size_t end = 0;
    for (const Slice& s : a.slices) {
      CHECK(s.offset * size_of(t) % 64 == 0);
      CHECK(s.offset >= end);
      end = s.offset + s.count;
    }
    CHECK(a.count >= end);
    CHECK(a.bytes() % 64 == 0);
    CHECK(a.numel() == 116);
    REQUIRE(a.find("b") != nullptr);
    CHECK(!a.find("b")->decay);
    CHECK(!a.find("c")->trainable);
    CHECK(a.find("d") == nullptr);
  }
}

TEST_CASE("arena: buckets cover each trainable slice once, and end where a slice ends") {
  Rng r(3, Purpose::user);
  for (int trial = 0; trial < 200; ++trial) {
    ArenaLayout a;
    const auto n = 1 + r.below(40), frozen = r.below(3);
    for (std::uint32_t i = 0; i < n; ++i) a.append("p" + std::to_string(i), Shape{1 + r.below(3000)});
    for (std::uint32_t i = 0; i < frozen; ++i) a.append("f" + std::to_string(i), Shape{1 + r.below(30)}, false);
    const std::size_t first_bytes = 64U << r.below(8), bytes = 64U << r.below(12);
    const auto buckets = make_buckets(a, bytes, first_bytes);
    REQUIRE(!buckets.empty());
    std::size_t slice = 0, element = 0;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      CHECK(buckets[b].first == slice);
      CHECK(buckets[b].begin == element);
      CHECK(buckets[b].begin == a.slices[buckets[b].first].offset);
      CHECK(buckets[b].last > buckets[b].first);
      const Slice& last = a.slices[buckets[b].last - 1];
      CHECK(buckets[b].end >= last.offset + last.count);
      // A bucket reaches the limit, and would not reach it without its last slice.
      const std::size_t limit = (b == 0 ? first_bytes : bytes) / 4;
      if (b + 1 < buckets.size()) CHECK(buckets[b].end - buckets[b].begin >= limit);
      CHECK(last.offset - buckets[b].begin < limit + (buckets[b].last - buckets[b].first == 1 ? 1 : 0));
      slice = buckets[b].last;
      element = buckets[b].end;
    }
    CHECK(slice == n);  // fixed slices are in no bucket, because they never become ready
    CHECK(element >= a.slices[n - 1].offset + a.slices[n - 1].count);
    CHECK(element <= a.count);
  }
}

TEST_CASE("memory: buffers are aligned, zero, and move") {
  HostMemory m;
  Buffer a(m, 100), b;
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 64 == 0);
  CHECK(std::all_of(a.at(0), a.at(100), [](std::byte x) { return x == std::byte{0}; }));
  void* p = a.data();
  b = std::move(a);
  CHECK(b.data() == p);
  CHECK(b.bytes() == 100);
  const Buffer c(std::move(b));
  CHECK(c.data() == p);
#if !defined(TUTTI_TEST_ASAN) && !defined(TUTTI_TEST_TSAN)  // with a sanitizer, malloc ends the program instead
  CHECK_THROWS_AS((void)m.allocate(std::size_t{1} << 62), DeviceError);
#endif
}

TEST_CASE("view: a tensor reference of one type is not read as another type") {
  float f = 1;
  const TensorRef t{&f, DType::f32, Shape{1}};
  CHECK(t.as<float>() == &f);
  CHECK(t.view<float>().size() == 1);
  CHECK_THROWS_AS((void)t.as<double>(), Error);
}
