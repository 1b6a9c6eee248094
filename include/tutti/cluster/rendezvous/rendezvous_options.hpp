// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace tutti {

// The address at which the ranks of a job meet: rank 0 listens on host:port, the other ranks connect.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  std::string job;     // its public name, which distinguishes it from other jobs; at most 64 characters
  std::string secret;  // known only to the ranks of the job; it is never sent
  int rank = 0, size = 1;
  std::chrono::milliseconds deadline = std::chrono::seconds(120);
  int ports = 1;          // rank 0 takes the first free one of this many ports, starting with `port`
  bool one_host = false;  // all ranks are on rank 0's host
  // Called once, for the first connection that is refused because its secret is wrong. The rendezvous continues.
  std::function<void(const std::string&)> warn = {};
};

}  // namespace tutti
