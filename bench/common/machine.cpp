// SPDX-License-Identifier: MIT
#include "machine.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/core/float/bf16.hpp>

#include "../bench/roofline/peak.hpp"

namespace tutti::bench {

double peak(DType precision, int threads) {
  static std::map<std::pair<bool, int>, double> known;
  const bool half = precision == DType::bf16;
  double& gflops = known[{half, threads}];
  if (gflops == 0) gflops = threads * (half ? measured::peak<bf16>(threads) : measured::peak<float>(threads));
  return gflops;
}

namespace {

// Reads `count` arrays and writes the combination of their values, or adds it to a sum.
template <int count, bool writes>
void read_and_write(const std::vector<std::vector<std::uint32_t>>& arrays, std::vector<std::uint32_t>& to) {
  const std::uint32_t *a = arrays[0].data(), *b = arrays[count > 1 ? 1 : 0].data(), *c = arrays[count - 1].data();
  std::uint32_t* const out = to.data();
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < arrays[0].size(); ++i) {
    std::uint32_t v = a[i] + 1;
    if constexpr (count > 1) v ^= b[i];
    if constexpr (count > 2) v ^= c[i];
    if constexpr (writes)
      out[i] = v;
    else
      sum ^= v;
  }
  measured::keep(sum);
  measured::keep(out);
}

}  // namespace

double memory_bandwidth(int threads, const Traffic& traffic) {
  static std::map<std::tuple<int, int, int>, double> known;
  static constexpr std::size_t n = 16 << 20;
  using Loop = void (*)(const std::vector<std::vector<std::uint32_t>>&, std::vector<std::uint32_t>&);
  static constexpr Loop loops[3][2] = {{read_and_write<1, false>, read_and_write<1, true>},
                                       {read_and_write<2, false>, read_and_write<2, true>},
                                       {read_and_write<3, false>, read_and_write<3, true>}};
  double& gbytes = known[{threads, traffic.reads, traffic.writes}];
  if (gbytes == 0) {
    const Loop loop = loops[traffic.reads - 1][traffic.writes];
    const double seconds = measured::timed(
        threads,
        [&] {
          auto from = std::make_shared<std::vector<std::vector<std::uint32_t>>>(traffic.reads,
                                                                                std::vector<std::uint32_t>(n, 1));
          auto to = std::make_shared<std::vector<std::uint32_t>>(n);
          return measured::Job([=] { loop(*from, *to); });
        },
        CLOCK_THREAD_CPUTIME_ID, 0.05, 4);
    gbytes =
        threads * (traffic.reads + traffic.writes) * static_cast<double>(n * sizeof(std::uint32_t)) / seconds * 1e-9;
  }
  return gbytes;
}

}  // namespace tutti::bench
