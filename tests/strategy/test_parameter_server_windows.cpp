// SPDX-License-Identifier: MIT
// Tests parameter servers that read and write in the windows of their workers: jobs in which some workers have no
// windows, frames that name memory that was not exported, and a worker that overwrites its window.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/strategy/parameter_server/wire/window_offer.hpp>

#include "bare_server.hpp"
#include "comm/conformance.hpp"
#include "comm/thread_ranks.hpp"
#include "server_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Worker = ps::ServerCommunicator<ps::ThreadWorkerEnd>;
using testing::Bare;

std::vector<float> values(int rank, std::size_t n) {
  Rng rng(11, Purpose::user, 0, static_cast<std::uint64_t>(rank));
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal());
  return v;
}
std::vector<float> all_reduced(int workers, std::size_t n) {
  std::vector<float> want;
  run_ranks(workers, [&](ThreadCommunicator& c) {
    auto v = values(c.rank(), n);
    c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "bits").wait();
    if (c.rank() == 0) want = v;
  });
  return want;
}

// Runs f(communicator) in a job. `workers` and `servers`: which processes have windows.
testing::ServerJobErrors run_mixed(const std::vector<bool>& workers, const std::vector<bool>& servers, bool bf16_wire,
                                   const std::function<void(Worker&)>& f, float threshold = 0) {
  const testing::ServerJob job{.workers = static_cast<int>(workers.size()),
                               .servers = static_cast<int>(servers.size())};
  ps::ThreadNetwork network(job.servers);
  std::vector<std::unique_ptr<ProcessWindows>> of(servers.size() + workers.size());
  for (auto& w : of) w = std::make_unique<ProcessWindows>();
  testing::ServerJobErrors errors;
  errors.servers.resize(servers.size());
  errors.workers.resize(workers.size());
  std::vector<std::thread> threads;
  const auto start = [&](std::exception_ptr& error, std::function<void()> run) {
    threads.emplace_back([&error, run = std::move(run)] {
      try {
        run();
      } catch (...) {
        error = std::current_exception();
      }
    });
  };
  std::vector<std::unique_ptr<ps::ThreadServerEnd>> ends;
  for (int s = 0; s < job.servers; ++s) ends.push_back(std::make_unique<ps::ThreadServerEnd>(network, s));
  for (std::size_t s = 0; s < servers.size(); ++s)
    start(errors.servers[s], [&, s] {
      ps::ServerOptions o = testing::server_options(job, static_cast<int>(s));
      o.windows = servers[s] ? of[s].get() : nullptr;
      ps::Server<ps::ThreadServerEnd>(std::move(ends[s]), o).run();
    });
  for (std::size_t r = 0; r < workers.size(); ++r)
    start(errors.workers[r], [&, r] {
      ps::WorkerOptions o = testing::worker_options(job, static_cast<int>(r));
      o.windows = workers[r] ? of[servers.size() + r].get() : nullptr;
      o.bf16_wire = bf16_wire;
      o.threshold = threshold;
      Worker c(std::make_unique<ps::ThreadWorkerEnd>(network), o);
      f(c);
    });
  for (auto& t : threads) t.join();
  return errors;
}

}  // namespace

TEST_CASE("windows: the bits are the same if some workers and servers have no windows") {
  constexpr std::size_t n = 700'001;
  const std::vector<float> want = all_reduced(3, n);
  struct Who {
    std::vector<bool> workers, servers;
  };
  for (const Who& who : {Who{{true, false, true}, {true, true}}, Who{{false, true, true}, {true, false}},
                         Who{{true, true, true}, {false, true, true}}, Who{{true, true, true}, {false}}}) {
    const std::vector<bool>&workers = who.workers, &servers = who.servers;
    run_mixed(workers, servers, false, [&](Worker& c) {
      const bool mine = workers[static_cast<std::size_t>(c.rank())];
      const auto accepting = std::count(servers.begin(), servers.end(), true);
      const bool some = mine && accepting > 0 && accepting < static_cast<std::ptrdiff_t>(servers.size());
      conformance::require((c.name().find(", windows to ") != std::string::npos) == some, c.name());
      const bool refused = mine && accepting < static_cast<std::ptrdiff_t>(servers.size());
      conformance::require(
          (c.name().find("(no windows: server 0: it maps no windows)") != std::string::npos ||
           c.name().find("(no windows: server 1: it maps no windows)") != std::string::npos) == refused,
          c.name());
      const auto own = c.allocate(n * sizeof(float));
      for (int round = 0; round < 3; ++round) {
        const auto v = values(c.rank(), n);
        std::memcpy(own.data(), v.data(), own.size());
        c.all_reduce(DType::f32, own, ReduceOp::sum, "bits").wait();
        conformance::require(std::memcmp(own.data(), want.data(), own.size()) == 0, "other bits");
      }
      // Broadcasts from each worker in turn, which has a window or not.
      for (int root = 0; root < 3; ++root) {
        const auto v = values(c.rank() == root ? root + 10 : c.rank(), n);
        std::memcpy(own.data(), v.data(), own.size());
        c.broadcast(own, root, "take").wait();
        conformance::require(std::memcmp(own.data(), values(root + 10, n).data(), own.size()) == 0, "not the root's");
      }
    }).rethrow();
  }
}

