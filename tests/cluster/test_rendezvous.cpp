// SPDX-License-Identifier: MIT
// Tests the rendezvous of ranks over TCP.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/cluster/launch/launched_rendezvous.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>

#include "rendezvous_ranks.hpp"

using namespace tutti;
using namespace tutti::rendezvous_test;

TEST_CASE("all ranks get the data of rank 0 in each call") {
  constexpr int size = 5;
  TcpRendezvous root(options(0, 0, size));
  const int port = root.port();
  REQUIRE(port > 0);
  std::vector<std::thread> others;
  std::array<std::array<Bytes, 3>, size> got{};
  for (int r = 1; r < size; ++r)
    others.emplace_back([&, r] {
      TcpRendezvous meet(options(port, r, size));
      for (auto& b : got[static_cast<std::size_t>(r)]) meet(std::as_writable_bytes(std::span(b)));
    });
  for (std::uint64_t call = 0; call < 3; ++call) {
    Bytes mine;
    mine.fill(1000 + call);
    root(std::as_writable_bytes(std::span(mine)));
    CHECK(mine[7] == 1000 + call);
  }
  for (auto& t : others) t.join();
  for (std::size_t r = 1; r < size; ++r)
    for (std::uint64_t call = 0; call < 3; ++call)
      for (const auto v : got[r][call]) CHECK(v == 1000 + call);
}

TEST_CASE("a rank may start before rank 0") {
  int port = 0;
  {
    const TcpRendezvous first(options(0, 0, 2));
    port = first.port();
  }
  Other other(options(port, 1, 2));
  std::this_thread::sleep_for(200ms);
  TcpRendezvous root(options(port, 0, 2));
  Bytes data;
  data.fill(7);
  CHECK(trouble(root, data) == "");
  other.join();
  CHECK(other.error == "");
  CHECK(other.data == data);
}

TEST_CASE("a job with one rank needs no port") {
  TcpRendezvous alone(options(0, 0, 1));
  Bytes data{42};
  CHECK(trouble(alone, data) == "");
  CHECK(data[0] == 42);
}

TEST_CASE("the errors of all ranks that have joined name the missing ranks") {
  TcpRendezvous root(options(0, 0, 4, 500ms));
  Other here(options(root.port(), 2, 4, 500ms));
  Bytes data{};
  const std::string error = trouble(root, data);
  here.join();
  CHECK_MESSAGE(has(error, "no message from rank 1, rank 3"), error);
  CHECK_MESSAGE(has(error, "all 4 ranks within 500 ms"), error);
  CHECK_MESSAGE(has(here.error, "no message from rank 1, rank 3"), here.error);
}

TEST_CASE("if rank 0 does not start, the error of the other ranks says so") {
  int port = 0;
  {
    const TcpRendezvous gone(options(0, 0, 2));
    port = gone.port();
  }
  TcpRendezvous meet(options(port, 1, 2, 300ms));
  Bytes data{};
  const std::string error = trouble(meet, data);
  CHECK_MESSAGE(has(error, "rank 0 within 300 ms"), error);
}

TEST_CASE("a rank that joins twice, or that is at another call, is refused") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  Other first(options(port, 1, 3));
  std::this_thread::sleep_for(200ms);
  Other again(options(port, 1, 3, 5s));
  again.join();
  CHECK_MESSAGE(has(again.error, "rank 1 has joined already"), again.error);
  {
    TcpRendezvous other(options(port, 2, 3, 5s));
    std::array<std::byte, 3> few{};
    CHECK_THROWS_WITH_AS(other(few), doctest::Contains("rank 0 is at another call"), CommunicationError);
  }
  Other last(options(port, 2, 3));
  last.join();
  first.join();
  serving.join();
  CHECK(error == "");
  CHECK(first.error == "");
  CHECK(last.error == "");
}

TEST_CASE("a rank that was killed while it waited can join again") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  {
    // The first attempt of rank 1 ends at its deadline, and closes its connection.
    TcpRendezvous early(options(port, 1, 3, 100ms));
    Bytes nothing{};
    CHECK(trouble(early, nothing) != "");
  }
  Other one(options(port, 1, 3)), two(options(port, 2, 3));
  one.join();
  two.join();
  serving.join();
  CHECK(error == "");
  CHECK(one.error == "");
  CHECK(two.error == "");
}

TEST_CASE("a rendezvous with wrong options is refused") {
  CHECK_THROWS_AS(TcpRendezvous(options(1, 2, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, -1, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, 0, 2, 1s, std::string(65, 'a'))), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, 1, 2, 1s, "job", "")), UsageError);
  TcpRendezvous alone(options(0, 0, 1));
  std::vector<std::byte> much(65537);
  CHECK_THROWS_AS(alone(much), UsageError);
  const TcpRendezvous first(options(0, 0, 2));
  CHECK_THROWS_AS(TcpRendezvous(options(first.port(), 0, 2)), CommunicationError);
}

TEST_CASE("options are read from the launcher's environment variables") {
  LaunchEnvironment e;
  CHECK(rendezvous_of(e).size == 1);
  e.size = 4;
  e.rank = 3;
  e.job = "00112233445566ff";
  CHECK_THROWS_WITH_AS((void)rendezvous_of(e), doctest::Contains("TUTTI_ROOT"), UsageError);
  for (const char* bad : {"node", "node:0", ":1", "node:70000", "-x:1"}) {
    e.root = bad;
    CHECK_THROWS_AS((void)rendezvous_of(e), UsageError);
  }
  e.root = "[::1]:4711";
  for (const char* bad : {"", "too short"}) {
    e.secret = bad;
    CHECK_THROWS_WITH_AS((void)rendezvous_of(e), doctest::Contains("TUTTI_SECRET"), UsageError);
  }
  e.secret = "longer than sixteen";
  const auto o = rendezvous_of(e);
  CHECK(o.host == "::1");
  CHECK(o.port == 4711);
  CHECK(o.job == e.job);
  CHECK(o.secret == e.secret);
  CHECK_FALSE(o.one_host);
  CHECK(o.rank == 3);
  CHECK(o.size == 4);
}

TEST_CASE("rank 0 listens only at the necessary addresses, and uses the next port if its port is in use") {
  const TcpRendezvous here(options(0, 0, 2));
  std::string why;
  const auto soon = [] { return std::chrono::steady_clock::now() + 1s; };
  CHECK(tcp::connect_to("127.0.0.1", here.port(), soon(), why));
  CHECK_FALSE(tcp::connect_to("127.0.0.2", here.port(), soon(), why));
  // Rank 0 takes the free one of three ports. The other ranks try each port.
  auto base = options(here.port(), 0, 2);
  base.ports = 3;
  TcpRendezvous root(base);
  CHECK(root.port() != here.port());
  base.rank = 1;
  Other one(base);
  Bytes data{};
  data.fill(17);
  CHECK(trouble(root, data) == "");
  one.join();
  CHECK(one.error == "");
  CHECK(one.data == data);
}
