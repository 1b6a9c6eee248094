// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/augment/draw_policy.hpp>
#include <tutti/data/augment/parse_policy.hpp>

#include "data/augment_fixtures.hpp"
#include "data/chi_square.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr int width = 64, height = 48;  // of make.py
constexpr std::uint64_t images = 100'000;

Rng stream(std::uint64_t index, std::uint64_t epoch = 0) { return Rng(7, Purpose::augment, epoch, index); }

std::string message_of(const std::string& text) {
  try {
    (void)parse_policy("--auto-augment", text);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

bool is_factor(ImageOp op) { return op >= ImageOp::colour && op <= ImageOp::sharpness; }

// The range of an operation's values in make.py: that of the fixture, or symmetric around the value that changes
// nothing.
std::array<double, 2> range_of(const std::string& policy, ImageOp op, bool factors_have_signs) {
  const std::string name = "values/" + policy + "/" + std::string(name_of(op));
  if (augment_names(name).empty()) return {0, 1};
  const auto v = augment_numbers<double>(name);
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  if (!is_geometric(op) && !(is_factor(op) && factors_have_signs)) return {*low, *high};
  const double still = is_factor(op) ? 1 : 0, reach = std::max(std::abs(*low - still), std::abs(*high - still));
  return {still - reach, still + reach};
}

std::vector<double> counts_of(const AugmentPolicy& p, const std::string& values, bool factors_have_signs) {
  std::vector<double> counts(image_ops * 8);
  std::array<std::array<double, 2>, image_ops> ranges{};
  for (int k = 0; k < image_ops; ++k)
    ranges[static_cast<std::size_t>(k)] = range_of(values, static_cast<ImageOp>(k), factors_have_signs);
  for (std::uint64_t i = 0; i < images; ++i) {
    Rng rng = stream(i);
    const PolicyDraw draw = draw_policy(p, width, height, rng);
    for (const ImageOpCall& c : draw.all()) {
      const auto [low, high] = ranges[static_cast<std::size_t>(c.op)];
      const int part = std::clamp(static_cast<int>((c.value - low) / (high - low) * 8 + 1e-4), 0, 7);
      ++counts[static_cast<std::size_t>(c.op) * 8 + static_cast<std::size_t>(part)];
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("each bin and each magnitude has the value of torchvision's and timm's code") {
  int seen = 0;
  for (const std::string& name : augment_names("values/")) {
    CAPTURE(name);
    const auto part = parts_of(name);  // values, policy, operation
    const ImageOp op = op_named(part[2]);
    const auto want = augment_numbers<double>(name);
    const bool timm = part[1].starts_with("rand");
    AugmentPolicy p = timm                   ? AugmentPolicy::timm(9, 0, part[1] == "rand_inc")
                      : part[1] == "trivial" ? AugmentPolicy::trivial_wide()
                                             : AugmentPolicy::torchvision();
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double got = timm ? detail::timm_value(op, p, static_cast<double>(i), 1, width, height)
                              : detail::torchvision_value(op, p, static_cast<int>(i), 1, width, height);
      CHECK(got == doctest::Approx(want[i]).epsilon(1e-6));
    }
    ++seen;
  }
  CHECK(seen == 2 * 11 + 2 * 12);
}

TEST_CASE("100,000 draws are distributed like those of torchvision and timm") {
  const struct {
    std::string name, text, values;
    bool signs;
  } cases[] = {{"trivial", "trivial", "trivial", true},
               {"ra", "ra-m9-n2", "ra", true},
               {"rand-m7-mstd0.5-inc1", "rand-m7-mstd0.5-inc1", "rand_inc", true},
               {"rand-m9-n3-mstd2-p0.8", "rand-m9-n3-mstd2-p0.8", "rand", false},
               {"rand-m6-mstd101", "rand-m6-mstd101", "rand", false}};
  for (const auto& c : cases) {
    CAPTURE(c.name);
    const auto raw = augment_numbers<std::int64_t>("draws/" + c.name);
    const std::vector<double> want(raw.begin(), raw.end());
    const auto got = counts_of(parse_policy("test", c.text), c.values, c.signs);
    REQUIRE(got.size() == want.size());
    const ChiSquare test = chi_square_of_two(got, want);
    CAPTURE(test.sum);
    CAPTURE(test.freedom);
    CHECK(test.freedom > 20);
    CHECK(test.passes());
    // A wrong distribution is detected: the strongest eighth of one operation drawn a fifth less often.
    auto wrong = got;
    *std::max_element(wrong.begin(), wrong.end()) *= 0.8;
    CHECK_FALSE(chi_square_of_two(wrong, want).passes());
  }
}

TEST_CASE("each operation of TrivialAugmentWide, each bin, each sign and each interpolation is equally likely") {
  AugmentPolicy p = AugmentPolicy::trivial_wide();
  p.interpolation = Interpolation::random;
  std::vector<double> ops(image_ops), bins(31), signs(2), cubic(2);
  for (std::uint64_t i = 0; i < images; ++i) {
    Rng rng = stream(i);
    const PolicyDraw d = draw_policy(p, width, height, rng);
    REQUIRE(d.count == 1);
    const ImageOpCall& c = d.calls[0];
    ++ops[static_cast<std::size_t>(c.op)];
    if (c.op == ImageOp::rotate) {
      ++bins[static_cast<std::size_t>(std::lround(std::abs(c.value) / 4.5))];
      if (c.value != 0) ++signs[c.value < 0 ? 0 : 1];
    }
    if (is_geometric(c.op)) ++cubic[c.interpolation == Interpolation::bicubic ? 1 : 0];
  }
  std::vector<double> expected(image_ops);
  for (const ImageOp op : detail::torchvision_ops) expected[static_cast<std::size_t>(op)] = 1.0 / 14;
  CHECK(chi_square(ops, expected).passes());
  CHECK(chi_square(bins, std::vector<double>(31, 1.0 / 31)).passes());
  CHECK(chi_square(signs, std::vector<double>(2, 0.5)).passes());
  CHECK(chi_square(cubic, std::vector<double>(2, 0.5)).passes());
}

TEST_CASE("a draw depends on seed, epoch and index only, and no policy takes no random numbers") {
  const AugmentPolicy p = parse_policy("test", "rand-m7-mstd0.5-inc1");
  std::set<std::string> seen;
  for (std::uint64_t i = 0; i < 200; ++i) {
    Rng once = stream(i), again = stream(i), later = stream(i, 1);
    const PolicyDraw d = draw_policy(p, width, height, once);
    CHECK(d == draw_policy(p, width, height, again));
    CHECK(once.next() == again.next());
    (void)draw_policy(p, width, height, later);
    std::string text;
    for (const auto& c : d.all()) text += std::string(name_of(c.op)) + std::to_string(c.value) + " ";
    seen.insert(text);
  }
  CHECK(seen.size() > 100);
  Rng rng = stream(1);
  CHECK(draw_policy({}, width, height, rng).count == 0);
  CHECK(rng.next() == stream(1).next());
}

TEST_CASE("texts of policies") {
  CHECK(parse_policy("t", "") == AugmentPolicy{});
  CHECK(parse_policy("t", "none") == AugmentPolicy{});
  CHECK(parse_policy("t", "trivial") == AugmentPolicy::trivial_wide());
  CHECK(parse_policy("t", "ta_wide") == AugmentPolicy::trivial_wide());
  CHECK(parse_policy("t", "ra") == AugmentPolicy::torchvision(2, 9));
  CHECK(parse_policy("t", "ra-n3-m14") == AugmentPolicy::torchvision(3, 14));
  CHECK(parse_policy("t", "rand-m7-mstd0.5-inc1") == AugmentPolicy::timm(7, 0.5));
  const AugmentPolicy p = parse_policy("t", "rand-mmax30-p0.25-n4-m20");
  CHECK(p.most == 30);
  CHECK(p.probability == 0.25);
  CHECK(p.operations == 4);
  CHECK(p.magnitude == 20);
  CHECK_FALSE(p.increasing);
}

TEST_CASE("wrong texts of policies name what is valid") {
  const auto expect = [](const std::string& text, std::initializer_list<const char*> parts) {
    const std::string message = message_of(text);
    CAPTURE(message);
    CHECK(message.starts_with("[--auto-augment] expected "));
    for (const char* part : parts) CHECK(message.find(part) != std::string::npos);
  };
  expect("trivail", {"trivial (TrivialAugmentWide)", "got 'trivail'", "did you mean trivial"});
  expect("rnd-m9", {"rand-m7-mstd0.5-inc1", "did you mean rand"});
  expect("autoaugment", {"none, trivial"});
  expect("trivial-m9", {"none, trivial"});
  expect("rand-mst0.5", {"sections m, n, p, mstd, mmax, inc", "did you mean mstd"});
  expect("rand-9", {"sections m, n"});
  expect("rand-m", {"m with a magnitude of 0 to 100", "'m'"});
  expect("rand-m101", {"m with a magnitude of 0 to 100"});
  expect("rand-m-5", {"m with a magnitude"});
  expect("rand-mnan", {"sections"});
  expect("rand-m1e9", {"m with a magnitude"});
  expect("rand-n0", {"n with a number of operations of 1 to 16"});
  expect("rand-n1.5", {"a whole number"});
  expect("rand-p1.5", {"p with a probability of 0 to 1"});
  expect("rand-inc0", {"inc"});
  expect("rand-m9-m8", {"one section m"});
  expect("rand-m9-tweights", {"sections m, n"});
  expect("ra-m31", {"a bin m of 0 to 30"});
  expect("ra-b1", {"b with a number of bins of 2 to 1000"});
  expect("ra-mstd1", {"sections m, n, b"});
  expect("rand-\n", {"\\x0a"});
}

TEST_CASE("policies of the API are checked") {
  const auto refused = [](auto change) {
    AugmentPolicy p = AugmentPolicy::timm(9);
    change(p);
    CHECK_THROWS_AS(check(p), UsageError);
  };
  CHECK_NOTHROW(check(AugmentPolicy{}));
  refused([](auto& p) { p.operations = 0; });
  refused([](auto& p) { p.operations = 17; });
  refused([](auto& p) { p.bins = 1; });
  refused([](auto& p) { p.magnitude = -1; });
  refused([](auto& p) { p.magnitude = NAN; });
  refused([](auto& p) { p.most = 0; });
  refused([](auto& p) { p.deviation = -1; });
  refused([](auto& p) { p.probability = 1.1; });
  refused([](auto& p) { p = AugmentPolicy::torchvision(2, 31); });
}