TEST_CASE("windows: f32 that is sent as bf16 gives the same bits as in frames") {
  constexpr std::size_t n = 300'001;
  std::vector<float> want;
  for (const bool windows : {false, true})
    run_mixed({windows, windows, windows}, {true, true}, true, [&](Worker& c) {
      const auto own = c.allocate(n * sizeof(float));
      for (const std::size_t begin : {std::size_t{0}, std::size_t{4096}}) {
        const auto v = values(c.rank(), n);
        std::memcpy(own.data(), v.data(), own.size());
        c.all_reduce(DType::f32, own.subspan(begin * 4), ReduceOp::sum, "bf16").wait();
        conformance::require(std::memcmp(own.data(), v.data(), begin * 4) == 0, "what was not asked for");
        if (begin != 0) continue;
        if (c.rank() == 0 && !windows) want.assign(n, 0);
        if (c.rank() == 0 && !windows) std::memcpy(want.data(), own.data(), own.size());
        if (windows) conformance::require(std::memcmp(own.data(), want.data(), own.size()) == 0, "other bits");
      }
    }).rethrow();
}

TEST_CASE("windows: two-bit gradients have the same meaning as in frames") {
  constexpr std::size_t n = 300'016, plain = 64;
  std::vector<std::byte> want;
  for (const bool windows : {false, true})
    run_mixed(
        {windows, windows}, {true, true}, false,
        [&](Worker& c) {
          const auto own = c.allocate(plain + n * sizeof(float));
          std::vector<float> kept(n);
          for (int round = 0; round < 2; ++round) {
            const auto v = values(c.rank(), n + plain / sizeof(float));
            std::memcpy(own.data(), v.data(), own.size());
            c.reduce(DType::f32, own, 1, 1, 0, "two bits", kept, plain).wait();
          }
          conformance::require(*reinterpret_cast<const float*>(own.data() + plain) * 2 ==
                                   std::round(*reinterpret_cast<const float*>(own.data() + plain) * 2),
                               "not in two bits");
          if (c.rank() != 0) return;
          if (!windows) want.assign(own.begin(), own.end());
          conformance::require(std::equal(own.begin(), own.end(), want.begin(), want.end()), "other bits");
        },
        0.5F)
        .rethrow();
}

