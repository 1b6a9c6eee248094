// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/strategy/all_reduce.hpp>

namespace tutti::testing {

// A strategy with members that change: either only this process, or the threads of a group.
class Changing {
 public:
  static constexpr StrategyTraits traits{};
  void join(ThreadGroup& group, int rank) {
    strategy_.reset();
    communicator_ = std::make_unique<ThreadCommunicator>(group, rank);
    strategy_ = std::make_unique<AllReduce<ThreadCommunicator>>(*communicator_);
    ++generation_;
  }
  // Interrupts the other members of the group.
  void leave() { communicator_->interrupt(); }
  [[nodiscard]] Membership membership() const { return {strategy_->rank(), strategy_->size(), generation_}; }
  [[nodiscard]] std::string name() const { return strategy_->name(); }
  std::span<std::byte> allocate(std::size_t n) { return strategy_->allocate(n); }
  void attach(const ArenaLayout& l, const JobFacts& f) { strategy_->attach(l, f); }
  void synchronise(std::span<StateSpan> state) { strategy_->synchronise(state); }
  Work reduce(const Piece& piece) { return strategy_->reduce(piece); }
  void finish() { strategy_->finish(); }
  void sum(std::span<double> v) { strategy_->sum(v); }
  void abort(const std::string& why, ExitCode code) noexcept { strategy_->abort(why, code); }

 private:
  std::unique_ptr<ThreadCommunicator> communicator_;
  std::unique_ptr<AllReduce<ThreadCommunicator>> strategy_;
  std::uint64_t generation_ = 0;
};
static_assert(DistributedStrategy<Changing>);

}  // namespace tutti::testing
