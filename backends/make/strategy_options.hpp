// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

class Backend;
struct LaunchEnvironment;
namespace ps {
class WeightStore;
struct ServerState;
}  // namespace ps

// Whether connections between hosts are encrypted.
enum class Encryption : std::uint8_t {
  automatic,  // as TUTTI_ENCRYPT says; otherwise if the build can and the strategy supports it
  on,
  off,
};

struct StrategyOptions {                                              // options of make_strategy()
  Backend* backend = nullptr;                                         // nccl sums on its GPU; must outlive the strategy
  std::chrono::milliseconds deadline = usual_deadline;                // of each operation
  bool shared_memory = true, hierarchical = true, bf16_wire = false;  // as in MpiOptions
  bool ps_plain = false;                                              // ps, ps_async: do not encrypt between hosts
  Encryption encrypt = Encryption::automatic;                         // of gloo; ps and ps_async encrypt with CURVE
  // For ps and ps_async. If above 0, gradients are sent to the servers in two bits; see ps::WorkerOptions.
  float threshold = 0;
  // Makes the weights that a server of "ps_async" owns. Called only in a server's process. server_weights() returns
  // such a function (train/server_weights.hpp).
  std::function<std::shared_ptr<ps::WeightStore>(const LaunchEnvironment&)> make_weights{};
  // weights: weights for such a server that the caller has made. ps_staleness: how many steps a worker may be ahead of
  // the slowest worker.
  ps::WeightStore* weights = nullptr;
  std::optional<std::int64_t> ps_staleness{};
  // True if this program continues from its last checkpoint when its processes are restarted, and ends with 75 after
  // FitResult::changes. Otherwise processes of mpi cannot join and leave.
  bool goes_on_from_checkpoint = false;
  // The channel to the launcher of an elastic job. If it is null, a strategy that needs a channel opens it.
  std::shared_ptr<ControlChannel> channel{};
  // As in ps::ServerOptions. ps_keep receives the state of a server, at intervals of ps_keep_every. ps_from: the state
  // from which a restarted server continues.
  std::function<void(ps::ServerState&&)> ps_keep{};
  std::chrono::milliseconds ps_keep_every = std::chrono::seconds(60);
  const ps::ServerState* ps_from = nullptr;
  // Facts that must be equal in all processes. If the processes connect over the launcher's channel, only processes
  // that differ are refused.
  JobFacts facts{};
  // The job, if scripts started its processes: how processes find each other. Null if tutti-launch started them.
  const ScriptedJob* job = nullptr;
  std::string where = "make_strategy";  // what errors name
  std::function<void(const std::string&)> warn = [](const std::string& w) {
    std::fprintf(stderr, "warning: %s\n", w.c_str());
  };
};

}  // namespace tutti