TEST_CASE("windows: frames for memory that was not exported are refused and counted, and have no effect") {
  ProcessWindows of_server, of_workers;
  Bare job(2, ps::usual_in_flight, &of_server);
  ps::ThreadWorkerEnd other(job.network);
  Bare::hello(*job.end, 0, 77, 2);
  Bare::hello(other, 1, 88, 2);
  CHECK(Bare::hear(*job.end).frame.kind == ps::FrameKind::welcome);
  CHECK(Bare::hear(other).frame.kind == ps::FrameKind::welcome);
  std::string why;
  const auto window = of_workers.make(4096, why);
  REQUIRE_MESSAGE(window != nullptr, why);
  const auto offer = [&](const ps::WindowOffer& loan, std::size_t bytes = ps::WindowOffer::record) {
    ps::Frame f = Bare::push(0, 77, std::uint64_t{1} << 63);
    f.operation = ps::Operation::offer_window;
    f.dtype = DType::u8;
    const auto record = ps::encode(loan);
    f.bytes = static_cast<std::uint32_t>(bytes);
    job.end->send(0, ps::encode(f), std::span(record).first(bytes), nullptr);
    return Bare::hear(*job.end);
  };
  const auto said = [&](const ps::WindowOffer& loan) { return std::string(offer(loan).text.c_str()); };
  const WindowName name = of_workers.name_of(*window);
  // Invalid records, a window server that does not exist or is closed, and a window that does not exist or is smaller
  // than announced.
  CHECK(offer({1, name}, 255).frame.kind == ps::FrameKind::refuse);
  CHECK(offer({0, name}).frame.kind == ps::FrameKind::refuse);
  CHECK(offer({17, name}).frame.kind == ps::FrameKind::refuse);
  WindowName wrong = name;
  wrong.server[3] = '/';
  CHECK(said({1, wrong}) == "the name of its server is invalid");
  wrong.server.fill('0');
  CHECK(said({1, wrong}) == "cannot connect to its owner: it has ended, or is in another container");
  wrong = name;
  wrong.number = 99;
  CHECK(said({1, wrong}) == "its owner has no such window");
  wrong = name;
  wrong.bytes = 1 << 20;
  CHECK(said({1, wrong}) == "the window has 4096 bytes instead of 1048576");
  CHECK(said({1, name}) == "");

  const auto push = [&](std::uint32_t number, std::uint64_t place, std::uint32_t bytes = 8) {
    ps::Frame f = Bare::push(0, 77, 1);
    f.window = number;
    f.place = place;
    f.bytes = bytes;
    return f;
  };
  for (const auto& f :
       {push(2, 0), push(17, 0), push(1, 4096), push(1, 4092), push(1, 0, 4100), push(1, std::uint64_t{1} << 40)}) {
    Bare::send(*job.end, f, {});
    const auto heard = Bare::hear(*job.end);
    CHECK(heard.frame.kind == ps::FrameKind::refuse);
    CHECK(heard.text == "an address outside of the shared windows");
  }
  // Names the window of another worker. A frame is also invalid if it names half an element, a place beyond all memory
  // or a place that no window can have, or if it has data.
  ps::Frame f = push(1, 0);
  f.worker = 1;
  f.session = 88;
  Bare::send(other, f, {});
  CHECK(Bare::hear(other).frame.kind == ps::FrameKind::refuse);
  Bare::send(*job.end, push(1, 2), {});
  Bare::send(*job.end, push(1, ~std::uint64_t{0} - 7), {});
  Bare::send(*job.end, push(1, 0), {1, 2});
  f = push(1, 0);
  f.operation = ps::Operation::store;
  Bare::send(*job.end, f, {});
  f = push(1, 0);
  f.kind = ps::FrameKind::goodbye;
  Bare::send(*job.end, f, {});

  auto* const v = reinterpret_cast<float*>(window->bytes().data());
  v[2] = 1;
  v[3] = 2;
  Bare::send(*job.end, push(1, 8), {});
  Bare::send(*job.end, push(1, 8), {});  // a repeated frame: the server answers it again, but adds its data only once
  Bare::send(other, Bare::push(1, 88, 1), {10, 20});
  CHECK(Bare::hear(other).values == std::vector<float>{11, 22});
  const auto heard = Bare::hear(*job.end);
  CHECK(heard.frame.kind == ps::FrameKind::answer);
  CHECK(heard.frame.window == 1);
  CHECK(heard.text.empty());
  CHECK(std::vector<float>(v, v + 5) == std::vector<float>{0, 0, 11, 22, 0});
  Bare::send(*job.end, push(1, 8), {});
  CHECK(Bare::hear(*job.end).frame.kind == ps::FrameKind::answer);
  CHECK(v[2] == 11);
  job.stop();
  CHECK(job.error == "");
  CHECK(job.server.counts().malformed == 15);
  CHECK(job.server.counts().repeated == 2);
}

TEST_CASE("windows: a worker that overwrites its own window does not affect others") {
  constexpr std::size_t n = 300'000;
  run_mixed({true, true}, {true}, false, [&](Worker& c) {
    const auto own = c.allocate(n * sizeof(float));
    auto* const v = reinterpret_cast<float*>(own.data());
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(c.rank() + 1);
      std::atomic<bool> done{false};
      std::thread scribbler;
      if (c.rank() == 1)
        scribbler = std::thread([&] {
          // Overwrites the first half again and again while the server reads it.
          for (unsigned i = 0; !done; ++i) std::memset(own.data(), static_cast<int>(i), own.size() / 2);
        });
      c.all_reduce(DType::f32, own, ReduceOp::sum, "sum").wait();
      done = true;
      if (scribbler.joinable()) scribbler.join();
      for (std::size_t i = n / 2; i < n; ++i) conformance::require(v[i] == 3, "another half");
    }
  }).rethrow();
}
