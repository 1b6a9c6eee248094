// SPDX-License-Identifier: MIT
// optimised
// Tests ranks over Gloo, as threads of one process that simulate several hosts: the conformance cases in every
// configuration, the same results as ranks that are threads, and interrupts of groups at any point.
#include <doctest/doctest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/gloo/address.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/rng.hpp>

#include "comm/conformance.hpp"
#include "comm/thread_ranks.hpp"
#include "gloo_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::bytes_of;

namespace {

std::vector<GlooWay> ways() {
  std::vector<GlooWay> list{{"alone", {"a"}},
                            {"two on a host", {"a", "a"}},
                            {"three on a host", {"a", "a", "a"}},
                            {"plain, two", {"a", "a"}, false},
                            {"plain, four", {"a", "a", "a", "a"}, false},
                            {"a host each", {"a", "b", "c"}},
                            {"two hosts of two", {"a", "a", "b", "b"}},
                            {"hosts of three, one and one", {"a", "b", "a", "a", "c"}},
                            {"two hosts of two, flat", {"a", "a", "b", "b"}, true, false}};
  list.push_back({"plain, f32 on the wire", {"a", "b"}, false, true, WireType::f32});
  list.push_back({"hosts, bf16 on the wire", {"a", "a", "b"}, true, true, WireType::bf16});
  return list;
}

// Returns the numbers of a rank in f32; additions round them.
std::vector<float> noise(int rank, std::size_t n) {
  Rng rng(11, Purpose::user, 0, static_cast<std::uint64_t>(rank));
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal());
  return v;
}

bool has_ipv6() {
  const int s = ::socket(AF_INET6, SOCK_STREAM, 0);
  if (s >= 0) ::close(s);
  std::ifstream file("/proc/net/if_inet6");
  std::string line;
  return s >= 0 && static_cast<bool>(std::getline(file, line));
}

}  // namespace

TEST_CASE("all conformance cases pass in every configuration") {
  for (const GlooWay& way : ways()) {
    CAPTURE(way.name);
    run_gloo(way, [&](GlooCommunicator& c) {
      for (const auto& one : conformance::cases<GlooCommunicator>()) {
        try {
          one.run(c);
        } catch (const std::exception& e) {
          throw std::runtime_error(way.name + ": " + one.name + ": " + e.what());
        }
      }
    });
  }
}

TEST_CASE("f16 and other types are reduced") {
  for (const GlooWay& way : ways()) {
    CAPTURE(way.name);
    run_gloo(way, [&](GlooCommunicator& c) {
      conformance::all_reduce_of<GlooCommunicator, f16>(c, "f16");
      std::vector<std::uint8_t> u(1001, static_cast<std::uint8_t>(c.rank()));
      c.all_reduce(DType::u8, bytes_of(u), ReduceOp::max, "u8").wait();
      conformance::require(u[1000] == c.size() - 1, "the maximum of u8");
      bool refused = false;
      try {
        c.all_reduce(DType::f32, std::span(bytes_of(u)).first(6), ReduceOp::sum, "half").wait();
      } catch (const UsageError&) {
        refused = true;
      }
      conformance::require(refused, "half a value");
    });
  }
}

TEST_CASE("groups work over IPv6") {
  if (!has_ipv6()) {
    std::printf("SKIP: no IPv6 here\n");
    return;
  }
  run_gloo({"v6", {"a", "b", "c"}, true, true, WireType::same, "::1"}, [](GlooCommunicator& c) {
    std::vector<float> v(1000, 1.F);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "v6").wait();
    conformance::require(v[999] == 3.F, "the sum");
  });
}

