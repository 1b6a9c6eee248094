// SPDX-License-Identifier: MIT
// Tests gradients in two bits: the rule, compared with golden bytes and with a model; the messages; the servers' sums.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/train/detail/trainer/gradient_exchange.hpp>

#include "comm/conformance.hpp"
#include "server_ranks.hpp"

using namespace tutti;

namespace {

// Sends a worker's messages and counts their bytes.
class CountingEnd : public ps::ThreadWorkerEnd {
 public:
  using ps::ThreadWorkerEnd::ThreadWorkerEnd;
  bool send(std::int64_t server, std::span<const std::byte> head, std::span<const std::byte> data,
            ps::PendingSends* kept) {
    std::string_view why;
    const auto f = ps::decode(head, data.size(), why);
    if (f && f->kind == ps::FrameKind::push && f->bucket != ps::Frame::no_bucket) sent += data.size();
    return ps::ThreadWorkerEnd::send(server, head, data, kept);
  }
  static inline std::atomic<std::size_t> sent{0};
};
static_assert(ps::Transport<CountingEnd>);
using Sync = ParameterServer<CountingEnd>;
using Async = AsyncParameterServer<CountingEnd>;
using Ends = testing::Ends<ps::ThreadServerEnd, CountingEnd>;

Ends ends_of(ps::ThreadNetwork& network) {
  return {[&](int s) { return std::make_unique<ps::ThreadServerEnd>(network, s); },
          [&](int) { return std::make_unique<CountingEnd>(network); }};
}

// Implements the rule again: one number at a time, in f64 if that is exact.
class Model {
 public:
  explicit Model(float threshold) : t_(threshold) {}
  float send(float gradient) {
    kept_ = static_cast<float>(static_cast<double>(kept_) + static_cast<double>(gradient));
    const float out = kept_ >= t_ ? t_ : kept_ <= -t_ ? -t_ : 0.F;
    kept_ = static_cast<float>(static_cast<double>(kept_) - static_cast<double>(out));
    return out;
  }
  [[nodiscard]] float kept() const { return kept_; }

