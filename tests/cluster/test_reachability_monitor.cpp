// SPDX-License-Identifier: MIT
// Tests that a process that waits for its group reports exactly the peers that it cannot reach.
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/cluster/reachability_monitor.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Ids = std::vector<std::uint64_t>;

// Collects the reports of a ReachabilityMonitor.
struct Reports {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::pair<std::uint64_t, Ids>> said;

  [[nodiscard]] ReachabilityMonitor::Report taker() {
    return [this](std::uint64_t operation, const Ids& ids) {
      const std::lock_guard lock(mutex);
      said.emplace_back(operation, ids);
      news.notify_all();
    };
  }
  [[nodiscard]] std::pair<std::uint64_t, Ids> wait_for(std::size_t number) {
    std::unique_lock lock(mutex);
    REQUIRE(news.wait_for(lock, 60s, [&] { return said.size() > number; }));
    return said[number];
  }
  [[nodiscard]] std::size_t count() {
    const std::lock_guard lock(mutex);
    return said.size();
  }
};

[[nodiscard]] ReachabilityMonitor::Peer peer(std::uint64_t id, std::string at) {
  return {id, [at = std::move(at)] { return at; }};
}
// A port of this host that accepts no connection, because the queue of its socket is full.
class FullServer {
 public:
  FullServer() {
    std::string why;
    int error = 0;
    listener_ = *tcp::listen_on(tcp::SystemLookup{}("127.0.0.1", 0, true, why).front(), 0, error);
    const auto at = tcp::SystemLookup{}("127.0.0.1", tcp::port_of(listener_), true, why).front();
    for (int i = 0; i < 4; ++i) {
      tcp::Socket& s = held_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)::connect(s.get(), at.get(), at.size);
    }
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(tcp::port_of(listener_)); }

 private:
  tcp::Socket listener_;
  std::vector<tcp::Socket> held_;
};

}  // namespace

TEST_CASE(
    "a peer that accepts no connection is reported after the time-out, and the report is withdrawn after the wait") {
  Reports here, there;
  ReachabilityMonitor other(1s, there.taker());
  const std::string open = other.listen("127.0.0.1");
  const FullServer full;
  ReachabilityMonitor watch(1s, here.taker());
  watch.begin({peer(4, open), peer(5, full.address()), peer(6, "127.0.0.1:1"), peer(7, "")});
  for (std::uint64_t operation : {1U, 2U}) {
    const auto began = std::chrono::steady_clock::now();
    {
      const ReachabilityMonitor::Operation waits(&watch);
      // The other peers count as reachable: a slow one that accepts, a host that refuses, and an unknown address.
      CHECK(here.wait_for(2 * operation - 2) == std::pair(operation, Ids{5}));
      CHECK(std::chrono::steady_clock::now() - began >= 1s);
    }
    CHECK(here.wait_for(2 * operation - 1) == std::pair(operation, Ids{}));
  }
  CHECK(there.count() == 0);
}

TEST_CASE("peers that accept connections are not reported, even if they are slow") {
  Reports reports;
  ReachabilityMonitor other(1500ms, reports.taker());
  const std::string open = other.listen("127.0.0.1");
  const FullServer full;
  ReachabilityMonitor watch(1500ms, reports.taker());
  // Each operation ends before the time-out, so the unreachable peer is not reported.
  watch.begin({peer(1, full.address())});
  for (int i = 0; i < 20; ++i) {
    const ReachabilityMonitor::Operation waits(&watch);
    std::this_thread::sleep_for(100ms);
  }
  // A slow peer that accepts connections is not reported.
  watch.begin({peer(1, open)});
  {
    const ReachabilityMonitor::Operation waits(&watch);
    std::this_thread::sleep_for(2s);
  }
  // No operation waits for the peers of this group, so the monitor reports no peer.
  watch.begin({peer(1, full.address())});
  std::this_thread::sleep_for(2s);
  CHECK(reports.count() == 0);
  const ReachabilityMonitor::Operation nothing(nullptr);
}

TEST_CASE("after an operation has failed, the connections to peers are tested at once") {
  Reports reports;
  ReachabilityMonitor other(30s, reports.taker());
  const std::string open = other.listen("127.0.0.1");
  const FullServer full;
  const auto fail_in = [](ReachabilityMonitor& watch) {
    try {
      const ReachabilityMonitor::Operation waits(&watch);
      throw CommunicationError("broken");
    } catch (const CommunicationError&) {
    }
  };
  // All peers are reachable, so the call does not wait for the time-out.
  ReachabilityMonitor patient(300s, reports.taker());
  patient.await_peers([] { return false; });  // returns at once, because no operation has failed
  patient.begin({peer(1, open), peer(2, "127.0.0.1:1")});
  fail_in(patient);
  patient.await_peers([] { return false; });
  patient.begin({});
  fail_in(patient);
  patient.await_peers([] { return false; });
  CHECK(reports.count() == 0);
  // After a request to stop, the call does not wait for an unreachable peer either.
  patient.begin({peer(1, full.address())});
  fail_in(patient);
  int asked = 0;
  patient.await_peers([&] { return ++asked == 5; });
  CHECK(asked == 5);
  // The unreachable peer is reported after the time-out, as during a long operation.
  ReachabilityMonitor watch(500ms, reports.taker());
  watch.begin({peer(7, full.address()), peer(8, open)});
  fail_in(watch);
  watch.await_peers([] { return false; });
  CHECK(reports.wait_for(0) == std::pair(std::uint64_t{1}, Ids{7}));
  watch.begin({peer(7, open)});
  std::this_thread::sleep_for(800ms);
  CHECK(reports.count() == 1);
}
