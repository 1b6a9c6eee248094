// SPDX-License-Identifier: MIT
// Servers sum the integers of logical ranks: the same bits for any number of workers and servers.
#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>

#include "logical_job.hpp"
#include "strategy/server_ranks.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

using Strategy = ParameterServer<ps::ThreadWorkerEnd>;

LogicalJob job_of_servers() {
  LogicalJob j;
  j.options.logical_ranks = 4;
  j.options.optimizer = Sgd{0.9, true};
  j.options.first_bucket_bytes = 1 << 8;
  j.options.bucket_bytes = 1 << 9;
  return j;
}

// Returns the result of each worker.
std::vector<LogicalResult> train_by_servers(const ServerJob& servers, const LogicalJob& job,
                                            const std::function<void(ps::WorkerOptions&)>& change = {}) {
  ps::ThreadNetwork network(servers.servers);
  const Ends<ps::ThreadServerEnd, ps::ThreadWorkerEnd> ends{
      [&](int s) { return std::make_unique<ps::ThreadServerEnd>(network, s); },
      [&](int) { return std::make_unique<ps::ThreadWorkerEnd>(network); }};
  std::vector<LogicalResult> all(static_cast<std::size_t>(servers.workers));
  run_with_servers(servers, ends, [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    ProcessWindows windows;
    ps::WorkerOptions o = worker_options(servers, rank);
    if (servers.windows) o.windows = &windows;
    if (change) change(o);
    Strategy strategy(std::move(end), o);
    CpuBackend backend({1});
    all[static_cast<std::size_t>(rank)] = train_logical(backend, strategy, job);
  }).rethrow();
  return all;
}

}  // namespace

TEST_CASE("one to four workers and one to three servers have the bits of one process") {
  const LogicalJob job = job_of_servers();
  const LogicalResult one = train_world(job, 1);
  for (int workers = 1; workers <= 4; ++workers)
    for (int servers = 1; servers <= 3; ++servers)
      for (const bool windows : {false, true}) {
        if (windows && servers != 2) continue;
        CAPTURE(workers);
        CAPTURE(servers);
        CAPTURE(windows);
        for (const LogicalResult& r :
             train_by_servers({.workers = workers, .servers = servers, .big_array = 100, .windows = windows}, job))
          CHECK(r == one);
      }
}

TEST_CASE("gradients that servers get in fewer bits are refused with logical ranks") {
  const ServerJob two{.workers = 2, .servers = 1};
  CHECK_THROWS_WITH_AS(train_by_servers(two, job_of_servers(), [](ps::WorkerOptions& o) { o.bf16_wire = true; }),
                       doctest::Contains("[logical ranks] expected sums that are sent as they are"), UsageError);
  CHECK_THROWS_WITH_AS(train_by_servers(two, job_of_servers(), [](ps::WorkerOptions& o) { o.threshold = 0.5; }),
                       doctest::Contains("[gradient compression] expected f32 gradients"), UsageError);
}
