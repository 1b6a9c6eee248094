// SPDX-License-Identifier: MIT
// Logical ranks over Gloo: the same bits over shared memory, over the network, and by both.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "gloo_ranks.hpp"
#include "train/logical_job.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

LogicalJob job_of_ranks() {
  LogicalJob j;
  j.options.logical_ranks = 5;
  j.options.optimizer = Sgd{0.9, true};
  j.options.first_bucket_bytes = 1 << 8;
  j.options.bucket_bytes = 1 << 9;
  return j;
}

}  // namespace

TEST_CASE("ranks over Gloo have the bits of one process") {
  const LogicalJob job = job_of_ranks();
  const LogicalResult one = train_world(job, 1);
  for (const GlooWay& way : {GlooWay{"one host", {"a", "a", "a"}}, GlooWay{"sockets", {"a", "a"}, false, false},
                             GlooWay{"hosts", {"a", "b", "c"}}, GlooWay{"pairs", {"a", "a", "b", "b", "b"}},
                             GlooWay{"no hierarchy", {"a", "a", "b", "b"}, true, false},
                             GlooWay{"f32 for bf16", {"a", "b"}, true, true, WireType::f32}}) {
    CAPTURE(way.name);
    run_gloo(way, [&](GlooCommunicator& c) {
      AllReduce strategy(c);
      CpuBackend backend({1 + c.rank() % 2});
      CHECK(train_logical(backend, strategy, job) == one);
    });
  }
}

TEST_CASE("sums that cross the network as bf16 are refused with logical ranks") {
  run_gloo({"bf16", {"a", "b"}, true, true, WireType::bf16}, [&](GlooCommunicator& c) {
    AllReduce strategy(c);
    CpuBackend backend({1});
    CHECK_THROWS_WITH_AS(train_logical(backend, strategy, job_of_ranks()),
                         doctest::Contains("leave out --comm-wire bf16"), UsageError);
  });
}
