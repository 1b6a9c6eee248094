// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launched_rendezvous.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/core/error.hpp>
#include <tutti/tensor/memory.hpp>

#include "arguments.hpp"
#include "sweep.hpp"

// Runs the sweep over NCCL. Each rank has a GPU.
namespace tutti::bench {

inline int gpus(const Args& a, const LaunchEnvironment& e) {
  if (const int there = cuda::count_devices(); e.local_size > there)
    fail<DeviceError>("--comm nccl",
                      "a GPU for each of the " + std::to_string(e.local_size) + " processes on this host",
                      std::to_string(there), "see nvidia-smi -L and CUDA_VISIBLE_DEVICES");
  cuda::DeviceMemory memory(e.local_rank);
  RendezvousOptions meeting = rendezvous_of(e);
  meeting.warn = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  TcpRendezvous meet(meeting);
  NcclCommunicator c(memory.device(), {.rank = e.rank, .size = e.size, .deadline = std::chrono::seconds(120)},
                     std::ref(meet));
  const Buffer buffer(memory, a.max);
  const std::shared_ptr<void> pinned = cuda::allocate_pinned(a.max);
  const auto on_gpu = [&](std::span<float> d) { return std::span(buffer.at(0), d.size_bytes()); };
  const auto collect = [&](const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(c.size()));
    c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), "times").wait();
    return all;
  };
  const Way way{"nccl",
                {static_cast<float*>(pinned.get()), a.max / 4},
                [&](std::span<float> d) { c.all_reduce(DType::f32, on_gpu(d), ReduceOp::sum, "all_reduce").wait(); },
                [&](std::span<float> d) {
                  memory.copy_in(buffer.data(), d.data(), d.size_bytes());
                  memory.synchronise();
                },
                [&](std::span<float> d) { memory.copy_out(d.data(), buffer.data(), d.size_bytes()); }};
  if (c.rank() == 0) std::printf("# nccl on %s\n", memory.device().name().c_str());
  sweep(a, {c.rank(), c.size(), {way}, [&] { c.barrier(std::chrono::seconds(120)); }, collect});
  return 0;
}

}  // namespace tutti::bench
