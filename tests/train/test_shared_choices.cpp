// SPDX-License-Identifier: MIT
// Tests how Trainer::synchronise() gives the authority's choices of kernels to the other ranks.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

// A backend on the processor that makes choices.
class Chooser : public ReferenceBackend {
 public:
  std::string own = "own choices";
  std::vector<std::string> taken;
  int asked = 0;
  [[nodiscard]] std::string choices() override {
    ++asked;
    return own;
  }
  bool take_choices(std::string_view choices) override {
    taken.emplace_back(choices);
    return true;
  }
};

// Rank 1 of two ranks; rank 0 has the authority. It sends weights of ones and its choices.
template <bool devices>
struct Second {
  static constexpr StrategyTraits traits{.reads_device_memory = devices};
  std::string choices = "choices of rank 0";
  std::uint64_t length = 17;
  bool fails = false;  // rank 0 is lost before it sends the choices
  std::vector<std::vector<std::string>> pieces;

  [[nodiscard]] Membership membership() const { return {1, 2, 0}; }
  [[nodiscard]] std::string name() const { return "second"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan> state) {
    pieces.emplace_back();
    for (StateSpan& s : state) {
      pieces.back().push_back(s.name);
      if (s.name == "length of choices") {
        std::memcpy(s.bytes.data(), &length, sizeof length);
      } else if (s.name == "choices of kernels") {
        if (fails) fail<CommunicationError>("second", "rank 0", "no rank 0");
        REQUIRE(s.bytes.size() == choices.size());
        std::memcpy(s.bytes.data(), choices.data(), choices.size());
      } else if (s.dtype == DType::f32) {
        for (std::size_t i = 0; i < s.bytes.size() / sizeof(float); ++i)
          reinterpret_cast<float*>(s.bytes.data())[i] = 1;
      }
    }
  }
  Work reduce(const Piece&) { return {}; }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
};
static_assert(DistributedStrategy<Second<true>> && DistributedStrategy<Second<false>>);

float first_weight(Trainer& t) { return static_cast<const float*>(t.executor().parameter_data())[0]; }

}  // namespace

TEST_CASE("a rank takes the choices of rank 0, whatever it has chosen itself") {
  for (const std::string own : {"", "own choices"}) {
    Chooser backend;
    backend.own = own;
    Second<true> strategy;
    Trainer t(backend, strategy, small_net(false), {});
    t.synchronise();
    REQUIRE(strategy.pieces.size() == 2);
    CHECK(strategy.pieces[1] == std::vector<std::string>{"choices of kernels"});
    CHECK(backend.taken == std::vector<std::string>{strategy.choices});
    CHECK(first_weight(t) == 1);
    // The next synchronise() sends the choices of that time.
    strategy.choices = "others";
    strategy.length = strategy.choices.size();
    t.synchronise();
    CHECK(backend.taken.back() == "others");
  }
}

TEST_CASE("if rank 0 has made no choice, there is no second transfer") {
  Chooser backend;
  Second<true> strategy;
  strategy.length = 0;
  Trainer t(backend, strategy, small_net(false), {});
  t.synchronise();
  CHECK(strategy.pieces.size() == 1);
  CHECK(backend.taken.empty());
}

TEST_CASE("ranks on the processor do not exchange choices") {
  Chooser backend;
  Second<false> strategy;
  Trainer t(backend, strategy, small_net(false), {});
  t.synchronise();
  REQUIRE(strategy.pieces.size() == 1);
  for (const std::string& name : strategy.pieces[0]) {
    CAPTURE(name);
    CHECK(name.find("choices") == std::string::npos);
  }
  CHECK(backend.asked == 0);
  CHECK(backend.taken.empty());
  CHECK(first_weight(t) == 1);
}

TEST_CASE("if rank 0 is lost before it has sent its choices, the state is as before") {
  Chooser backend;
  Second<true> strategy;
  strategy.fails = true;
  Trainer t(backend, strategy, small_net(true), {});
  const std::vector<std::byte> before = weights(t);
  CHECK_THROWS_AS(t.synchronise(), CommunicationError);
  CHECK(weights(t) == before);
  CHECK(t.counters().step == 0);
  CHECK(backend.taken.empty());
  strategy.fails = false;
  t.synchronise();
  CHECK(first_weight(t) == 1);
  CHECK(backend.taken.size() == 1);
}

TEST_CASE("a length that cannot be right is an error before memory is allocated for it") {
  Chooser backend;
  Second<true> strategy;
  Trainer t(backend, strategy, small_net(false), {});
  for (const std::uint64_t length : {(std::uint64_t{1} << 30) + 1, ~std::uint64_t{0}}) {
    strategy.length = length;
    CHECK_THROWS_AS(t.synchronise(), DataError);
  }
  CHECK(strategy.pieces.size() == 2);
}
