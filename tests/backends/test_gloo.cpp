// SPDX-License-Identifier: MIT
// optimised
// Ranks over Gloo, as threads of one process that pretend to be on several hosts: the conformance cases on every way,
// the bits of ranks that are threads, and groups that are interrupted wherever they are.
#include <doctest/doctest.h>

#include <dirent.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/address.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu.hpp>

#include "comm/conformance.hpp"
#include "comm/thread_ranks.hpp"
#include "gloo_ranks.hpp"
#include "strategy/broken_step.hpp"

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

// f32 that are not exact, of a rank.
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

TEST_CASE("all that a communicator must do, on every way") {
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

TEST_CASE("the other types, too") {
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

TEST_CASE("over IPv6") {
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

TEST_CASE("ranks of one host and two hosts have the bits of threads") {
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

TEST_CASE("a type on the wire is acted on") {
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

TEST_CASE("names say how the ranks speak") {
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

TEST_CASE("ranks listen where those of other hosts reach them") {
  CHECK(gloo_address({"a", "a"}, "a") == "127.0.0.1");
  CHECK(gloo_address({"192.0.2.1"}, "192.0.2.1") == "127.0.0.1");
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  CHECK(gloo_address({"a", "b"}, "a") == "127.0.0.1");
  ::setenv("GLOO_SOCKET_IFNAME", "\n none", 1);
  CHECK_THROWS_WITH_AS((void)gloo_address({"a", "b"}, "a"), doctest::Contains("GLOO_SOCKET_IFNAME"), UsageError);
  ::unsetenv("GLOO_SOCKET_IFNAME");
  // Names that mean this host alone lead nowhere.
  CHECK_THROWS_AS((void)gloo_address({"127.0.0.1", "127.0.0.2"}, "127.0.0.1"), CommunicationError);
  CHECK_THROWS_AS((void)gloo_device("192.0.2.1"), CommunicationError);  // of documents (RFC 5737), nobody's
}

TEST_CASE("a wrong place in the group is refused") {
  MemoryKeyStore store;
  for (const GlooOptions& o : {GlooOptions{.rank = 2, .size = 2}, GlooOptions{.rank = -1, .size = 2},
                               GlooOptions{.size = 0}, GlooOptions{.size = 2, .hosts = {"a"}}}) {
    InterruptFlag flag;
    CHECK_THROWS_AS(GlooEngine(o, store, flag), UsageError);
  }
}

namespace {

// What each rank hears when it waits for rank `bad` of the way, which does not come.
std::vector<std::string> wait_for(const GlooWay& way, int bad, const std::function<void(GlooCommunicator&)>& bad_does) {
  std::vector<std::string> heard(way.hosts.size());
  std::atomic<int> told{0};
  run_gloo(
      way,
      [&](GlooCommunicator& c) {
        std::vector<float> v(40'000, 1.F);
        c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 12 bucket 2").wait();
        try {
          if (c.rank() == bad) {
            bad_does(c);
            while (told < c.size() - 1) std::this_thread::sleep_for(10ms);
            return c.interrupt();
          }
          c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 12 bucket 3").wait();
        } catch (const CommunicationError& e) {
          heard[static_cast<std::size_t>(c.rank())] = e.what();
          c.interrupt();
          ++told;
        }
      },
      800ms);
  return heard;
}

const std::vector<GlooWay>& failing_ways() {
  static const std::vector<GlooWay> list{{"plain", {"a", "a", "a", "b"}, false},
                                         {"host", {"a", "a", "a", "a"}},
                                         {"a host each", {"a", "b", "c", "d"}},
                                         {"tree", {"a", "a", "b", "b"}},
                                         {"tree, alone there", {"a", "a", "a", "b"}}};
  return list;
}

}  // namespace

TEST_CASE("who does not come is named") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    const auto heard = wait_for(way, 3, [](GlooCommunicator&) {});
    // In a tree the leader of the other host knows of the leader alone.
    const std::string name = "rank 3 on " + way.hosts[3];
    int named = 0;
    for (int r = 0; r < 3; ++r) {
      const std::string& h = heard[static_cast<std::size_t>(r)];
      CAPTURE(h);
      CHECK(h.starts_with("[step 12 bucket 3] expected all ranks"));
      named += h.find(name) != std::string::npos ? 1 : 0;
    }
    CHECK(named >= (way.name == "tree" ? 1 : 3));
  }
}

TEST_CASE("who aborts says why, once") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    const Stopwatch watch;
    const auto heard = wait_for(way, 3, [](GlooCommunicator& c) { c.abort("record 7 is damaged", ExitCode::data); });
    for (int r = 0; r < 3; ++r) {
      const std::string& h = heard[static_cast<std::size_t>(r)];
      CAPTURE(h);
      CHECK(h.find("rank 3 on " + way.hosts[3] + " ends the job: record 7 is damaged") != std::string::npos);
    }
    CHECK(watch.seconds() < 5);
  }
}

TEST_CASE("ranks at different operations are told so") {
  for (const GlooWay& way : {GlooWay{"plain", {"a", "b"}, false}, GlooWay{"host", {"a", "a"}}}) {
    CAPTURE(way.name);
    std::array<std::string, 2> heard;
    run_gloo(
        way,
        [&](GlooCommunicator& c) {
          std::vector<float> v(c.rank() == 0 ? 40'000 : 40'001);
          try {
            c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
          } catch (const CommunicationError& e) {
            heard[static_cast<std::size_t>(c.rank())] = e.what();
            c.interrupt();
          }
        },
        700ms);
    const std::string both = heard[0] + heard[1];
    CHECK(both.find("160000 bytes") != std::string::npos);
    CHECK(both.find("160004") != std::string::npos);
  }
}

namespace {

// Ranks that wait in `body` when all flags are raised; the longest time from then to the end of it, in seconds.
double interrupted(const GlooWay& way, const std::function<void(GlooRank&)>& body, std::string* said = nullptr,
                   std::chrono::milliseconds after = 200ms) {
  std::mutex mutex;
  double longest = 0;
  run_gloo_ranks(way, [&](GlooRank& r) {
    std::atomic<std::chrono::steady_clock::rep> raised{0};
    std::thread other([&] {
      std::this_thread::sleep_for(after);
      raised = std::chrono::steady_clock::now().time_since_epoch().count();
      r.flag.raise("the loss of worker 7 on z");
    });
    std::string heard;
    try {
      body(r);
    } catch (const CommunicationError& e) {
      heard = e.what();
    }
    const auto end = std::chrono::steady_clock::now().time_since_epoch().count();
    other.join();
    const std::lock_guard lock(mutex);
    if (said != nullptr) *said += heard + "\n";
    longest = std::max(longest,
                       std::chrono::duration<double>(std::chrono::steady_clock::duration(end - raised.load())).count());
  });
  return longest;
}

}  // namespace

TEST_CASE("a group that is formed can be interrupted") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    std::string said;
    const double seconds = interrupted(
        way,
        [](GlooRank& r) {
          if (r.rank == 3) return std::this_thread::sleep_for(200ms);  // it never comes
          GlooCommunicator c(r.options, r.store, r.flag);
          throw std::runtime_error("it was formed");
        },
        &said);
    CHECK(seconds < 2);
    CHECK(std::count(said.begin(), said.end(), 'z') == 3);
  }
}

TEST_CASE("who waits for others can be interrupted") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    std::string said;
    const double seconds = interrupted(
        way,
        [](GlooRank& r) {
          GlooCommunicator c(r.options, r.store, r.flag);
          std::vector<float> v(40'000, 1.F);
          if (r.rank == 3) return std::this_thread::sleep_for(400ms);
          c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 12 bucket 3").wait();
        },
        &said);
    CHECK(seconds < 2);
    CHECK(said.find("[step 12 bucket 3] expected all ranks, got the loss of worker 7 on z") != std::string::npos);
  }
}

