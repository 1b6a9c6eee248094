// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/comm/net/refusal_counts.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

struct GlooOptions {  // options of GlooCommunicator
  int rank = 0, size = 1;
  // The host of each rank. Ranks with the same host share memory. If empty, all ranks are on one host.
  std::vector<std::string> hosts{};
  // An address or name of this host, on which its ranks listen for ranks of other hosts. Without `streams`, any process
  // that can connect to it can disturb the group.
  std::string address = "127.0.0.1";
  // Prefix of the group's keys in the store. Each group of the job needs a different prefix, which may contain the
  // number of the generation.
  std::string prefix = "gloo";
  bool shared_memory = true;  // ranks of one host exchange data through shared memory
  bool hierarchical = true;   // ranks of a host sum first, and one of them communicates with other hosts
  WireType wire = WireType::same;
  std::chrono::milliseconds deadline = usual_deadline;                       // of each operation
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(120);  // within which the group must be formed
  ReachabilityMonitor* reach =
      nullptr;  // notified when this rank waits for other ranks; must outlive the group; may be null
  // If set, connections between hosts are encrypted, with a key that a rank of the group makes and publishes in the
  // store. All ranks must make the same choice. Must outlive the group.
  const SecureStreams* streams = nullptr;
  std::shared_ptr<RefusalCounts> refusals = std::make_shared<RefusalCounts>();  // counts strangers at those connections
};

}  // namespace tutti
