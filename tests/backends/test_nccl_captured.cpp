// SPDX-License-Identifier: MIT
// takes long
// Tests captured steps with operations of NCCL, on an emulated GPU and an emulated NCCL (nccl_emulator.hpp).
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/cuda/step_graph.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/strategy/all_reduce.hpp>

#include "backends/cuda_emulator.hpp"
#include "nccl_tcp_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::OnDevice;
using conformance::require;
using cuda::DeviceMemory;
using emulator::nccl;
using testing::on_ranks;
using testing::on_two_ranks;

namespace {

// A captured step.
class Captured {
 public:
  template <class F>
  Captured(DeviceMemory& m, F&& step) : stream_(m.device().stream()) {
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a capture");
    step();
    cuda::check(cudaStreamEndCapture(stream_, &graph_), "its end");
    cuda::check(cudaGraphInstantiate(&executable_, graph_, 0), "a graph that runs");
  }
  ~Captured() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void start() { cuda::check(cudaGraphLaunch(executable_, stream_), "it to start"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

TEST_CASE("operations are captured and replayed together with the work before and after them") {
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  AllReduce<NcclCommunicator> strategy(c);
  const OnDevice<float> v(m, std::vector<float>(1000, 2.F)), to(m, std::vector<float>(1000));
  const auto step = [&] {
    Work w = strategy.reduce({Piece::Kind::gradients, 1, DType::f32, v.bytes()});
    w.wait_device();
    m.copy(to.buffer.data(), v.buffer.data(), 4000);
  };
  step();
  m.synchronise();
  const int before = nccl.started;
  Captured captured(m, [&] {
    step();
    // A maximum of floating-point values needs the host, so a capture cannot contain it.
    CHECK_THROWS_AS((void)c.all_reduce(DType::f32, v.bytes(), ReduceOp::max, "max"), UsageError);
  });
  CHECK(nccl.started == before + 1);
  for (int i = 0; i < 3; ++i) {
    m.zero(to.buffer.data(), 4000);
    captured.start();
    cuda::Event done(m.device());
    done.record(m.device().stream());
    strategy.wait_until([&] { return done.happened(); }, "a captured step");
    CHECK(to.values() == std::vector<float>(1000, 2.F));
  }
  CHECK(nccl.started == before + 1);
}

TEST_CASE("a captured step that hangs ends at the deadline when its communicator ends") {
  // The other rank is lost after it has captured the step. The destruction of the graph would wait for it for ever.
  CHECK(on_two_ranks(300ms, [](DeviceMemory& m, NcclCommunicator& c) {
          emulator::Device::instance().patience = 15;
          // As in a backend, the graphs and the data outlive the communicator.
          static std::unique_ptr<cuda::StepGraphs> graphs;
          static std::unique_ptr<OnDevice<float>> v;
          graphs = std::make_unique<cuda::StepGraphs>(m.device());
          v = std::make_unique<OnDevice<float>>(m, std::vector<float>(10, 1.F));
          const std::array<std::uint64_t, 1> key{1};
          const auto step = [&] {
            graphs->run(key, {}, [&] { c.all_reduce(DType::f32, v->bytes(), ReduceOp::sum, "bucket").wait_device(); });
          };
          step();
          m.synchronise();
          if (c.rank() == 1) ::_exit(0);
          step();
          require(graphs->captured() == 1, "a captured step");
        }) == "");
}

TEST_CASE("an operation outside a graph starts after captured ones have ended") {
  struct Newer {
    int blocking = 1, graphUsageMode = 2;  // NOLINT(readability-identifier-naming): NCCL's name
  } newer;
  set_graph_usage(newer);
  CHECK(newer.graphUsageMode == 1);
  struct Older {
    int blocking = 1;
  } older;
  set_graph_usage(older);
  on_ranks(2, [](DeviceMemory& m, NcclCommunicator& c) {
    nccl.captures_alone = true;
    const OnDevice<float> v(m, std::vector<float>(1000, 1.F));
    const auto step = [&] { c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "bucket").wait_device(); };
    step();
    m.synchronise();
    // Several graphs on one stream.
    Captured one(m, step), two(m, step);
    for (int i = 0; i < 3; ++i) {
      one.start();
      two.start();
      std::array<float, 4> host{1, 2, 3, 4};
      (void)c.all_reduce(DType::f32, std::as_writable_bytes(std::span(host)), ReduceOp::sum, "metrics");
      require(host[3] == 8.F, "a sum of host memory");
      two.start();
      step();
    }
    m.synchronise();
  });
}
