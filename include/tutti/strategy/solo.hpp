// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/strategy/strategy.hpp>

namespace tutti {

// The strategy of one process. All calls have no effect, so that a program needs no second code path.
class Solo {
 public:
  static constexpr StrategyTraits traits{};

  [[nodiscard]] Membership membership() const { return {}; }
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  [[nodiscard]] std::string name() const { return "solo"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan>) {}
  Work reduce(const Piece&) { return {}; }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
};

static_assert(DistributedStrategy<Solo>);

}  // namespace tutti
