// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/nccl/elastic.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/nccl_emulator.hpp"
#include "tests/cluster/arbiter_harness.hpp"

namespace tutti::testing {

// Runs f(int rank, ElasticNccl&, cuda::DeviceMemory&) in two processes of an elastic job without training. Each process
// has an emulated GPU. Returns the errors of both processes.
template <class F>
[[nodiscard]] std::vector<std::string> two_nccl_ranks(F&& f) {
  control::ArbiterOptions o;
  o.workers = 2;
  o.elastic = true;
  ArbiterHarness harness(o);
  const std::array<io::Descriptor, 2> sockets{harness.socket(), harness.socket()};
  const auto rank_of_job = [&](int rank) {
    cuda::DeviceMemory memory(0);
    ElasticOptions how;
    how.start.rank = rank;
    how.start.host = "h";
    ElasticNccl strategy(std::make_unique<ControlChannel>(std::make_unique<control::SocketLink>(
                             io::Descriptor(::dup(sockets[static_cast<std::size_t>(rank)].get())))),
                         how, NcclGroupFactory{&memory.device(), {std::chrono::seconds(60)}});
    f(rank, strategy, memory);
  };
  return emulator::run_ranks(2, rank_of_job, [&] { return harness.fork(); });
}

}  // namespace tutti::testing
