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

struct WorkerOptions {  // options of a worker of servers
  // workers: 0 if they join and leave; `rank` is then a number that no other worker ever gets.
  int rank = 0, workers = 1, servers = 1;
  std::uint64_t generation = 1;
  std::chrono::milliseconds deadline = usual_deadline;             // for every operation
  std::chrono::milliseconds patience = std::chrono::seconds(125);  // time until all servers have sent their welcome
  std::uint64_t big_array = usual_big_array;                       // see placement.hpp
  std::size_t in_flight = usual_in_flight;  // bytes pushed without an answer; not more than the servers allow
  bool bf16_wire = false;                   // f32 is sent as bf16 and summed in f32
  // Above 0: gradients of f32 are sent to the servers in two bits, see two_bit.hpp. Not allowed with bf16_wire.
  float threshold = 0;
  std::string host{};  // for messages
  // windows: windows of this process, through which servers of this host get data without a message; must outlive the
  // communicator. Null: no windows. neighbours: for each server, whether it is on this host.
  ProcessWindows* windows = nullptr;
  std::vector<bool> neighbours{};
  bool one_host = true;      // all processes of the job are on this host
  std::string no_windows{};  // why there are no windows; empty: not to be reported
  // Lost servers are restarted: the worker waits for them for up to `deadline`. Only for servers that own weights.
  bool servers_return = false;
  bool late = false;  // other workers began before this one
  // Ends the communicator, also during its construction; must outlive it. Null: no flag.
  InterruptFlag* flag = nullptr;
  ReachabilityMonitor* reach = nullptr;  // notified when this worker waits for servers; must outlive it; may be null
};

}  // namespace tutti::ps