 private:
  float t_, kept_ = 0;
};

// The sizes of three buckets. The flags are before the first bucket.
constexpr std::array<std::size_t, 3> buckets{300'000, 17, 1000};
constexpr std::size_t flags = 64;
float gradient(int worker, int step, std::size_t i) {
  Rng rng(5, Purpose::user, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(worker) << 32 | i);
  return static_cast<float>(rng.normal()) * 0.4F;
}

}  // namespace

TEST_CASE("two bits: the encoding has golden bytes") {
  using ps::two_bit::bytes_of;
  CHECK(bytes_of(1) == 8);
  CHECK(bytes_of(16) == 8);
  CHECK(bytes_of(17) == 12);
  CHECK(bytes_of(262'144) == 65'540);  // instead of 1 MiB

  const std::vector<std::vector<float>> steps{{0.5F, -0.5F, 0.49F, -0.25F, 3.F, 0.F},
                                              {0.F, 0.F, 0.02F, -0.25F, 0.F, 0.1F}};
  // Step 1: 11 10 00 00, 11 00 00 00. Step 2: 00 00 11 10, 11 00 00 00. Later steps send the remainder.
  const std::vector<std::vector<unsigned>> words{{0xe0, 0xc0, 0, 0}, {0x0e, 0xc0, 0, 0}};
  const std::vector<std::vector<float>> values{{0.5F, -0.5F, 0, 0, 0.5F, 0}, {0, 0, 0.5F, -0.5F, 0.5F, 0}};
  std::vector<float> kept(6);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    std::vector<std::byte> bytes(bytes_of(6), std::byte{0xff});
    ps::two_bit::pack(steps[s], kept, 0.5F, bytes.data());
    float threshold = 0;
    std::memcpy(&threshold, bytes.data(), sizeof threshold);
    CHECK(threshold == 0.5F);
    for (std::size_t i = 0; i < 4; ++i) CHECK(std::to_integer<unsigned>(bytes[4 + i]) == words[s][i]);
    REQUIRE(ps::two_bit::is_packed(bytes, 6));
    CHECK_FALSE(ps::two_bit::is_packed(bytes, 17));
    std::vector<float> out(6);
    ps::two_bit::unpack(bytes, out);
    CHECK(out == values[s]);
  }
  CHECK(kept == std::vector<float>{0, 0, 0.49F + 0.02F - 0.5F, 0, 2, 0.1F});

  // If a value is not finite, all unpacked values are NaN.
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<float> none(3), out(3);
  std::vector<std::byte> bytes(bytes_of(3));
  ps::two_bit::pack(std::vector<float>{inf, -inf, std::nanf("")}, none, 1, bytes.data());
  ps::two_bit::unpack(bytes, out);
  for (const float x : out) CHECK(std::isnan(x));

  for (const float bad : {0.F, -1.F, inf, std::nanf("")}) {
    std::memcpy(bytes.data(), &bad, sizeof bad);
    CHECK_FALSE(ps::two_bit::is_packed(bytes, 3));
  }
}

TEST_CASE(
    "two bits: servers sum quantised values in a sixteenth of the bytes; flags and statistics are not quantised") {
  constexpr float threshold = 0.3F;
  for (const int servers : {1, 2}) {
    ps::ThreadNetwork network(servers);
    const testing::ServerJob job{.workers = 2, .servers = servers};
    CountingEnd::sent = 0;
    testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<CountingEnd> end, int rank) {
      auto o = testing::worker_options(job, rank);
      o.threshold = threshold;
      Sync s(std::move(end), o);
      s.attach({}, {});
      std::vector<std::vector<Model>> models(2 * buckets.size());
      for (std::size_t m = 0; m < models.size(); ++m) models[m].assign(buckets[m / 2], Model(threshold));
      std::vector<std::vector<float>> data;
      for (const std::size_t n : buckets) data.emplace_back(n);
      data[0].resize(buckets[0] + flags / sizeof(float));
      std::vector<float> statistics(50);
      for (int step = 0; step < 3; ++step) {
        std::vector<Work> works;
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          const std::size_t front = b == 0 ? flags / sizeof(float) : 0;
          for (std::size_t i = 0; i < front; ++i) data[b][i] = static_cast<float>(rank) + 0.125F;
          for (std::size_t i = 0; i < buckets[b]; ++i) data[b][front + i] = gradient(rank, step, i + b);
          works.push_back(s.reduce({Piece::Kind::gradients, b, DType::f32, std::as_writable_bytes(std::span(data[b])),
                                    front * sizeof(float)}));
        }
        for (float& x : statistics) x = 0.01F * static_cast<float>(rank + 1);
        works.push_back(
            s.reduce({Piece::Kind::statistics, 0, DType::f32, std::as_writable_bytes(std::span(statistics)), 0}));
        for (Work& w : works) w.wait();
        s.finish();
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          const std::size_t front = b == 0 ? flags / sizeof(float) : 0;
          for (std::size_t i = 0; i < front; ++i) conformance::require(data[b][i] == 1.25F, "flags");
          for (std::size_t i = 0; i < buckets[b]; ++i) {
            float want = models[2 * b][i].send(gradient(0, step, i + b));
            want += models[2 * b + 1][i].send(gradient(1, step, i + b));
            if (data[b][front + i] != want)
              conformance::require(false, "bucket " + std::to_string(b) + " element " + std::to_string(i));
          }
        }
        for (const float x : statistics) conformance::require(x == 0.01F * 1 + 0.01F * 2, "statistics");
      }
    }).rethrow();
    std::size_t numbers = 0;
    for (const std::size_t n : buckets) numbers += n;
    const double wide = 2 * 3 * static_cast<double>(numbers) * sizeof(float), here = 2 * 3 * flags;
    // Each part may have a few more bytes at its end.
    CHECK(static_cast<double>(CountingEnd::sent) - here >= wide / 16);
    CHECK(static_cast<double>(CountingEnd::sent) - here < wide / 16 * 1.01);
  }
}

