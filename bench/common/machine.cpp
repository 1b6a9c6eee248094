// SPDX-License-Identifier: MIT
#include "machine.hpp"

#include <cstddef>
#include <map>
#include <memory>
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

double memory_bandwidth(int threads) {
  static std::map<int, double> known;
  static constexpr std::size_t n = 16 << 20;
  double& gbytes = known[threads];
  if (gbytes == 0) {
    const double seconds = measured::timed(
        threads,
        [] {
          auto a = std::make_shared<std::vector<float>>(n, 1.0F), b = std::make_shared<std::vector<float>>(n, 2.0F),
               c = std::make_shared<std::vector<float>>(n);
          return measured::Job([=] {
            const float *p = a->data(), *q = b->data();
            float* to = c->data();
            for (std::size_t i = 0; i < n; ++i) to[i] = p[i] + 0.5F * q[i];
            measured::keep(to);
          });
        },
        CLOCK_THREAD_CPUTIME_ID, 0.05, 4);
    gbytes = threads * 3.0 * n * sizeof(float) / seconds * 1e-9;
  }
  return gbytes;
}

}  // namespace tutti::bench
