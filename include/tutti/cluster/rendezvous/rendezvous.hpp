// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include <tutti/comm/communicator.hpp>

namespace tutti {

// Copies bytes of rank 0 to all ranks, so that they can make a communicator: a TcpRendezvous, or the result of
// rendezvous_through().
using Rendezvous = std::function<void(std::span<std::byte>)>;

// Sends the bytes through an existing communicator (MPI), which must outlive the result.
template <Communicator C>
[[nodiscard]] Rendezvous rendezvous_through(C& c, const std::string& what) {
  return [&c, what](std::span<std::byte> bytes) { c.broadcast(bytes, 0, what).wait(); };
}

}  // namespace tutti
