// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>

#include "nccl_cases.hpp"
#include "nccl_emulator.hpp"

// Ranks with an emulated GPU each that form a group over TCP, as ranks of the launcher do.
namespace tutti::testing {

using namespace std::chrono_literals;
using conformance::require;
using cuda::DeviceMemory;

inline int free_port() {
  const TcpRendezvous free({"127.0.0.1", 0, "job", "a secret of the tests", 0, 2, 1s});
  return free.port();
}

// Runs f(memory, communicator) on two ranks that rendezvous over TCP. Returns the error of rank 0: rank 1 may be lost.
inline std::string on_two_ranks(std::chrono::milliseconds deadline,
                                const std::function<void(DeviceMemory&, NcclCommunicator&)>& f) {
  const int port = free_port();
  return emulator::run_ranks(2, [&](int rank) {
    DeviceMemory m(0);
    TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, 2, 20s});
    NcclCommunicator c(m.device(), {.rank = rank, .size = 2, .deadline = deadline}, std::ref(meet));
    f(m, c);
  })[0];
}

// Runs f(memory, communicator) on ranks that rendezvous over TCP, as ranks of the launcher do.
inline void on_ranks(int size, const std::function<void(DeviceMemory&, NcclCommunicator&)>& f) {
  const int port = free_port();
  const auto said = emulator::run_ranks(size, [&](int rank) {
    DeviceMemory m(0);
    TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, size, 20s});
    {
      NcclCommunicator c(m.device(), {.rank = rank, .size = size, .deadline = 60s}, std::ref(meet));
      require(m.device().ranks() == size, "a captured step holds operations of all ranks");
      f(m, c);
    }
    require(m.device().ranks() == 1, "no other rank shares steps after the end");
  });
  for (const std::string& s : said) CHECK(s == "");
}

}  // namespace tutti::testing
