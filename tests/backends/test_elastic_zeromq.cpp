// SPDX-License-Identifier: MIT
// Tests an elastic job with parameter servers: the gradients of a worker stay in the same window, and servers of its
// host add directly in the window. A worker of asynchronous servers ends at once if it was removed from the job.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/zeromq/elastic.hpp>
#include <tutti/backends/zeromq/elastic_async.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>

#include "tests/cluster/arbiter_harness.hpp"

using namespace tutti;

namespace {

constexpr std::size_t floats = 50'000;

std::span<float> values(std::span<std::byte> bytes) { return {reinterpret_cast<float*>(bytes.data()), floats}; }
void require(bool good, const std::string& what) {
  if (!good) fail<Error>("test", what, "otherwise");
}

}  // namespace

TEST_CASE(
    "a worker keeps its window while another worker leaves, and gets new memory at the same address after a server is "
    "lost") {
  control::ArbiterOptions o;
  o.workers = o.servers = 2;
  o.elastic = true;
  testing::ArbiterHarness harness(o);
  constexpr std::size_t lost_server = 3;
  std::latch summed(2);
  std::atomic<bool> failed{false};
  std::vector<std::string> errors(4);
  std::vector<std::unique_ptr<ControlChannel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(harness.channel());
  const auto worker = [&](std::size_t me, const LaunchEnvironment& start) {
    zeromq::ElasticServed s(std::move(channels[me]), zeromq::elastic_options(start, {}),
                            zeromq::ServedGroupFactory({}));
    const std::span<std::byte> bytes = s.allocate(floats * sizeof(float));
    require(!bytes.empty(), "a window");
    const auto sum_is = [&](float of_all, const std::string& name) {
      s.attach({}, {});
      require(s.name() == name, name + ", not " + s.name());
      std::ranges::fill(values(bytes), 1.F);
      s.reduce({Piece::Kind::gradients, 0, DType::f32, bytes, 0}).wait();
      require(std::ranges::all_of(values(bytes), [&](float v) { return v == of_all; }), "the sum");
    };
    const auto change_is_known = [&s](bool broken) {
      using Change = ElasticMembership::Change;
      while (broken ? s.change() != Change::broken : s.change() == Change::none)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    sum_is(2, "parameter server over windows, 2 servers");
    summed.count_down();
    while (!summed.try_wait() && !failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (me == 0) harness.ended(lost_server);  // like a server that was paused and removed from the job
    change_is_known(true);
    require(s.next_generation({1, true, false}), "a generation with one server");
    require(values(bytes)[7] == 0, "other memory in its place");
    sum_is(2, "parameter server over windows, 1 server");
    if (me == 1) s.ask_to_leave();
    change_is_known(false);
    require(s.next_generation({2, false, false}) == (me == 0), me == 0 ? "a generation with one worker" : "a release");
    if (me == 1) return;
    require(values(bytes)[7] == 2, "the previous memory");
    sum_is(1, "parameter server over windows, 1 server");
  };
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < 4; ++me)
    threads.emplace_back([&, me] {
      try {
        LaunchEnvironment start;
        start.role = me < 2 ? "worker" : "server";
        start.rank = static_cast<int>(me % 2);
        start.host = "localhost";
        if (me < 2)
          worker(me, start);
        else
          zeromq::serve_elastic_job(start, std::move(channels[me]), {}, {});
      } catch (const std::exception& e) {
        errors[me] = e.what();
        if (me == lost_server) return;
        failed = true;
        for (std::size_t all = 0; all < 4; ++all) harness.ended(all);
      }
    });
  for (auto& t : threads) t.join();
  for (std::size_t me = 0; me < 3; ++me) CHECK(errors[me] == "");
}

TEST_CASE("a worker that asynchronous servers have removed does not wait for their answers") {
  control::ArbiterOptions o;
  o.workers = o.servers = 1;
  o.elastic = o.servers_hold = true;
  o.reports = false;
  ps::WeightStore weights({}, 0, {}, {});
  zeromq::JobOptions job;
  job.strategy = "ps_async";
  job.deadline = std::chrono::seconds(20);
  std::atomic<bool> answers{true};
  testing::ArbiterHarness harness(o);
  std::shared_ptr<ControlChannel> of_worker = harness.channel(), of_server = harness.channel();
  LaunchEnvironment start;
  start.host = "localhost";
  std::thread server([&] {
    LaunchEnvironment its = start;
    its.role = "server";
    zeromq::JobOptions own = job;
    own.weights = &weights;
    own.log = [&](const std::string& line) {  // the log says "gone" before the server refuses the worker
      while (line.find("gone") != line.npos && !answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    try {
      zeromq::serve_elastic_async_job(its, of_server, own, {});
    } catch (const CommunicationError&) {  // the test removes the server from the job below
    }
  });
  std::string error;
  try {
    zeromq::ElasticAsyncServed s(of_worker, zeromq::elastic_options(start, job), zeromq::AsyncGroupFactory(job));
    require(s.others_at_work() == 0, "nobody else");
    answers = false;
    harness.ended(0);  // like a worker that was paused and removed from the job
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < end) (void)s.others_at_work();
  } catch (const Error& e) {
    error = e.what();
  }
  answers = true;
  harness.ended(1);
  server.join();
  INFO(error);
  CHECK(error.find("removed from the job") != error.npos);
}
