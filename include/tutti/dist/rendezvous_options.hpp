// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/dist/hosts_file.hpp>
#include <tutti/dist/launch_environment.hpp>

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

// As whoever started this process says (TUTTI_ROOT, TUTTI_JOB, TUTTI_SECRET). UsageError where they say nothing of it.
[[nodiscard]] inline RendezvousOptions rendezvous_of(const LaunchEnvironment& e) {
  RendezvousOptions o;
  o.job = e.job;
  o.secret = e.secret;
  o.rank = e.rank;
  o.size = e.size;
  o.one_host = e.local_size == e.size;
  if (e.size == 1) return o;
  const auto root = detail::parse_host_name(e.root);
  if (!root || root->port == 0)
    fail<UsageError>(
        "environment TUTTI_ROOT", "host:port where rank 0 may listen",
        e.root.empty() ? "nothing" : "'" + printable(e.root) + "'",
        "start the job with tutti-launch, or set TUTTI_ROOT, TUTTI_JOB, TUTTI_SECRET, TUTTI_RANK and TUTTI_SIZE");
  constexpr std::size_t least = 16;
  if (e.secret.size() < least)
    fail<UsageError>("environment TUTTI_SECRET", "16 characters or more that only the ranks of the job know",
                     e.secret.empty() ? "none" : std::to_string(e.secret.size()),
                     "start the job with tutti-launch, or give all ranks what `openssl rand -hex 32` prints once");
  o.host = root->name;
  o.port = root->port;
  o.ports = std::min(e.root_ports, 65536 - o.port);
  return o;
}

}  // namespace tutti
