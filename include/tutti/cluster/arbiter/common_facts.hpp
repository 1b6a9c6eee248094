// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster/arbiter/candidate.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::control {

// The common facts of a job's processes: all processes of a role have the same facts, and servers agree with workers on
// each fact that both have.
class CommonFacts {
 public:
  // How a process differs from the other processes of its job, as parts of an error message.
  struct Difference {
    std::string expected, got;
  };
  [[nodiscard]] std::optional<Difference> difference(const Candidate& c) const {
    const auto workers = from_workers(c);
    if (!workers.name.empty()) return text_of(workers, "workers");
    const auto usual = facts_.find(c.member.role);
    if (usual == facts_.end() || usual->second == c.facts) return {};
    return text_of(JobFacts::parse(usual->second).first_difference(JobFacts::parse(c.facts)), "others");
  }

  // Returns the most frequent facts of a role, and stores them for later comparisons. If several are equally frequent,
  // returns those of the process with the lowest number. Returns null if there are no facts.
  [[nodiscard]] const std::string* choose(const std::vector<Candidate>& all, Role role) {
    std::map<std::string, int> count;
    const Candidate* usual = nullptr;
    const auto counts = [&](const Candidate& c) { return c.is(role) && from_workers(c).name.empty(); };
    for (const Candidate& c : all)
      if (counts(c)) ++count[c.facts];
    for (const Candidate& c : all) {
      if (!counts(c)) continue;
      const bool better = usual == nullptr || count[c.facts] > count[usual->facts] ||
                          (count[c.facts] == count[usual->facts] && c.member.place < usual->member.place);
      if (better) usual = &c;
    }
    if (usual == nullptr) return nullptr;
    return &(facts_[role] = usual->facts);
  }

 private:
  // Compares a server with the workers, and only the facts that both have: they know different facts.
  [[nodiscard]] JobFacts::Difference from_workers(const Candidate& c) const {
    const auto workers = facts_.find(Role::worker);
    if (c.member.role != Role::server || workers == facts_.end()) return {};
    return JobFacts::parse(workers->second).first_difference_in_common(JobFacts::parse(c.facts));
  }
  [[nodiscard]] static Difference text_of(const JobFacts::Difference& d, const char* who) {
    return {printable(d.name) + " " + printable(d.mine) + ", as the " + who + " have", printable(d.other)};
  }

  std::map<Role, std::string> facts_;
};

}  // namespace tutti::control
