// SPDX-License-Identifier: MIT
// Tests NCCL groups that fail while they are formed, at each point and on each rank: no resources may stay allocated,
// and the next group must work.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/nccl/elastic.hpp>
#include <tutti/comm/key_store.hpp>

#include "backends/nccl_ranks.hpp"
#include "comm/conformance.hpp"

using namespace tutti;
using conformance::require;

namespace {

std::size_t entries(const char* folder) {
  const std::filesystem::directory_iterator list(folder);
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

// Returns how many of these resources the process has: communicators, streams, bytes of the device, descriptors,
// threads.
std::vector<std::size_t> held() {
  auto& device = emulator::Device::instance();
  return {static_cast<std::size_t>(emulator::nccl.living), device.sides.size(), device.memory.used(),
          entries("/proc/self/fd"), entries("/proc/self/task")};
}

// A rank fails when it reaches `point` for the count-th time.
struct Stage {
  const char* point;
  int count;
  bool first_rank_only = false;
};
constexpr Stage stages[] = {
    {"an identity", 1, true}, {"a rank that joins", 1}, {"ranks that join", 1}, {"ranks that join", 20}, {"a call", 1},
    {"an operation", 1}};

}  // namespace

TEST_CASE("if the forming of a group fails at any point, on either rank, no resources stay allocated") {
  if (testing::no_emulator()) return;
  // A counter in memory that both processes share.
  void* const shared =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto* const added = new (shared) std::atomic<int>(0);
  const auto said = testing::two_nccl_ranks([&](int rank, ElasticNccl& strategy, cuda::DeviceMemory&) {
    ChannelStore store(strategy.channel());
    std::uint64_t step = 0;
    int meetings = 0;
    // Blocks until both ranks have called it.
    const auto meet = [&] {
      ++meetings;
      for (added->fetch_add(1); added->load() < 2 * meetings;)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    // The constructor of the strategy forms the first generation. A rank that leaves it before the other rank knows
    // that it is formed would end the other rank too.
    meet();
    // Joins the next generation and adds. No rank leaves the generation before both have added.
    const auto go_on = [&] {
      require(strategy.next_generation({++step, true, false}), "the next generation");
      double sum = rank + 1;
      strategy.sum({&sum, 1});
      require(sum == 3, "a sum");
      meet();
    };
    for (int i = 0; i < 3; ++i) go_on();
    const auto before = held();
    for (int turn = 0; turn < 3; ++turn)
      for (const Stage& s : stages)
        for (int victim = 0; victim < (s.first_rank_only ? 1 : 2); ++victim) {
          const std::string at =
              std::string(s.point) + " " + std::to_string(s.count) + " of rank " + std::to_string(victim);
          const std::uint64_t generation = strategy.membership().generation;
          int come = 0;
          bool failed = false;
          emulator::nccl.at = [&](const char* point) {
            if (rank != victim || failed || std::string_view(point) != s.point || ++come < s.count) return;
            failed = true;
            fail<CommunicationError>("test", "to go on", at);
          };
          for (bool whole = false; !whole;) try {
              go_on();
              whole = true;
            } catch (const CommunicationError&) {
              // A rank fails in the first sum of a group that had been formed.
            }
          emulator::nccl.at = [](const char*) {};
          // If the other rank fails first, this rank may not reach the point.
          if (s.count == 1)
            require(rank != victim || failed || std::string_view(s.point) == "ranks that join", at + " came to it");
          const std::uint64_t now = strategy.membership().generation;
          if (failed) require(now > generation + 1, at + ": a generation that broke off");
          require(held() == before, at + " leaves something");
          require(store.find(generation_key(now, "nccl")).has_value(), at + ": the identity that holds");
          for (std::uint64_t g = 1; g + 1 < now; ++g)
            require(!store.find(generation_key(g, "nccl")), at + ": the identity of generation " + std::to_string(g));
        }
  });
  ::munmap(shared, sizeof(std::atomic<int>));
  for (const std::string& s : said) CHECK(s == "");
}

TEST_CASE(
    "if the other rank does not join, the forming of a group ends at the deadline or when the flag is raised, and no "
    "resources stay allocated") {
  if (testing::no_emulator()) return;
  const auto said = emulator::run_ranks(1, [](int) {
    cuda::DeviceMemory memory(0);
    const auto before = held();
    const auto nobody = [](std::span<std::byte>) {};
    for (const bool flagged : {false, true})
      for (const char* point : {"an identity", "a rank that joins", "ranks that join"}) {
        InterruptFlag flag;
        NcclOptions o{
            .rank = 0, .size = 2, .deadline = std::chrono::milliseconds(flagged ? 60'000 : 50), .flag = &flag};
        if (flagged)
          emulator::nccl.at = [&](const char* p) {
            if (std::string_view(p) == point) flag.raise("the loss of worker 1");
          };
        const auto began = std::chrono::steady_clock::now();
        std::string why;
        try {
          NcclCommunicator c(memory.device(), o, nobody);
        } catch (const CommunicationError& e) {
          why = e.what();
        }
        emulator::nccl.at = [](const char*) {};
        require(why.find(flagged ? "the loss of worker 1" : "no end after 50 ms") != why.npos, "why: " + why);
        require(std::chrono::steady_clock::now() - began < std::chrono::seconds(10), "in time");
        require(held() == before, std::string(point) + " leaves something");
      }
    // The flag is raised before any resource exists, and the rank must not even create an identity: NCCL ends the
    // thread of an identity only after all ranks have joined.
    InterruptFlag flag;
    flag.raise("the loss of worker 1");
    bool made = false;
    emulator::nccl.at = [&](const char*) { made = true; };
    try {
      NcclCommunicator c(memory.device(), {.rank = 0, .size = 2, .flag = &flag}, nobody);
    } catch (const CommunicationError&) {
    }
    emulator::nccl.at = [](const char*) {};
    require(!made, "a call of NCCL for a group that has ended before");
  });
  for (const std::string& s : said) CHECK(s == "");
}
