// SPDX-License-Identifier: MIT
// Tests what the fusions of the CUDA backend save: the bytes of activations that the ops of a step of ResNet-50 move,
// and the batch norms that an L2 cache holds. tests/gpu/predict.py reads the printed numbers.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/models/resnet.hpp>

#include "backends/activation_traffic.hpp"

using namespace tutti;

namespace {

Graph resnet50(std::int64_t size) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}), {.depth = 50, .classes = 7});
  return std::move(b).take();
}

}  // namespace

TEST_CASE("the memory traffic of ResNet-50's activations is the number in bench/RESULTS.md") {
  const Graph before = differentiate(fuse(resnet50(224)));
  const auto mb = [](const Graph& g) {
    auto sum = testing::activation_traffic(g, 2);
    for (const auto& [op, bytes] : sum) MESSAGE((op.empty() ? "all" : op) << ": " << static_cast<double>(bytes) / 1e6);
    return static_cast<double>(sum[""]) / 1e6;
  };
  std::vector<double> all{mb(before)};
  for (const cuda::NormFusions& o :
       {cuda::NormFusions{false, false, false, true}, cuda::NormFusions{false, false, false, true, true},
        cuda::NormFusions{true, false, false, true, true}, cuda::NormFusions{true, true, false, true, true},
        cuda::NormFusions{true, true, true, true, true}}) {
    Graph g = before;
    cuda::fuse_norms(g, o);
    all.push_back(mb(g));
  }
  const std::vector<double> documented{370.2, 357.0, 347.4, 325.1, 312.0, 305.4};
  REQUIRE(all.size() == documented.size());
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == doctest::Approx(documented[i]).epsilon(2e-4));
}

TEST_CASE("the share of batch norms that an L2 cache holds is counted") {
  Graph g = differentiate(fuse(resnet50(224)));
  cuda::fuse_norms(g, {false, false, false, true, true});
  for (const std::int64_t mib : {40, 48, 50}) {
    const testing::NormCache c = testing::norm_cache(g, 256, mib << 20);
    MESSAGE("cache: " << mib << " forward: " << c.forward << " backward: " << c.backward
                      << " once: " << c.forward_once + c.backward_once << " norms: " << c.norms);
    CHECK(c.norms == 106);
  }
  // An H100 holds x and y of 14x14x256 and of 7x7x512, and backward x, dy and dx of 7x7x512.
  const testing::NormCache h100 = testing::norm_cache(g, 256, std::int64_t{50} << 20);
  CHECK(h100.forward_once == 16);
  CHECK(h100.backward_once == 5);
  // A cache that holds everything: the second passes read nothing from memory.
  const testing::NormCache all = testing::norm_cache(g, 1, std::int64_t{1} << 30);
  CHECK(all.forward_once + all.backward_once == all.norms);
}
