// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/rendezvous/rendezvous_options.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti {

// Returns the options that the launcher of this process set (TUTTI_ROOT, TUTTI_JOB, TUTTI_SECRET). Throws UsageError if
// there are several ranks and these are not set.
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
        e.root.empty() ? "no value" : "'" + printable(e.root) + "'",
        "start the job with tutti-launch, or set TUTTI_ROOT, TUTTI_JOB, TUTTI_SECRET, TUTTI_RANK and TUTTI_SIZE");
  constexpr std::size_t least = 16;
  if (e.secret.size() < least)
    fail<UsageError>("environment TUTTI_SECRET", "16 or more characters, known only to the ranks of the job",
                     e.secret.empty() ? "no value" : std::to_string(e.secret.size()),
                     "start the job with tutti-launch, or give all ranks the same output of `openssl rand -hex 32`");
  o.host = root->name;
  o.port = root->port;
  o.ports = std::min(e.root_ports, 65536 - o.port);
  return o;
}

}  // namespace tutti
