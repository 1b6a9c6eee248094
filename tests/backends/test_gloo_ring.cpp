// SPDX-License-Identifier: MIT
// Tests the ring that sums between hosts: the bits of Gloo's own ring, strangers at its port, neighbours that do not
// arrive, and the end of waits. Ranks are threads of one process.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/device.hpp>
#include <tutti/backends/gloo/mesh.hpp>
#include <tutti/backends/gloo/ring/connections.hpp>
#include <tutti/backends/gloo/ring/sum.hpp>
#include <tutti/backends/gloo/wire.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/rng.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

// Runs f(rank) in threads and throws the first exception.
void run_threads(int ranks, const std::function<void(int)>& f) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        f(r);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}
std::vector<std::string> names_of(int ranks) {
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back("rank " + std::to_string(r));
  return names;
}

// Returns numbers of a rank. Sums of them are rounded, and some are special.
template <class T>
std::vector<T> noise(int rank, std::size_t n) {
  Rng rng(5, Purpose::user, 0, static_cast<std::uint64_t>(rank));
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i)
    v[i] = static_cast<T>(static_cast<float>(rng.normal()) * (i % 7 == 0 ? 1e-40F : 100.F));
  if (n > 90 && rank == 1) v[90] = static_cast<T>(std::numeric_limits<float>::infinity());
  if (n > 91 && rank == 0) v[91] = static_cast<T>(-0.0F);
  return v;
}

struct Wires {  // the same sums over Gloo's connections and over the ring
  GlooWire gloo, ring;
};

template <class T>
void check_bits(Wires& w, int rank, std::size_t n, ReduceOp op, std::atomic<int>& different) {
  std::vector<T> a = noise<T>(rank, n), b = a;
  const Deadline first(60s), second(60s);
  w.gloo.all_reduce(dtype_of<T>, std::as_writable_bytes(std::span(a)), op, first, "gloo");
  w.ring.all_reduce(dtype_of<T>, std::as_writable_bytes(std::span(b)), op, second, "ring");
  if (n > 0 && std::memcmp(a.data(), b.data(), n * sizeof(T)) != 0) ++different;
}

}  // namespace

TEST_CASE("sums over the ring have the bits of Gloo's own ring") {
  for (const int ranks : {2, 3, 5})
    for (const WireType wire : {WireType::same, WireType::bf16, WireType::f32}) {
      CAPTURE(ranks);
      MemoryKeyStore store;
      const std::atomic<bool> stopped{false};
      std::atomic<int> different{0};
      run_threads(ranks, [&](int r) {
        const Deadline deadline(60s);
        const auto names = names_of(ranks);
        const auto mesh = std::make_shared<GlooMesh>(r, ranks, gloo_device("127.0.0.1"));
        const auto ring = std::make_shared<RingConnections>(r, ranks, "127.0.0.1");
        ring->publish(store, "ring/");
        mesh->connect(store, "mesh/", names, deadline, stopped);
        ring->connect(store, "ring/", names, deadline, stopped);
        Wires w{{mesh, nullptr, names, wire}, {mesh, ring, names, wire}};
        // The largest has more than one segment of Gloo for each rank. The sizes are no multiples of a cache line.
        for (const std::size_t n : {0UL, 1UL, 2UL, 7UL, 1000UL, 65'537UL, 2'300'001UL}) {
          check_bits<float>(w, r, n, ReduceOp::sum, different);
          if (n > 70'000) continue;
          check_bits<float>(w, r, n, ReduceOp::max, different);
          check_bits<double>(w, r, n, ReduceOp::sum, different);
          check_bits<bf16>(w, r, n, ReduceOp::sum, different);
          check_bits<std::int64_t>(w, r, n, ReduceOp::sum, different);
        }
        const Deadline end(60s);
        w.gloo.barrier(end, "end");
      });
      CHECK(different == 0);
    }
}

TEST_CASE("strangers at the port of a ring do not disturb it") {
  MemoryKeyStore store;
  const std::atomic<bool> stopped{false};
  std::atomic<int> right{0};
  run_threads(2, [&](int r) {
    const Deadline deadline(60s);
    RingConnections ring(r, 2, "127.0.0.1");
    ring.publish(store, "ring/");
    std::vector<tcp::Socket> strangers;
    const auto text = store.lookup("ring/" + std::to_string(r), deadline, stopped);
    const int port = std::atoi(text->c_str() + text->find(' '));
    for (const std::string& said : {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(400, 'x')}) {
      std::string why;
      auto s = tcp::connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 10s, why);
      REQUIRE(s);
      static_cast<void>(tcp::send_all(*s, std::as_bytes(std::span(said)), std::chrono::steady_clock::now() + 10s));
      strangers.push_back(std::move(*s));
    }
    ring.connect(store, "ring/", names_of(2), deadline, stopped);
    std::vector<float> v(1000, 1.F);
    RingSum(ring).run(DType::f32, DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, deadline, 1);
    right += v == std::vector<float>(1000, 2.F) ? 1 : 0;
  });
  CHECK(right == 2);
}

TEST_CASE("a neighbour that does not arrive is named") {
  MemoryKeyStore store;
  const std::atomic<bool> stopped{false};
  RingConnections ring(0, 3, "127.0.0.1"), listens(2, 3, "127.0.0.1");
  const Deadline first(50ms), second(50ms);
  CHECK_THROWS_WITH_AS(ring.connect(store, "ring/", names_of(3), first, stopped), doctest::Contains("rank 2"),
                       CommunicationError);
  listens.publish(store, "ring/");
  CHECK_THROWS_WITH_AS(ring.connect(store, "ring/", names_of(3), second, stopped), doctest::Contains("rank 1"),
                       CommunicationError);
}

TEST_CASE("ranks with different operations, a deadline and stop() end a sum") {
  for (const std::string how : {"other", "late", "stopped"}) {
    CAPTURE(how);
    MemoryKeyStore store;
    const std::atomic<bool> stopped{false};
    std::vector<std::string> said(2);
    std::atomic<int> ended{0};
    run_threads(2, [&](int r) {
      const Deadline deadline(60s), short_one(50ms);
      RingConnections ring(r, 2, "127.0.0.1");
      ring.publish(store, "ring/");
      ring.connect(store, "ring/", names_of(2), deadline, stopped);
      std::vector<float> v(100'000);
      const auto data = std::as_writable_bytes(std::span(v));
      // Rank 1 begins after rank 0 was stopped, so that rank 0 has not ended before.
      while (how == "stopped" && r == 1 && ended == 0) std::this_thread::sleep_for(1ms);
      std::thread other;
      if (how == "stopped" && r == 0) other = std::thread([&] { ring.stop(); });
      try {
        if (how != "late" || r == 0)
          RingSum(ring).run(DType::f32, DType::f32, data, ReduceOp::sum, how == "late" ? short_one : deadline,
                            how == "other" ? static_cast<std::uint64_t>(r) : 7);
      } catch (const ::gloo::IoException& e) {
        said[static_cast<std::size_t>(r)] = e.what();
      }
      if (other.joinable()) other.join();
      ++ended;
      while (ended < 2) std::this_thread::sleep_for(1ms);
    });
    const char* const expected = how == "other" ? "another operation" : how == "late" ? "timed out" : "interrupted";
    CHECK(said[0].find(expected) != std::string::npos);
    if (how == "other") CHECK(said[1].find(expected) != std::string::npos);
    if (how == "stopped") CHECK(!said[1].empty());
  }
}
