// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/net/tcp.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an address that drops all packets delays a connection only briefly") {
  // A socket that accepts no connection: Linux drops further connections when its queue is full.
  int error = 0;
  std::string why;
  const auto address = [&](const char* host, int port) { return tcp::SystemLookup{}(host, port, true, why).at(0); };
  const auto hole = tcp::listen_on(address("127.0.0.3", 0), 0, error);
  REQUIRE(hole);
  const int port = tcp::port_of(*hole);
  std::vector<tcp::Socket> queue;
  for (int i = 0; i < 4; ++i) {
    const auto a = address("127.0.0.3", port);
    tcp::Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(s.get(), a.get(), a.size);
    queue.push_back(std::move(s));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<tcp::Address> only{address("127.0.0.3", port)};
  CHECK_FALSE(tcp::connect_first(only, start + 300ms, why));
  CHECK(has(why, "timed out"));
  const auto door = tcp::listen_on(address("127.0.0.1", 0), 8, error);
  REQUIRE(door);
  const std::vector<tcp::Address> both{only[0], address("127.0.0.1", tcp::port_of(*door))};
  CHECK_MESSAGE(tcp::connect_first(both, std::chrono::steady_clock::now() + 30s, why), why);
  CHECK(std::chrono::steady_clock::now() - start < 5s);
}

TEST_CASE("a name server that does not answer delays a lookup no longer than the deadline") {
  const auto start = std::chrono::steady_clock::now();
  std::string why;
  const auto slow = [](const std::string&, int, bool, std::string&) {
    std::this_thread::sleep_for(2s);
    return std::vector<tcp::Address>{};
  };
  CHECK(tcp::addresses_of("name.invalid", 1, start + 100ms, why, slow).empty());
  CHECK(has(why, "in time"));
  CHECK(std::chrono::steady_clock::now() - start < 1500ms);
  CHECK(tcp::addresses_of("127.0.0.1", 1, start + 100ms, why, slow).size() == 1);  // an IP address needs no name server
}
