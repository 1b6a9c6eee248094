// SPDX-License-Identifier: MIT
// Tests Gloo groups whose connections are encrypted, as threads of one process that simulate several hosts: the
// conformance cases, the bits of groups without encryption, strangers, ranks that differ, and interrupts.
#include <doctest/doctest.h>

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/openssl/openssl.hpp>
#include <tutti/core/rng.hpp>

#include "comm/conformance.hpp"
#include "gloo_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::bytes_of;

namespace {

const SecureStreams& tls() {
  static const TlsStreams streams;
  return streams;
}
GlooWay encrypted(GlooWay way) {
  way.streams = &tls();
  return way;
}
std::vector<GlooWay> ways() {
  std::vector<GlooWay> list{{"two", {"a", "b"}},
                            {"a host each", {"a", "b", "c"}},
                            {"two hosts of two", {"a", "a", "b", "b"}},
                            {"two hosts of two, flat", {"a", "a", "b", "b"}, true, false},
                            {"without shared memory", {"a", "a", "b"}, false}};
  list.push_back({"bf16 on the wire", {"a", "a", "b"}, true, true, WireType::bf16});
  return list;
}
tcp::Moment in_ten_seconds() { return std::chrono::steady_clock::now() + 10s; }

// Returns a connection to the address that rank 0 has published, as a stranger would make it.
tcp::Socket connect_to_rank_0(const GlooRank& r) {
  const auto text = r.store.lookup(r.options.prefix + "/mesh/0", Deadline(20s), r.flag.raised());
  REQUIRE(text);
  const std::string host = text->substr(0, text->find(' '));
  std::string why;
  auto socket = tcp::connect_to(host, std::stoi(text->substr(host.size())), in_ten_seconds(), why);
  REQUIRE(socket);
  return std::move(*socket);
}
void wait_for_count(const RefusalCounts& counts, Refusal kind, std::uint64_t wanted) {
  while (counts.of(kind) < wanted) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("all conformance cases pass with encryption") {
  for (const GlooWay& way : ways()) {
    CAPTURE(way.name);
    run_gloo(encrypted(way), [&](GlooCommunicator& c) {
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

TEST_CASE("a group with encryption computes the same bits as one without") {
  constexpr std::size_t n = 700'001;
  const auto sums = [&](const GlooWay& way) {
    std::vector<float> out;
    run_gloo(way, [&](GlooCommunicator& c) {
      Rng rng(11, Purpose::user, 0, static_cast<std::uint64_t>(c.rank()));
      std::vector<float> v(n);
      for (float& x : v) x = static_cast<float>(rng.normal());
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "bits").wait();
      if (c.rank() == 0) out = v;
    });
    return out;
  };
  for (const GlooWay& way : ways()) {
    CAPTURE(way.name);
    const std::vector<float> plain = sums(way), closed = sums(encrypted(way));
    CHECK(std::memcmp(plain.data(), closed.data(), n * sizeof(float)) == 0);
  }
}

TEST_CASE("the name of a group says whether it is encrypted; within one host it is not") {
  const auto name = [](const GlooWay& way) {
    std::string n;
    run_gloo(way, [&](GlooCommunicator& c) {
      if (c.rank() == 0) n = c.name();
    });
    return n;
  };
  CHECK(name(encrypted({"", {"a", "a", "b"}})) == "gloo, shared memory in 2 hosts, encrypted by TLS 1.3");
  CHECK(name(encrypted({"", {"a", "a"}, false})) == "gloo");
  CHECK(name(encrypted({"", {"a", "a"}})) == "gloo, shared memory");
}

TEST_CASE("strangers are refused, counted and named, and the group forms") {
  std::vector<std::string> lines;
  std::mutex mutex;
  const auto counts = std::make_shared<RefusalCounts>([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  run_gloo_ranks(encrypted({"strangers", {"a", "b"}}), [&](GlooRank& r) {
    r.options.refusals = counts;
    if (r.rank == 1) {
      // Without encryption, silent, with a wrong secret, and with recorded bytes.
      const tcp::Socket silent = connect_to_rank_0(r), plain = connect_to_rank_0(r);
      const std::string text(32, 'x');
      REQUIRE(tcp::send_all(plain, std::as_bytes(std::span(text)), in_ten_seconds()) == tcp::Transfer::done);
      wait_for_count(*counts, Refusal::plain, 1);
      for (int i = 0; i < 10; ++i) {
        const auto wrong = tls().connect(connect_to_rank_0(r), r.options.prefix + " 1>0", Digest256{});
        CHECK_THROWS_WITH_AS(complete_handshake(*wrong, in_ten_seconds()),
                             doctest::Contains("without the job's secret"), RefusedStream);
      }
      wait_for_count(*counts, Refusal::secret, 10);
      ::shutdown(silent.get(), SHUT_RDWR);
      wait_for_count(*counts, Refusal::silent, 1);
    }
    GlooCommunicator c(r.options, r.store, r.flag);
    std::vector<float> v(1000, 1.F);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
    conformance::require(v[999] == 2.F, "the sum");
  });
  CHECK(counts->of(Refusal::plain) == 1);
  REQUIRE(lines.size() == 4);  // the first of each kind, and the tenth
  CHECK(lines[0] == "rank 0 on a refused a connection from 127.0.0.1: without TLS 1.3");
  CHECK(lines[1] == "rank 0 on a refused a connection from 127.0.0.1: without the job's secret");
  CHECK(lines[2] == "rank 0 on a refused 10 connections, the last from 127.0.0.1: without the job's secret");
}

TEST_CASE("a thousand silent strangers do not keep a rank out") {
  const auto counts = std::make_shared<RefusalCounts>([](const std::string&) {});
  run_gloo_ranks(encrypted({"silence", {"a", "b"}}), [&](GlooRank& r) {
    r.options.refusals = counts;
    std::vector<tcp::Socket> silent;
    for (int i = 0; r.rank == 1 && i < 900; ++i) silent.push_back(connect_to_rank_0(r));
    GlooCommunicator c(r.options, r.store, r.flag);
  });
  CHECK(counts->of(Refusal::silent) >= 900 - 256 - 2);
}

TEST_CASE("a rank without encryption is refused, and both sides name it") {
  for (const int plain : {0, 1}) {
    std::array<std::string, 2> errors;
    run_gloo_ranks(encrypted({"downgrade", {"a", "b"}}), [&](GlooRank& r) {
      if (r.rank == plain) r.options.streams = nullptr;
      try {
        GlooCommunicator c(r.options, r.store, r.flag);
      } catch (const CommunicationError& e) {
        errors[static_cast<std::size_t>(r.rank)] = e.what();
      }
    });
    CHECK(errors[1].find(plain == 1
                             ? "[gloo] expected unencrypted connections with rank 0 on a, got encrypted ones"
                             : "[gloo] expected encrypted connections with rank 0 on a, got unencrypted ones") == 0);
    CHECK(errors[0].find("[gloo] expected the addresses of rank 1 on b, got an invalid message") == 0);
  }
}

TEST_CASE("a rank that ends without a word, and a raised flag, end the operations of the others") {
  for (const bool raised : {false, true}) {
    std::string error;
    run_gloo_ranks(encrypted({"lost", {"a", "b"}}), [&](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      c.barrier(20s);
      if (r.rank == 1) return r.flag.raise("this rank has aborted");
      std::thread raises([&] {
        if (raised) r.flag.raise("the loss of rank 1");
      });
      std::vector<float> v(5'000'000, 1.F);
      try {
        c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
      } catch (const CommunicationError& e) {
        error = e.what();
      }
      raises.join();
    });
    CAPTURE(error);
    CHECK(error.find("[sum] expected all ranks, got ") == 0);
  }
}

TEST_CASE("messages that a slow receiver does not expect yet wait") {
  run_gloo(encrypted({"slow", {"a", "b"}}), [&](GlooCommunicator& c) {
    std::vector<std::byte> v(3'000'000, static_cast<std::byte>(c.rank() + 1));
    for (int i = 0; i < 5; ++i) {
      if (c.rank() == 1) std::this_thread::sleep_for(5ms);
      c.broadcast(v, 0, "weights").wait();
      conformance::require(v[2'999'999] == std::byte{1}, "the weights of rank 0");
    }
  });
}
