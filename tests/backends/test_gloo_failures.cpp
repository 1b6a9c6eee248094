// SPDX-License-Identifier: MIT
// takes long
// optimised
// Tests ranks over Gloo that do not arrive, run different operations, or are interrupted at any point: checks the
// errors of all ranks, and that no resources stay allocated. Ranks are threads of one process that simulate several
// hosts.
#include <doctest/doctest.h>

#include <dirent.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/address.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/engine/cpu/cpu.hpp>

#include "comm/conformance.hpp"
#include "core/sanitizers.hpp"
#include "gloo_ranks.hpp"
#include "strategy/broken_step.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::bytes_of;

namespace {

// Rank `bad` does not arrive. Returns the errors of the ranks that wait for it.
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

TEST_CASE("if a rank does not arrive, the error names the rank") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    const auto heard = wait_for(way, 3, [](GlooCommunicator&) {});
    // In a tree only the leader of the host knows the rank.
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

TEST_CASE("the reason of a rank that aborts is reported once") {
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

TEST_CASE("if ranks are at different operations, the error says so") {
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

#if defined(TUTTI_TEST_ASAN) || defined(TUTTI_TEST_TSAN)
constexpr double slower = 10;  // waits may take this much longer with a sanitizer
#else
constexpr double slower = 1;
#endif

// Raises the flags of all ranks while they run `body`. Returns the longest time from there to the end of `body`, in
// seconds.
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

TEST_CASE("the forming of a group can be interrupted") {
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    std::string said;
    const double seconds = interrupted(
        way,
        [](GlooRank& r) {
          if (r.rank == 3) return std::this_thread::sleep_for(200ms);  // it never arrives
          GlooCommunicator c(r.options, r.store, r.flag);
          throw std::runtime_error("it was formed");
        },
        &said);
    CHECK(seconds < 2 * slower);
    CHECK(std::count(said.begin(), said.end(), 'z') == 3);
  }
}

TEST_CASE("a rank that waits for others can be interrupted") {
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
    CHECK(seconds < 2 * slower);
    CHECK(said.find("[step 12 bucket 3] expected all ranks, got the loss of worker 7 on z") != std::string::npos);
  }
}

TEST_CASE("a rank in the middle of a message can be interrupted") {
  // Every rank sends and receives endlessly.
  for (const GlooWay& way : failing_ways()) {
    CAPTURE(way.name);
    const double seconds = interrupted(way, [](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      std::vector<float> v(16 << 20, 0.F);
      for (int root = 0;; root = (root + 1) % c.size()) c.broadcast(bytes_of(v), root, "a large one").wait();
    });
    CHECK(seconds < 3 * slower);
  }
}

namespace {

// Blocks the Gloo thread of a device.
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

// Reads memory that Gloo's thread may be writing. No other method shows from outside that a message has begun.
#if defined(TUTTI_TEST_TSAN)
__attribute__((no_sanitize("thread"), noinline))
#endif
bool written(const std::byte& place) {
  return *static_cast<const volatile std::byte*>(&place) != std::byte{0};
}

}  // namespace

TEST_CASE("a half-received message can be interrupted") {
  // Rank 1 has its own Gloo thread, which a Stall blocks in the middle of the message.
  std::string said;
  double seconds = -1;
  bool begun = false, ended = false;
  std::vector<std::byte> got(std::size_t{256} << 20);
  run_gloo_ranks({"plain", {"a", "b"}, false}, [&](GlooRank& r) {
    if (r.rank == 1) {
      r.options.address = "127.0.0.2";
      GlooCommunicator c(r.options, r.store, r.flag);
      Work w = c.broadcast(got, 0, "half");
      while (!written(got.front())) std::this_thread::sleep_for(1ms);
      {
        const Stall stall(r.options.address);
        std::this_thread::sleep_for(500ms);
        begun = written(got.front());
        ended = written(got.back());
      }
      // Rank 1 does not notice by itself that rank 0 has left.
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
  CHECK(seconds < 0.15);  // does not wait for rank 1, which continues after 500 ms
}

TEST_CASE("a group interrupted while idle cannot be used any more") {
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

TEST_CASE("a step over Gloo that fails at any piece leaves the state before the step") {
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

TEST_CASE("500 groups are formed and ended without leaving resources") {
  const std::vector<GlooWay> list{{"plain", {"a", "b", "c"}, false}, {"tree", {"a", "a", "b"}}};
  std::size_t descriptors = 0, threads = 0, kib = 0;
  for (int g = 0; g < 500; ++g) {
    run_gloo_ranks(list[static_cast<std::size_t>(g % 2)], [&](GlooRank& r) {
      GlooCommunicator c(r.options, r.store, r.flag);
      std::vector<float> v(5000, 1.F);
      const auto own = c.allocate(40'000);
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
      conformance::require(v[4999] == 3.F && own.empty() == (g % 2 == 0), "the group works");
      // Half of the groups end normally, half are interrupted.
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
#ifdef TUTTI_TEST_ASAN
  kib += 1 << 20;  // the sanitizer keeps freed memory
#endif
  CHECK(resident_kib() <= kib + kib / 10 + 2048);
}
