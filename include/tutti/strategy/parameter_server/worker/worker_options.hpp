// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/server/round_table.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>

namespace tutti::ps {

struct WorkerOptions {  // what a worker of servers can be told
  // workers: 0 where they come and go; `rank` is then a number that no other worker ever has.
  int rank = 0, workers = 1, servers = 1;
  std::uint64_t generation = 1;
  std::chrono::milliseconds deadline = usual_deadline;             // of every operation
  std::chrono::milliseconds patience = std::chrono::seconds(125);  // until all servers have said welcome
  std::uint64_t big_array = usual_big_array;                       // see placement.hpp
  std::size_t in_flight = usual_in_flight;                         // not more than the servers'
  bool bf16_wire = false;                                          // sums of f32 travel as bf16, added up in f32
  // Above 0: gradients of f32 travel to the servers in two bits, see two_bit.hpp; not beside bf16_wire.
  float threshold = 0;
  std::string host{};  // for messages
  // Of this process, for servers of this host, to which data then need not travel; outlives the communicator. Null:
  // none. neighbours: of each server, whether it is on this host.
  ProcessWindows* windows = nullptr;
  std::vector<bool> neighbours{};
  bool one_host = true;      // nobody of the job is elsewhere
  std::string no_windows{};  // why there are none, where that is to be said
  // A server that is lost is started again: until `deadline` it is waited for. Servers that own weights alone.
  bool servers_return = false;
  bool late = false;  // others have begun before it
  // Ends it, while it is made too; outlives it. Null: nothing does.
  InterruptFlag* flag = nullptr;
  ReachabilityMonitor* reach = nullptr;  // told when this worker waits for servers; outlives it; may be null
};

}  // namespace tutti::ps
