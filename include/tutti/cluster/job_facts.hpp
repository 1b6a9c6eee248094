// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/communicator.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/core/xxh64.hpp>

namespace tutti {

// Facts that must be the same on all ranks, by name: build, options, data, parameters.
class JobFacts {
 public:
  void add(TextPart name, TextPart value) { facts_.emplace_back(concat(name), concat(value)); }
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& facts() const noexcept { return facts_; }

  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_of(text()); }
  [[nodiscard]] static std::uint64_t hash_of(std::string_view bytes) noexcept { return xxh64(bytes); }

  [[nodiscard]] std::string text() const;
  [[nodiscard]] static JobFacts parse(std::string_view text);

  // The first fact that differs: its name and both values. All texts are empty if all facts are equal.
  struct Difference {
    std::string name, mine, other;
  };
  [[nodiscard]] Difference first_difference(const JobFacts& other) const;
  // Compares only the facts that both have, once for each name; for processes that know different facts of a job.
  [[nodiscard]] Difference first_difference_in_common(const JobFacts& other) const;

 private:
  std::vector<std::pair<std::string, std::string>> facts_;
};

// Compares the facts of all ranks. If they differ, throws the same UsageError on all ranks. It contains the first fact
// that differs from rank 0's, both values, and the name of the rank.
template <Communicator C>
void require_agreement(C& c, const JobFacts& mine) {
  const auto n = static_cast<std::size_t>(c.size());
  struct Digest {
    std::uint64_t hash, bytes;
  };
  const std::string text = mine.text();
  const Digest digest{mine.hash(), text.size()};
  std::vector<Digest> all(n);
  c.all_gather(std::as_bytes(std::span(&digest, 1)), std::as_writable_bytes(std::span(all)), "facts of the job").wait();
  std::size_t longest = 0, other = 0;
  for (std::size_t r = 0; r < n; ++r) {
    longest = std::max<std::size_t>(longest, all[r].bytes);
    if (other == 0 && (all[r].hash != all[0].hash || all[r].bytes != all[0].bytes)) other = r;
  }
  if (other == 0) return;
  if (longest > (std::size_t{64} << 20))
    fail<UsageError>("facts of the job", "ranks of one job",
                     {c.rank_name(static_cast<int>(other)), " sends other data"}, "run the same build on all hosts");
  // First rank 0 sends its facts, then the rank that differs.
  std::string texts[2];
  for (int i = 0; i < 2; ++i) {
    const std::size_t from = i == 0 ? 0 : other;
    texts[i].resize(all[from].bytes);
    if (static_cast<std::size_t>(c.rank()) == from) texts[i] = text;
    c.broadcast(std::as_writable_bytes(std::span(texts[i])), static_cast<int>(from), "facts of the job").wait();
  }
  const auto d = JobFacts::parse(texts[0]).first_difference(JobFacts::parse(texts[1]));
  fail<UsageError>(c.rank_name(static_cast<int>(other)), {d.name, " ", d.mine, ", as ", c.rank_name(0), " has"},
                   d.other, "start all ranks with the same program, options and data");
}

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::string JobFacts::text() const {
  std::string t;
  for (const auto& [name, value] : facts_) t.append(name).append(1, '\0').append(value).append(1, '\0');
  return t;
}
TUTTI_CORE_FUNCTION JobFacts JobFacts::parse(std::string_view text) {
  JobFacts f;
  const auto word = [&] {
    const std::size_t end = text.find('\0');
    std::string w(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return w;
  };
  while (!text.empty()) {
    const std::string name = word();
    f.add(name, word());
  }
  return f;
}
TUTTI_CORE_FUNCTION JobFacts::Difference JobFacts::first_difference(const JobFacts& other) const {
  for (std::size_t i = 0; i < facts_.size() || i < other.facts_.size(); ++i) {
    const auto at = [&](const JobFacts& f) {
      return i < f.facts_.size() ? f.facts_[i] : std::pair<std::string, std::string>{"", "nothing"};
    };
    const auto [name, mine] = at(*this);
    const auto [other_name, others] = at(other);
    if (name != other_name)
      return {name.empty() ? other_name : name, name.empty() ? "nothing" : mine,
              other_name.empty() ? "nothing" : std::string(other_name).append(" ").append(others)};
    if (mine != others) return {name, mine, others};
  }
  return {};
}
TUTTI_CORE_FUNCTION JobFacts::Difference JobFacts::first_difference_in_common(const JobFacts& other) const {
  const auto named = [](const JobFacts& f, const std::string& name) {
    return std::find_if(f.facts_.begin(), f.facts_.end(), [&](const auto& fact) { return fact.first == name; });
  };
  for (const auto& [name, mine] : facts_) {
    const auto at = named(other, name);
    if (at != other.facts_.end() && at->second != mine) return {name, mine, at->second};
  }
  return {};
}
#endif

}  // namespace tutti
