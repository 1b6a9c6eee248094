// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

struct GlooOptions {  // options of GlooCommunicator
  int rank = 0, size = 1;
  // The host of each rank. Ranks with the same name share memory. Empty: all ranks are on one host.
  std::vector<std::string> hosts{};
  // An address or name of this host, on which its ranks listen for others. Any process that can connect there can
  // disturb the group.
  std::string address = "127.0.0.1";
  // Prefix of the group's keys in the store. Other groups of the job must have a different one, for example with the
  // number of the generation.
  std::string prefix = "gloo";
  bool shared_memory = true;  // ranks of one host exchange data through shared memory
  bool hierarchical = true;   // ranks of one host combine first, and one of them communicates with the other hosts
  WireType wire = WireType::same;
  std::chrono::milliseconds deadline = usual_deadline;                       // for every operation
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(120);  // until the group is formed
  ReachabilityMonitor* reach =
      nullptr;  // notified when this rank waits for others; must outlive the group; may be null
};

}  // namespace tutti
