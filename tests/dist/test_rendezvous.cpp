// SPDX-License-Identifier: MIT
// The meeting of ranks over TCP, on this host's loopback.
#include <tutti/dist/rendezvous.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Bytes = std::array<std::uint64_t, 16>;

RendezvousOptions options(int port, int rank, int size, std::chrono::milliseconds deadline = 20s,
                          const std::string& job = "0123456789abcdef") {
  return {"127.0.0.1", port, job, rank, size, deadline};
}

// What a call says against it; empty if it went well.
std::string trouble(TcpRendezvous& meet, Bytes& data) {
  try {
    meet(std::as_writable_bytes(std::span(data)));
    return "";
  } catch (const CommunicationError& e) {
    return e.what();
  }
}

// Another rank in a thread; what it got and what went wrong.
struct Other {
  Bytes data{};
  std::string error;
  std::thread thread;
  explicit Other(const RendezvousOptions& o, std::chrono::milliseconds pause = 0ms)
      : thread([this, o, pause] {
          std::this_thread::sleep_for(pause);
          TcpRendezvous meet(o);
          error = trouble(meet, data);
        }) {}
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() { join(); }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Writes to the port as somebody who is no rank would; the connection stays open as long as the result.
tcp::Socket stranger(int port, const std::string& says) {
  std::string why;
  auto s = tcp::connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 5s, why);
  REQUIRE_MESSAGE(s, why);
  (void)tcp::send_all(*s, std::as_bytes(std::span(says)), std::chrono::steady_clock::now() + 5s);
  return *std::move(s);
}

}  // namespace

TEST_CASE("all ranks get what rank 0 has, call after call") {
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

TEST_CASE("a rank may come before rank 0 does") {
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

TEST_CASE("one rank meets nobody and needs no port") {
  TcpRendezvous alone(options(0, 0, 1));
  Bytes data{42};
  CHECK(trouble(alone, data) == "");
  CHECK(data[0] == 42);
}

TEST_CASE("ranks that do not come are named, to those who came too") {
  TcpRendezvous root(options(0, 0, 4, 500ms));
  Other here(options(root.port(), 2, 4, 500ms));
  Bytes data{};
  const std::string error = trouble(root, data);
  here.join();
  CHECK_MESSAGE(has(error, "nothing from rank 1, rank 3"), error);
  CHECK_MESSAGE(has(error, "all 4 ranks within 500 ms"), error);
  CHECK_MESSAGE(has(here.error, "without rank 1, rank 3"), here.error);
}

TEST_CASE("rank 0 that does not come") {
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

TEST_CASE("whoever is not of this job is turned away, and the job goes on") {
  TcpRendezvous root(options(0, 0, 2));
  const int port = root.port();
  std::map<std::string, RendezvousOptions> wrong{
      {"another job is at this port", options(port, 1, 2, 5s, "fedcba9876543210")},
      {"counts 2 ranks", options(port, 2, 3, 5s)},
  };
  Bytes data{};
  data.fill(3);
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  for (const auto& [says, o] : wrong) {
    Other one(o);
    one.join();
    CHECK_MESSAGE(has(one.error, says), one.error);
  }
  Other right(options(port, 1, 2));
  right.join();
  serving.join();
  CHECK(error == "");
  CHECK(right.error == "");
  CHECK(right.data == data);
}

TEST_CASE("a rank that comes twice, or whose call is another") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  Other first(options(port, 1, 3));
  std::this_thread::sleep_for(200ms);
  Other again(options(port, 1, 3, 5s));
  again.join();
  CHECK_MESSAGE(has(again.error, "rank 1 is there already"), again.error);
  {
    TcpRendezvous other(options(port, 2, 3, 5s));
    std::array<std::byte, 3> few{};
    CHECK_THROWS_WITH_AS(other(few), doctest::Contains("rank 0 is elsewhere"), CommunicationError);
  }
  Other last(options(port, 2, 3));
  last.join();
  first.join();
  serving.join();
  CHECK(error == "");
  CHECK(first.error == "");
  CHECK(last.error == "");
}

TEST_CASE("garbage on the port does no harm") {
  TcpRendezvous root(options(0, 0, 2));
  const int port = root.port();
  std::vector<tcp::Socket> open;
  Bytes data{};
  data.fill(9);
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  for (const std::string& says :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(), std::string("tutt"), std::string(5000, '\xff'),
        std::string("tuttirv1") + std::string(16 + 64, '\xff'), std::string("tuttirv1") + std::string(40, 'x')})
    open.push_back(stranger(port, says));
  (void)stranger(port, "closed at once");
  Other right(options(port, 1, 2));
  right.join();
  serving.join();
  CHECK(error == "");
  CHECK(right.error == "");
  CHECK(right.data == data);
}

TEST_CASE("a rank that is killed while it waits may come again") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  {
    // The first attempt of rank 1: its deadline passes, and its connection ends with it.
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

TEST_CASE("something else at rank 0's port") {
  const tcp::Socket listener = tcp::listen_at(0, 8);
  const int port = tcp::port_of(listener);
  std::thread other([&] {
    for (const auto end = std::chrono::steady_clock::now() + 600ms; std::chrono::steady_clock::now() < end;) {
      if (!tcp::wait_for(listener.get(), POLLIN, end)) continue;
      const tcp::Socket s(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const std::string text(200, 'h');
      (void)tcp::send_all(s, std::as_bytes(std::span(text)), end);
    }
  });
  TcpRendezvous meet(options(port, 1, 2, 400ms));
  Bytes data{};
  const std::string error = trouble(meet, data);
  other.join();
  CHECK_MESSAGE((has(error, "something else") || has(error, "no answer")), error);
}

TEST_CASE("wrong options") {
  CHECK_THROWS_AS(TcpRendezvous(options(1, 2, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, -1, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, 0, 2, 1s, std::string(65, 'a'))), UsageError);
  TcpRendezvous alone(options(0, 0, 1));
  std::vector<std::byte> much(65537);
  CHECK_THROWS_AS(alone(much), UsageError);
  const TcpRendezvous first(options(0, 0, 2));
  CHECK_THROWS_AS(TcpRendezvous(options(first.port(), 0, 2)), CommunicationError);
}

TEST_CASE("options from the launcher's variables") {
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
  const auto o = rendezvous_of(e);
  CHECK(o.host == "::1");
  CHECK(o.port == 4711);
  CHECK(o.job == e.job);
  CHECK(o.rank == 3);
  CHECK(o.size == 4);
}
