// SPDX-License-Identifier: MIT
// Tests training steps with NCCL operations in the captured step. One GPU has one rank, but the strategy reports two
// ranks, so that the trainer shares the gradients. The sums over the single rank equal its own values.
#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/backends/nccl/nccl.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <string>

#include <tutti/strategy/all_reduce.hpp>

#include "backends/need_gpu.hpp"
#include "backends/step_cases.hpp"

using namespace tutti;
using testing::no_gpu;

namespace {

struct OneOfTwo : AllReduce<NcclCommunicator> {
  using AllReduce<NcclCommunicator>::AllReduce;
  [[nodiscard]] Membership membership() const { return {0, 2, 0}; }
};
static_assert(DistributedStrategy<OneOfTwo>);

}  // namespace

TEST_CASE("gpu: NCCL's sums are part of the captured step") {
  if (no_gpu()) return;
  testing::check_steps_beside_host(
      [](bool graph) {
        CudaOptions o;
        o.tf32 = false;
        o.deterministic = true;
        o.graph = graph;
        return std::make_unique<CudaBackend>(o);
      },
      [](CudaBackend& backend, auto&& f) {
        NcclCommunicator c(backend.device());
        OneOfTwo strategy(c);
        f(strategy);
      },
      7);
}
