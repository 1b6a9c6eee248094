// SPDX-License-Identifier: MIT
// Tests the concept Communicator. Most of the tests are static_asserts.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/comm/communicator.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/strategy.hpp>

using namespace tutti;

namespace {

// A communicator of one rank with only the required members.
struct Alone {
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  [[nodiscard]] std::string name() const { return "alone"; }
  [[nodiscard]] std::chrono::milliseconds deadline() const { return usual_deadline; }
  [[nodiscard]] std::string rank_name(int) const { return "rank 0"; }
  Work all_reduce(DType, std::span<std::byte>, ReduceOp, const std::string&) { return {}; }
  Work broadcast(std::span<std::byte>, int, const std::string&) { return {}; }
  Work all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const std::string&) {
    for (std::size_t i = 0; i < mine.size(); ++i) all[i] = mine[i];
    return {};
  }
  void barrier(std::chrono::milliseconds) {}
  void interrupt() noexcept {}
  void abort(const std::string&, ExitCode) {}
  std::span<std::byte> allocate(std::size_t) { return {}; }
};
struct OnHost {
  std::span<const std::byte> on_host(std::span<const std::byte> data, std::vector<std::byte>&) { return data; }
};
struct Watching {
  void wait_until(const std::function<bool()>&, const std::string&) {}
};

struct Least : Alone {
  static constexpr CommunicatorTraits traits{};
};
struct Most : Alone, OnHost, Watching {
  static constexpr CommunicatorTraits traits{.reads_device_memory = true, .watches_ranks = true};
};
static_assert(Communicator<Least>);
static_assert(Communicator<Most>);
static_assert(Communicator<ThreadCommunicator>);
static_assert(DistributedStrategy<AllReduce<Least>>);

// A communicator must declare its traits.
struct NoTraits : Alone, OnHost {};
struct TraitsOfItsOwn {
  bool reads_device_memory = false, watches_ranks = false;
};
struct OtherTraits : Alone {
  static constexpr TraitsOfItsOwn traits{};
};
static_assert(!Communicator<NoTraits>);
static_assert(!Communicator<OtherTraits>);

// Traits that declare a missing function, and a function that the traits do not declare.
struct BrokenPromise : Alone {
  static constexpr CommunicatorTraits traits{.reads_device_memory = true};
};
struct Misspelt : Alone {
  static constexpr CommunicatorTraits traits{.watches_ranks = true};
  void wait_untill(const std::function<bool()>&, const std::string&) {}
};
struct Unsaid : Alone, OnHost {
  static constexpr CommunicatorTraits traits{};
};
struct UnsaidToo : Alone, Watching {
  static constexpr CommunicatorTraits traits{.reads_device_memory = false};
};
static_assert(!Communicator<BrokenPromise>);
static_assert(!Communicator<Misspelt>);
static_assert(!Communicator<Unsaid>);
static_assert(!Communicator<UnsaidToo>);

// An operation has another signature.
struct LessOfIt : Least {
  Work all_reduce(std::span<std::byte>, ReduceOp, const std::string&) { return {}; }
};
static_assert(!Communicator<LessOfIt>);

}  // namespace

TEST_CASE("a communicator with only the required functions works with a strategy") {
  Least c;
  AllReduce<Least> strategy(c);
  CHECK(strategy.size() == 1);
  CHECK_FALSE(AllReduce<Least>::traits.reads_device_memory);
  CHECK(AllReduce<Most>::traits.reads_device_memory);
}
