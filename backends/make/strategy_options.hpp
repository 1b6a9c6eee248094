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

struct StrategyOptions {                                              // options of make_strategy()
  Backend* backend = nullptr;                                         // nccl sums in its GPU; outlives the strategy
  std::chrono::milliseconds deadline = usual_deadline;                // for every operation
  bool shared_memory = true, hierarchical = true, bf16_wire = false;  // as in MpiOptions
  bool ps_plain = false;                                              // no encryption between hosts
  // For ps and ps_async: above 0, gradients are sent to the servers in two bits, see ps::WorkerOptions.
  float threshold = 0;
  // Makes the weights that a server of "ps_async" owns; called only in a server's process. server_weights() returns
  // such a function (train/server_weights.hpp).
  std::function<std::shared_ptr<ps::WeightStore>(const LaunchEnvironment&)> make_weights{};
  // Weights for such a server that the caller has made, and the number of steps that a worker may be ahead of the
  // slowest one.
  ps::WeightStore* weights = nullptr;
  std::optional<std::int64_t> ps_staleness{};
  // True if this program continues from its last checkpoint when its processes are restarted, and ends with 75 after
  // FitResult::changes. Without it the processes of mpi cannot come and go.
  bool goes_on_from_checkpoint = false;
  // The channel to the launcher of an elastic job. If null, a strategy that needs one opens it.
  std::shared_ptr<ControlChannel> channel{};
  // As in ps::ServerOptions: the receiver of a server's state, its interval, and the state from which a restarted
  // server continues.
  std::function<void(ps::ServerState&&)> ps_keep{};
  std::chrono::milliseconds ps_keep_every = std::chrono::seconds(60);
  const ps::ServerState* ps_from = nullptr;
  // Facts that must be equal in all processes. If the processes connect over their launcher's channel, only a process
  // that differs is refused.
  JobFacts facts{};
  // How the processes of a job with servers find each other if scripts started them one by one; null: tutti-launch
  // started them.
  const ScriptedJob* job = nullptr;
  std::string where = "make_strategy";  // what errors name
  std::function<void(const std::string&)> warn = [](const std::string& w) {
    std::fprintf(stderr, "warning: %s\n", w.c_str());
  };
};

}  // namespace tutti
