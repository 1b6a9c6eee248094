// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace tutti {

// Where the ranks of a job meet: rank 0 listens at host:port, the others connect.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  std::string job;     // its public name, so that ranks of another job are told apart; at most 64 characters
  std::string secret;  // what only the ranks of the job know; it is never sent
  int rank = 0, size = 1;
  std::chrono::milliseconds deadline = std::chrono::seconds(120);
  int ports = 1;          // rank 0 takes the first that is free of so many, from `port` on
  bool one_host = false;  // all ranks are on rank 0's host
  // Told at once, and once, what does not end the call: somebody was refused because he does not know the secret.
  std::function<void(const std::string&)> warn = {};
};

}  // namespace tutti
