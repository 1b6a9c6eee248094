// SPDX-License-Identifier: MIT
// takes long
// Tests training over an emulated NCCL, by processes with emulated GPUs that join, leave and die. The job must see
// every sample once an epoch, and give the weights of a job with one process.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/data/check_audit.hpp>

#include "backends/nccl_job.hpp"
#include "backends/nccl_ranks.hpp"
#include "comm/conformance.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;
using testing::NcclJob;

namespace {

void slowly() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

const std::vector<float>& weights_of_one() {
  static const std::vector<float> weights = [] {
    NcclJob job(1, [](NcclJob&, std::size_t, const FitStep&) {});
    CHECK(job.run().at(0) == "");
    return job.member(0).values();
  }();
  return weights;
}
void require_same(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE(!a.empty());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  CHECK(most < 1e-5);
}
void require_every_sample_once(const std::string& folder, std::int64_t epochs) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(folder)) files.push_back(e.path().string());
  for (std::int64_t e = 0; e < epochs; ++e) {
    CAPTURE(e);
    const AuditResult r = check_audit(files, e, NcclJob::samples);
    CHECK(r.missing == 0);
    CHECK(r.repeated == 0);
  }
}
std::size_t open_files() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

}  // namespace

TEST_CASE("a job of one process grows to four and shrinks to one; steps run op by op and are captured again") {
  if (testing::no_emulator()) return;
  const std::vector<float>& one = weights_of_one();
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    const test::TempFolder folder;
    NcclJob job(1, [](NcclJob& j, std::size_t me, const FitStep& s) {
      slowly();
      if (me == 0 && s.step == 4) j.join();
      if (me == 0 && s.step == 12) {
        j.join();
        j.join();
      }
      if (me == 1 && s.step == 26) j.ask_to_leave(0);
      if (me == 1 && s.step == 36) {
        j.ask_to_leave(2);
        j.ask_to_leave(3);
      }
    });
    job.captured = captured;
    job.audit = folder.path();
    for (const std::string& end : job.run()) CHECK(end == "");
    for (const std::size_t i : {0U, 2U, 3U}) CHECK(job.member(i).left);
    CHECK_FALSE(job.member(1).left);
    CHECK(job.member(1).steps == 4 * NcclJob::steps_an_epoch);
    CHECK((job.member(1).captured > 0) == captured);
    require_same(job.member(1).values(), one);
    require_every_sample_once(folder.path(), 4);
  }
}

TEST_CASE("a process may be killed at any point of a step and while a group forms") {
  if (testing::no_emulator()) return;
  const std::vector<float>& one = weights_of_one();
  // Numbers of points that the victim reaches after a third process was asked to join: the end of the first group, the
  // forming of the next group with the transfer of the state, and points of steps, which are started, captured and
  // replayed. Consecutive points with the same name count as one.
  for (std::size_t victim = 0; victim < 3; ++victim)
    for (const int point : {0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28, 37, 50, 70}) {
      CAPTURE(victim);
      CAPTURE(point);
      const test::TempFolder folder;
      bool counts = victim == 2, asked = false;  // the third process counts from its start
      NcclJob job(2, [&](NcclJob& j, std::size_t me, const FitStep& s) {
        slowly();
        if (s.step == 5) counts = true;
        if (me == 0 && s.step == 5 && !std::exchange(asked, true)) j.join();
      });
      int come = 0;
      std::string_view last;
      job.at = [&](std::size_t me, const char* at) {
        if (me != victim || !counts || std::exchange(last, at) == at) return;
        if (come++ == point) ::raise(SIGKILL);
      };
      job.audit = folder.path();
      const auto ends = job.run();
      for (std::size_t i = 0; i < ends.size(); ++i) {
        CAPTURE(i);
        CHECK(ends[i] == (i == victim ? "killed" : ""));
        if (i == victim) continue;
        CHECK(job.member(i).steps == 4 * NcclJob::steps_an_epoch);
        require_same(job.member(i).values(), one);
      }
      require_every_sample_once(folder.path(), 4);
    }
}

TEST_CASE("gradients of an elastic job lie in memory that each generation's communicator registers") {
  if (testing::no_emulator()) return;
  const auto said = testing::two_nccl_ranks([&](int rank, ElasticNccl& strategy, cuda::DeviceMemory& memory) {
    const std::span<std::byte> bytes = strategy.allocate(4000);
    conformance::require(bytes.size() == 4000 && emulator::nccl.registered == 1, "registered memory");
    conformance::require(strategy.allocate(10).empty(), "there is one piece");
    for (std::uint64_t i = 0; i < 4; ++i) {
      std::vector<float> v(1000, static_cast<float>(rank + 1));
      memory.copy_in(bytes.data(), v.data(), 4000);
      try {
        strategy.reduce({Piece::Kind::gradients, 1, DType::f32, bytes}).wait();
        memory.copy_out(v.data(), bytes.data(), 4000);
        conformance::require(v == std::vector<float>(1000, 3.F), "their sum");
      } catch (const CommunicationError&) {
        // The other rank has its sum and has left this generation already.
      }
      conformance::require(strategy.next_generation({i, true, false}), "the next generation");
      conformance::require(emulator::nccl.registered == 1, "the next communicator registers it");
    }
  });
  for (const std::string& s : said) CHECK(s == "");
}

TEST_CASE("two hundred generations leave no communicator, stream, memory or descriptor allocated") {
  if (testing::no_emulator()) return;
  const auto said = testing::two_nccl_ranks([&](int rank, ElasticNccl& strategy, cuda::DeviceMemory&) {
    auto& device = emulator::Device::instance();
    std::vector<std::size_t> held;
    int sums = 0;
    for (std::uint64_t i = 0; i < 200; ++i) {
      // The ranks break steps alternately. On the other rank, the sum of such a step either completes or fails.
      bool broken = static_cast<int>(i % 2) == rank;
      try {
        double sum = rank + 1;
        strategy.sum({&sum, 1});
        conformance::require(sum == 3, "a sum");
        ++sums;
      } catch (const CommunicationError&) {
        broken = true;
      }
      conformance::require(strategy.next_generation({i, broken, false}), "the next one");
      const std::vector<std::size_t> now{static_cast<std::size_t>(emulator::nccl.living), device.sides.size(),
                                         device.memory.used(), open_files()};
      if (i == 9) held = now;
      if (i >= 9) conformance::require(now == held, "generation " + std::to_string(i) + " holds more");
    }
    conformance::require(strategy.membership().generation > 200, "generations");
    conformance::require(sums > 100, std::to_string(sums) + " sums");
  });
  for (const std::string& s : said) CHECK(s == "");
}
