// SPDX-License-Identifier: MIT
// Measures the exact sums of logical ranks on real gradients of CIFAR-10: how often each room above the expected bound
// is left, the error of the sums per tensor against f64, and the speed of the conversions. Prints Markdown.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>

#include "integer_sums/measurement.hpp"

using namespace tutti;

namespace {

// The conversions of ResNet-18's gradients.
void measure_speed(const bench::Args& a) {
  const auto backend = bench::backend_of(a);
  ArenaLayout l;
  const std::int64_t n = 11181642;
  l.append("all", Shape{n});
  std::vector<float> values(l.count);
  Rng r(1, Purpose::user);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1e-3F * static_cast<float>(r.normal());
  IntegerBlocks t = make_integer_blocks(l, 1);
  for (IntegerBlock& b : t.blocks) b.exponent = -36;
  Buffer arena(backend->memory(), l.bytes()), earlier(backend->memory(), l.bytes());
  std::vector<std::uint32_t> maxima(t.blocks.size());
  auto* const floats = static_cast<float*>(arena.data());
  auto* const integers = static_cast<std::int32_t*>(arena.data());
  auto* const sums = static_cast<std::int32_t*>(earlier.data());
  std::array<double, 5> best{1, 1, 1, 1, 1};
  for (int i = 0; i < 15; ++i) {
    const auto timed = [&](std::size_t k, auto&& f) {
      std::memcpy(arena.data(), values.data(), l.bytes());
      const Stopwatch watch;
      f();
      best[k] = std::min(best[k], watch.seconds());
    };
    timed(0, [&] {
      backend->to_integers({t.blocks.data(), t.blocks.size(), floats, integers, nullptr, maxima.data()});
    });
    timed(1, [&] { backend->to_integers({t.blocks.data(), t.blocks.size(), floats, integers, sums, maxima.data()}); });
    timed(2, [&] { backend->to_integers({t.blocks.data(), t.blocks.size(), floats, sums, sums, maxima.data()}); });
    timed(3, [&] { backend->from_integers({t.blocks.data(), t.blocks.size(), integers, floats}); });
    timed(4, [&] { backend->accumulate(DType::f32, sums, floats, l.count); });
  }
  std::printf("| 11.2 M gradients, %s, %d threads | ms |\n|---|---|\n", backend->description().c_str(), a.threads);
  const std::array names{"f32 to integers, in place", "the same plus the sums of earlier parts",
                         "added to the sums of earlier parts", "integers to f32, in place",
                         "for comparison: += in f32"};
  for (std::size_t k = 0; k < best.size(); ++k) std::printf("| %s | %.2f |\n", names[k], 1e3 * best[k]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bench::Args a = bench::parse(argc, argv);
    if (a.speed)
      measure_speed(a);
    else
      bench::Measurement(a).run();
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
}
