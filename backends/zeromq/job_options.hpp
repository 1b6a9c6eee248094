// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/server/server_options.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/worker/worker_options.hpp>

namespace tutti::zeromq {

struct JobOptions {
  std::chrono::milliseconds deadline = usual_deadline;                       // of each operation
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(120);  // within which all processes must arrive
  bool bf16_wire = false;                                                    // send gradients as bf16
  float threshold = 0;               // if above 0: send gradients to the servers in two bits, see ps::WorkerOptions
  bool shared_memory = true;         // share data within a host through windows
  bool plain = false;                // do not encrypt data between hosts; within a host data is never encrypted
  std::string strategy = "ps";       // name of the strategy for messages
  JobFacts facts{};                  // must be equal in all processes, like the version of tutti
  const ScriptedJob* job = nullptr;  // the job, if scripts started it; null if tutti-launch did
  // For a server that owns weights; see ps::ServerOptions.
  ps::WeightStore* weights = nullptr;
  std::optional<std::int64_t> staleness{};
  std::function<void(ps::ServerState&&)> keep{};
  std::chrono::milliseconds keep_every = std::chrono::seconds(60);
  const ps::ServerState* from = nullptr;
  std::function<void(const std::string&)> log{};
};

namespace detail {

// Returns the windows of this process, or null if it shares no memory within a host.
[[nodiscard]] inline ProcessWindows* windows_of(const JobOptions& o) {
  return o.shared_memory ? &ProcessWindows::of_process() : nullptr;
}

// Returns the options of a worker's connections, except those that depend on other processes.
[[nodiscard]] inline ps::WorkerOptions worker_options(const JobOptions& o) {
  ps::WorkerOptions w;
  w.deadline = o.deadline;
  w.big_array = ps::big_array_bound([](const char* name) { return std::getenv(name); });
  w.bf16_wire = o.bf16_wire;
  w.threshold = o.threshold;
  w.windows = windows_of(o);
  return w;
}
// The same for a server.
[[nodiscard]] inline ps::ServerOptions server_options(const JobOptions& o) {
  ps::ServerOptions s;
  s.patience = o.rendezvous_timeout;
  s.store = o.weights;
  s.staleness = o.staleness;
  s.log = o.log;
  s.windows = windows_of(o);
  return s;
}

}  // namespace detail
}  // namespace tutti::zeromq