TEST_CASE("ranks on one host and on two hosts compute the same bits as threads") {
  constexpr std::size_t n = 100'003;
  const auto sums = [&](auto& c, std::vector<float>& out) {
    std::vector<float> v = noise(c.rank(), n);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "bits").wait();
    if (c.rank() == 0) out = v;
  };
  for (const int ranks : {2, 3, 4}) {
    std::vector<float> threads, gloo;
    run_ranks(ranks, [&](ThreadCommunicator& c) { sums(c, threads); });
    run_gloo({"host", std::vector<std::string>(static_cast<std::size_t>(ranks), "a")},
             [&](GlooCommunicator& c) { sums(c, gloo); });
    CHECK(std::memcmp(threads.data(), gloo.data(), n * 4) == 0);
  }
  std::vector<float> threads, gloo;
  run_ranks(2, [&](ThreadCommunicator& c) { sums(c, threads); });
  run_gloo({"hosts", {"a", "b"}}, [&](GlooCommunicator& c) { sums(c, gloo); });
  CHECK(std::memcmp(threads.data(), gloo.data(), n * 4) == 0);
}

TEST_CASE("values are sent in the type that was chosen for the network") {
  for (const auto wire : {WireType::same, WireType::bf16}) {
    run_gloo({"wire", {"a", "b"}, true, true, wire}, [&](GlooCommunicator& c) {
      std::vector<float> f(1000, 1.001F);
      c.all_reduce(DType::f32, bytes_of(f), ReduceOp::sum, "wire").wait();
      conformance::require((f[500] == 2.F) == (wire == WireType::bf16), "f32 on the wire: " + std::to_string(f[500]));
    });
  }
  run_gloo({"wire", {"a", "b", "c"}, false, true, WireType::f32}, [&](GlooCommunicator& c) {
    std::vector<bf16> b(70, bf16(c.rank() == 0 ? 256.F : 1.F));
    c.all_reduce(DType::bf16, bytes_of(b), ReduceOp::sum, "wire").wait();
    conformance::require(static_cast<float>(b[69]) == 258.F, "bf16 was rounded on the way");
  });
}

TEST_CASE("names describe how the ranks communicate") {
  const auto name = [](const GlooWay& way) {
    std::string n;
    run_gloo(way, [&](GlooCommunicator& c) {
      if (c.rank() == 0) n = c.name() + "; " + c.rank_name(c.size() - 1);
    });
    return n;
  };
  CHECK(name({"", {"a", "a"}}) == "gloo, shared memory; rank 1 on a");
  CHECK(name({"", {"a", "a", "b"}}) == "gloo, shared memory in 2 hosts; rank 2 on b");
  CHECK(name({"", {"a", "a", "b"}, false}) == "gloo; rank 2 on b");
}

TEST_CASE("ranks listen on addresses that other hosts can reach") {
  CHECK(gloo_address({"a", "a"}, "a") == "127.0.0.1");
  CHECK(gloo_address({"192.0.2.1"}, "192.0.2.1") == "127.0.0.1");
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  CHECK(gloo_address({"a", "b"}, "a") == "127.0.0.1");
  ::setenv("GLOO_SOCKET_IFNAME", "\n none", 1);
  CHECK_THROWS_WITH_AS((void)gloo_address({"a", "b"}, "a"), doctest::Contains("GLOO_SOCKET_IFNAME"), UsageError);
  ::unsetenv("GLOO_SOCKET_IFNAME");
  // Other hosts cannot reach this host by addresses that mean the host itself.
  CHECK_THROWS_AS((void)gloo_address({"127.0.0.1", "127.0.0.2"}, "127.0.0.1"), CommunicationError);
  // This address is reserved for documentation (RFC 5737): no host has it.
  CHECK_THROWS_AS((void)gloo_device("192.0.2.1"), CommunicationError);
}

TEST_CASE("a wrong rank or size is refused") {
  MemoryKeyStore store;
  for (const GlooOptions& o : {GlooOptions{.rank = 2, .size = 2}, GlooOptions{.rank = -1, .size = 2},
                               GlooOptions{.size = 0}, GlooOptions{.size = 2, .hosts = {"a"}}}) {
    InterruptFlag flag;
    CHECK_THROWS_AS(GlooEngine(o, store, flag), UsageError);
  }
}