TEST_CASE("two bits: a server that owns weights applies the quantised values") {
  constexpr float threshold = 0.25F;
  constexpr std::size_t n = 5000;
  ps::ThreadNetwork network(1);
  ArenaLayout layout;
  layout.dtype = DType::f32;
  layout.count = n;
  Slice slice;
  slice.name = "w";
  slice.count = n;
  layout.slices = {slice};
  // The server subtracts the gradients from the weights.
  ps::WeightStore store(layout, 0, {}, [](const ServerPart& p) {
    for (std::size_t i = 0; i < p.end - p.begin; ++i)
      static_cast<float*>(p.weights)[i] -= static_cast<const float*>(p.gradients)[i];
  });
  ps::ServerOptions so = testing::server_options({.workers = 1}, 0);
  so.store = &store;
  ps::Server<ps::ThreadServerEnd> server(std::make_unique<ps::ThreadServerEnd>(network, 0), so);
  std::thread thread([&] { server.run(); });
  CountingEnd::sent = 0;
  {
    auto o = testing::worker_options({.workers = 1}, 0);
    o.threshold = threshold;
    Async a(std::make_unique<CountingEnd>(network), o);
    a.attach(layout, {});
    std::vector<float> weights(n, 1), gradients(n), want(n, 1);
    std::vector<StateSpan> state{{"weights", DType::f32, {n}, std::as_writable_bytes(std::span(weights))}};
    a.synchronise(state);
    std::vector<Model> models(n, Model(threshold));
    for (int step = 0; step < 4; ++step) {
      a.begin_step(step + 1, false);
      for (std::size_t i = 0; i < n; ++i) want[i] -= models[i].send(gradients[i] = gradient(0, step, i));
      a.exchange({0, 0, DType::f32, std::as_bytes(std::span(gradients)), std::as_writable_bytes(std::span(weights))})
          .wait();
      CHECK(weights == want);
    }
    // The weights come back uncompressed.
    CHECK(CountingEnd::sent == 4 * ps::two_bit::bytes_of(n));
    // A new generation does not use the remainder of the old one.
    a.attach(layout, {});
    for (float& g : gradients) g = threshold * 0.75F;
    a.begin_step(5, false);
    a.exchange({0, 0, DType::f32, std::as_bytes(std::span(gradients)), std::as_writable_bytes(std::span(weights))})
        .wait();
    CHECK(weights == want);
  }
  thread.join();
}

TEST_CASE("two bits: impossible requests are refused") {
  ps::Frame f;
  f.kind = ps::FrameKind::push;
  f.dtype = DType::f32;
  f.bytes = 4 * 100;
  f.packed = true;
  std::string_view why;
  CHECK(ps::decode(ps::encode(f), ps::two_bit::bytes_of(100), why));
  CHECK(ps::decode(ps::encode(f), ps::two_bit::bytes_of(100), why)->packed);
  for (const std::size_t size : {std::size_t{0}, std::size_t{400}, ps::two_bit::bytes_of(100) - 1})
    CHECK_FALSE(ps::decode(ps::encode(f), size, why));
  const auto refused = [&](auto change) {
    ps::Frame g = f;
    change(g);
    return !ps::decode(ps::encode(g), ps::two_bit::bytes_of(100), why);
  };
  CHECK(refused([](ps::Frame& g) { g.kind = ps::FrameKind::answer; }));
  CHECK(refused([](ps::Frame& g) { g.operation = ps::Operation::max; }));
  CHECK(refused([](ps::Frame& g) { g.operation = ps::Operation::store; }));
  CHECK(refused([](ps::Frame& g) { g.dtype = DType::bf16; }));
  // Workers refuse an invalid threshold, two kinds of compression at once, and numbers that are not f32.
  ps::ThreadNetwork network(1);
  for (const float t : {-1.F, std::numeric_limits<float>::infinity()}) {
    auto o = testing::worker_options({.workers = 1}, 0);
    o.threshold = t;
    CHECK_THROWS_AS(Sync(std::make_unique<CountingEnd>(network), o), UsageError);
  }
  auto o = testing::worker_options({.workers = 1}, 0);
  o.threshold = 1;
  o.bf16_wire = true;
  CHECK_THROWS_AS(Sync(std::make_unique<CountingEnd>(network), o), UsageError);
  testing::run_with_servers({.workers = 1}, ends_of(network), [&](std::unique_ptr<CountingEnd> end, int) {
    auto with = testing::worker_options({.workers = 1}, 0);
    with.threshold = 1;
    Sync s(std::move(end), with);
    std::vector<double> wide(10);
    CHECK_THROWS_AS((void)s.reduce({Piece::Kind::gradients, 0, DType::f64, std::as_writable_bytes(std::span(wide)), 0}),
                    UsageError);
  }).rethrow();
}