TEST_CASE("who is in the middle of a message can be interrupted") {
  // Every rank sends and receives without an end.
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    const double seconds = interrupted(way, [](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      std::vector<float> v(16 << 20, 0.F);
      for (int root = 0;; root = (root + 1) % c.size()) c.broadcast(bytes_of(v), root, "a large one").wait();
    });
    CHECK(seconds < 3);
  }
}

namespace {

// Holds up the thread of a device.
class Stall final : public ::gloo::transport::tcp::Handler {
 public:
  explicit Stall(const std::string& address)
      : device_(std::dynamic_pointer_cast<::gloo::transport::tcp::Device>(gloo_device(address))),
        ready_(::eventfd(1, EFD_CLOEXEC)) {
    device_->registerDescriptor(ready_.get(), EPOLLIN, this);
  }
  ~Stall() override {
    over_ = true;
    device_->unregisterDescriptor(ready_.get(), this);
  }
  void handleEvents(int) override {
    while (!over_) std::this_thread::sleep_for(1ms);
  }

 private:
  std::shared_ptr<::gloo::transport::tcp::Device> device_;
  io::Descriptor ready_;
  std::atomic<bool> over_{false};
};

}  // namespace

TEST_CASE("a message of which half has come can be interrupted") {
  // Rank 1 has a thread of Gloo's own, which stands still while the message comes.
  std::string said;
  double seconds = -1;
  bool begun = false, ended = false;
  std::vector<std::byte> got(std::size_t{256} << 20);
  run_gloo_ranks({"plain", {"a", "b"}, false}, [&](GlooRank& r) {
    if (r.rank == 1) {
      r.options.address = "127.0.0.2";
      GlooCommunicator c(r.options, r.store, r.flag);
      Work w = c.broadcast(got, 0, "half");
      while (std::atomic_ref(got[0]).load() == std::byte{0}) std::this_thread::sleep_for(1ms);
      {
        const Stall stall(r.options.address);
        std::this_thread::sleep_for(500ms);
        begun = got.front() != std::byte{0};
        ended = got.back() != std::byte{0};
      }
      // Of the other end's leaving it knows nothing.
      r.flag.raise("the loss of worker 7 on z");
      CHECK_THROWS_AS(w.wait(), CommunicationError);
      return;
    }
    GlooCommunicator c(r.options, r.store, r.flag);
    std::vector<std::byte> v(got.size(), std::byte{1});
    std::atomic<std::chrono::steady_clock::rep> raised{0};
    std::thread other([&] {
      std::this_thread::sleep_for(300ms);
      raised = std::chrono::steady_clock::now().time_since_epoch().count();
      r.flag.raise("the loss of worker 7 on z");
    });
    try {
      c.broadcast(v, 0, "half").wait();
    } catch (const CommunicationError& e) {
      said = e.what();
    }
    const auto end = std::chrono::steady_clock::now().time_since_epoch().count();
    other.join();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::duration(end - raised.load())).count();
  });
  CHECK(begun);
  CHECK(!ended);
  CHECK(said.find("worker 7 on z") != std::string::npos);
  CHECK(seconds >= 0);
  CHECK(seconds < 0.15);  // rank 1 goes on later
}

