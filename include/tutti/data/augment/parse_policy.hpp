// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/data/augment/draw_policy.hpp>
#include <tutti/data/augment/policy_options.hpp>

// The texts of augmentation policies.
namespace tutti {

namespace detail {

// Returns the shortest text of a number.
[[nodiscard]] inline std::string shortest(double v) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr};
}

// Reads one section of a policy's text, e.g. mstd0.5: a key and a number.
class PolicySection {
 public:
  PolicySection(std::string_view where, std::string_view text) : where_(where), text_(text) {
    std::size_t at = 0;
    while (at < text.size() && text[at] >= 'a' && text[at] <= 'z') ++at;
    key_ = std::string(text.substr(0, at));
    number_ = text.substr(at);
  }
  [[nodiscard]] const std::string& key() const noexcept { return key_; }

  [[nodiscard]] double number(double low, double high, const char* what) const {
    double v = 0;
    const char* const end = number_.data() + number_.size();
    const auto [stop, error] = std::from_chars(number_.data(), end, v, std::chars_format::fixed);
    if (error != std::errc{} || stop != end || !(v >= low && v <= high))
      fail<UsageError>(where_, {key_, " with ", what, " of ", shortest(low), " to ", shortest(high)},
                       {"'", printable(text_), "'"});
    return v;
  }
  [[nodiscard]] int whole(int low, int high, const char* what) const {
    const double v = number(low, high, what);
    if (v != static_cast<int>(v))
      fail<UsageError>(where_, {key_, " with ", what, " of ", low, " to ", high, ", a whole number"},
                       {"'", printable(text_), "'"});
    return static_cast<int>(v);
  }
  // known: the keys that the rule has.
  [[noreturn]] void unknown(const std::vector<std::string>& known, std::string_view example) const {
    std::string list;
    for (const auto& k : known) list += (list.empty() ? "" : ", ") + k;
    const std::string nearest = key_.empty() ? std::string() : nearest_word(key_, known);
    fail<UsageError>(where_, {"sections ", list, ", each with a number, as in ", example}, {"'", printable(text_), "'"},
                     nearest.empty() ? std::string() : "did you mean " + nearest);
  }

 private:
  std::string_view where_, text_, number_;
  std::string key_;
};

}  // namespace detail

// Returns the policy that a text names:
//   none                          no policy
//   trivial or ta_wide            TrivialAugmentWide
//   ra, ra-m9-n2-b31              torchvision's RandAugment: bin m of b, n operations
//   rand-m7-mstd0.5-n2-p0.5-mmax10-inc1   timm's RandAugment: magnitude, its deviation, number of operations,
//                                 probability of each, largest magnitude, increasing magnitudes
// Texts of timm mean the same there; inc0 and the sections t and w are refused. Throws UsageError that begins with
// `where` and names what is valid.
[[nodiscard]] inline AugmentPolicy parse_policy(std::string_view where, std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t dash = std::min(text.find('-', at), text.size());
    parts.push_back(text.substr(at, dash - at));
    at = dash + 1;
  }
  const std::string_view first = parts.front();
  const bool alone = parts.size() == 1;
  if (alone && (first.empty() || first == "none")) return {};
  if (alone && (first == "trivial" || first == "ta_wide")) return AugmentPolicy::trivial_wide();
  // Returns section i. Throws if an earlier one has its key.
  const auto section = [&](std::size_t i) {
    detail::PolicySection s(where, parts[i]);
    for (std::size_t k = 1; k < i; ++k)
      if (detail::PolicySection(where, parts[k]).key() == s.key())
        fail<UsageError>(where, {"one section ", s.key()}, {"'", printable(text), "'"});
    return s;
  };
  AugmentPolicy p;
  if (first == "ra") {
    p = AugmentPolicy::torchvision();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const detail::PolicySection s = section(i);
      if (s.key() == "m")
        p.magnitude = s.whole(0, 999, "a bin");
      else if (s.key() == "n")
        p.operations = s.whole(1, most_policy_operations, "a number of operations");
      else if (s.key() == "b")
        p.bins = s.whole(2, 1000, "a number of bins");
      else
        s.unknown({"m", "n", "b"}, "ra-m9-n2-b31");
    }
    if (p.magnitude >= p.bins) fail<UsageError>(where, {"a bin m of 0 to ", p.bins - 1}, {"'", printable(text), "'"});
  } else if (first == "rand") {
    p = AugmentPolicy::timm(10, 0, false);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const detail::PolicySection s = section(i);
      if (s.key() == "m")
        p.magnitude = s.number(0, 100, "a magnitude");
      else if (s.key() == "mstd")
        p.deviation = s.number(0, 1e9, "a deviation");
      else if (s.key() == "mmax")
        p.most = s.number(1, 100, "a largest magnitude");
      else if (s.key() == "n")
        p.operations = s.whole(1, most_policy_operations, "a number of operations");
      else if (s.key() == "p")
        p.probability = s.number(0, 1, "a probability");
      else if (s.key() == "inc")
        p.increasing = s.whole(1, 1, "the number 1 (without inc, some magnitudes decrease), in the range") == 1;
      else
        s.unknown({"m", "n", "p", "mstd", "mmax", "inc"}, "rand-m7-mstd0.5-inc1");
    }
  } else {
    const std::vector<std::string> known{"none", "trivial", "ta_wide", "ra", "rand"};
    const std::string nearest = nearest_word(first, known);
    fail<UsageError>(where,
                     "none, trivial (TrivialAugmentWide), ra-m9-n2 (torchvision's RandAugment) or "
                     "rand-m7-mstd0.5-inc1 (timm's)",
                     {"'", printable(text), "'"}, nearest.empty() ? std::string() : "did you mean " + nearest);
  }
  check(p);
  return p;
}

}  // namespace tutti
