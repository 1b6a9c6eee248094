// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <tutti/comm/reach_watch.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

struct GlooOptions {  // what GlooCommunicator can be told
  int rank = 0, size = 1;
  // Of each rank; those with one name share memory. Empty: all ranks are on one host.
  std::vector<std::string> hosts{};
  // An address or name of this host, where its ranks listen for others: whoever can connect there can disturb the
  // group.
  std::string address = "127.0.0.1";
  // Before the keys of the group in the store: what no other group of the job has, such as one with the generation.
  std::string prefix = "gloo";
  bool shared_memory = true;  // ranks of one host work through memory that they share
  bool hierarchical = true;   // ranks of one host combine first, and one of them speaks with the other hosts
  WireType wire = WireType::same;
  std::chrono::milliseconds deadline = usual_deadline;            // of every operation
  std::chrono::milliseconds meeting = std::chrono::seconds(120);  // until the group stands
  ReachWatch* reach = nullptr;  // told when this rank waits for others; outlives the group; may be null
};

}  // namespace tutti