TEST_CASE("a group that was interrupted while it was idle is of no use any more") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    run_gloo_ranks(way, [](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      std::vector<float> v(10, 1.F);
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
      r.flag.raise("the loss of worker 7 on z");
      for (int i = 0; i < 2; ++i)
        CHECK_THROWS_AS(c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait(), CommunicationError);
      c.interrupt();
      CHECK_THROWS_AS(c.barrier(1s), CommunicationError);
    });
  }
}

TEST_CASE("a step that breaks at any piece leaves the state of the step before, over Gloo") {
  const GlooWay way{"tree", {"a", "a", "b"}};
  int pieces = 0;
  run_gloo(way, [&](GlooCommunicator& c) {
    CpuBackend backend({1});
    testing::Breaking strategy(c, 0, 0);
    const std::string said = testing::break_a_step(backend, strategy, 1, false);
    if (!said.empty()) fail("test", "whole steps", said);
    if (c.rank() == 0) pieces = strategy.pieces();
  });
  CHECK(pieces > 3);
  for (int piece = 0; piece <= pieces; ++piece) {
    CAPTURE(piece);
    std::array<std::string, 3> said;
    run_gloo_ranks(way, [&](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      CpuBackend backend({1});
      testing::Breaking strategy(c, r.rank == 2 ? 4 : 0, piece);
      said[static_cast<std::size_t>(r.rank)] = testing::break_a_step(backend, strategy, 1, piece < pieces);
    });
    for (const std::string& s : said) CHECK(s == "");
  }
}

namespace {

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  DIR* const d = ::opendir(folder);
  while (::readdir(d) != nullptr) ++n;
  ::closedir(d);
  return n;
}
std::size_t resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  return 0;
}

}  // namespace

TEST_CASE("500 groups come and go, and leave nothing") {
  const std::vector<GlooWay> list{{"plain", {"a", "b", "c"}, false}, {"tree", {"a", "a", "b"}}};
  std::size_t descriptors = 0, threads = 0, kib = 0;
  for (int g = 0; g < 500; ++g) {
    run_gloo_ranks(list[static_cast<std::size_t>(g % 2)], [&](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      std::vector<float> v(5000, 1.F);
      const auto own = c.allocate(40'000);
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
      conformance::require(v[4999] == 3.F && own.empty() == (g % 2 == 0), "the group works");
      // Some end in order, others are interrupted.
      if (g % 4 >= 2) r.flag.raise("the next generation");
    });
    if (g == 99) {
      descriptors = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
      kib = resident_kib();
    }
  }
  CHECK(entries("/proc/self/fd") <= descriptors);
  CHECK(entries("/proc/self/task") <= threads);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
  CHECK(resident_kib() <= kib + kib / 10 + 2048);
#endif
}
