// SPDX-License-Identifier: MIT
// Tests which ranks share a host, and which events end their group.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <tutti/comm/host/host_routes.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>

using namespace tutti;
using namespace std::chrono_literals;

TEST_CASE("ranks of one host are ordered by number, and hosts by their lowest ranks") {
  const std::vector<std::string> hosts{"b", "a", "b", "c", "a", "b"};
  for (int r = 0; r < 6; ++r) {
    const HostTopology p(r, hosts);
    CHECK(p.rank() == r);
    CHECK(p.size() == 6);
    CHECK(p.hosts() == 3);
    CHECK(p.leaders() == std::vector<int>{0, 1, 3});
    CHECK(p.is_leader() == (r == 0 || r == 1 || r == 3));
    CHECK(p.my_host() == std::vector<int>{0, 1, 0, 2, 1, 0}[static_cast<std::size_t>(r)]);
    CHECK(p.local_rank() == std::vector<int>{0, 0, 1, 0, 1, 2}[static_cast<std::size_t>(r)]);
    CHECK(p.local_size() == std::vector<int>{3, 2, 3, 1, 2, 3}[static_cast<std::size_t>(r)]);
    CHECK(p.most_of_a_host() == 3);
  }
  const HostTopology p(2, hosts);
  CHECK(p.name(4) == "rank 4 on a");
  CHECK(p.local_names() == std::vector<std::string>{"rank 0 on b", "rank 2 on b", "rank 5 on b"});
  CHECK(p.leader_names() == std::vector<std::string>{"rank 0 on b", "rank 1 on a", "rank 3 on c"});
  CHECK(p.all_names().size() == 6);
  const HostTopology alone;
  CHECK((alone.size() == 1 && alone.is_leader() && alone.local_size() == 1));
}

TEST_CASE("the path of an operation follows from the ranks that share memory") {
  struct Network {};
  using Routes = HostRoutes<Network>;
  using Route = Routes::Route;
  const HostTopology one(0, {"a"}), host(0, {"a", "a"}), each(0, {"a", "b"}), two(0, {"a", "a", "b"});
  CHECK(Routes::choose(one, true, true) == Route::alone);
  CHECK(Routes::choose(host, true, true) == Route::host);
  CHECK(Routes::choose(host, true, false) == Route::host);
  CHECK(Routes::choose(host, false, true) == Route::plain);
  CHECK(Routes::choose(each, true, true) == Route::plain);
  CHECK(Routes::choose(two, true, true) == Route::tree);
  CHECK(Routes::choose(two, true, false) == Route::plain);
  CHECK(Routes::choose(two, false, true) == Route::plain);
}

TEST_CASE("an interrupt flag calls its watcher, and keeps its first reason") {
  InterruptFlag flag;
  int calls = 0;
  flag.watch([&] { ++calls; });
  CHECK_FALSE(flag.raised());
  flag.raise("one");
  flag.raise("two");
  CHECK(flag.raised());
  CHECK(flag.why() == "one");
  CHECK(calls == 2);
  flag.watch({});
  flag.raise("three");
  CHECK(calls == 2);
  flag.watch([&] { ++calls; });  // the flag is already raised
  CHECK(calls == 3);
}

TEST_CASE(
    "a read from the store in memory returns a value, or waits until the value comes or the wait is interrupted") {
  MemoryKeyStore store;
  std::atomic<bool> stopped{false};
  const auto in = [](auto time) { return Deadline(time); };
  CHECK_FALSE(store.find("k").has_value());
  CHECK_FALSE(store.lookup("k", in(20ms), stopped).has_value());
  std::thread waits([&] { CHECK(store.lookup("k", in(60s), stopped) == "v"); });
  store.publish("k", "v");
  waits.join();
  std::thread again([&] { CHECK_FALSE(store.lookup("other", in(60s), stopped).has_value()); });
  stopped = true;
  store.wake();
  again.join();
}

TEST_CASE("a deadline that is extended has the rest of the time and more, and a negative time is over at once") {
  const Deadline d(5s);
  CHECK_FALSE(d.is_over());
  CHECK(d.next_wait() == 100ms);
  CHECK(d.left() <= 5s);
  CHECK(d.extended(2s).left() == d.left() + 2s);
  CHECK(Deadline(0s).is_over());
  CHECK(Deadline(-1s).is_over());
  CHECK(Deadline(-1s).left() == 0s);
}
