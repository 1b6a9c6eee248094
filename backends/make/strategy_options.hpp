// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tutti/comm/work.hpp>
#include <tutti/job/control_channel.hpp>
#include <tutti/job/job_facts.hpp>
#include <tutti/job/scripted_job.hpp>

namespace tutti {

class Backend;
struct LaunchEnvironment;
namespace ps {
class WeightStore;
struct ServerState;
}  // namespace ps

struct StrategyOptions {                                              // what make_strategy() can be told
  Backend* backend = nullptr;                                         // whose GPU nccl sums in; outlives the strategy
  std::chrono::milliseconds deadline = usual_deadline;                // of every operation
  bool shared_memory = true, hierarchical = true, bf16_wire = false;  // as MpiOptions has them
  bool ps_plain = false;                                              // nothing is encrypted between hosts
  // Of ps and ps_async: above 0 gradients travel to the servers in two bits, see ps::WorkerOptions.
  float threshold = 0;
  // Makes the weights that a server of "ps_async" owns; called in a server's process alone. server_weights() returns
  // such a function (train/server_weights.hpp).
  std::function<std::shared_ptr<ps::WeightStore>(const LaunchEnvironment&)> make_weights{};
  // Weights of such a server that the caller has made, and the steps that a worker may be ahead of the slowest one.
  ps::WeightStore* weights = nullptr;
  std::optional<std::int64_t> ps_staleness{};
  // Whether this program goes on from its last checkpoint where its processes are started anew, and ends with 75 after
  // FitResult::changes: without that the processes of mpi cannot come and go.
  bool goes_on_from_checkpoint = false;
  // To the launcher of processes that come and go; otherwise a strategy that needs one opens it.
  std::shared_ptr<ControlChannel> channel{};
  // As ps::ServerOptions has them: who is handed the state that it goes on from if it is started again, and this.
  std::function<void(ps::ServerState&&)> ps_keep{};
  std::chrono::milliseconds ps_keep_every = std::chrono::seconds(60);
  const ps::ServerState* ps_from = nullptr;
  // What all processes must have alike: where they meet over a channel of their launcher, who differs is refused alone.
  JobFacts facts{};
  // How the processes of a job with servers find each other that scripts started one by one; null: tutti-launch did.
  const ScriptedJob* job = nullptr;
  std::string where = "make_strategy";  // what errors name
  std::function<void(const std::string&)> warn = [](const std::string& w) {
    std::fprintf(stderr, "warning: %s\n", w.c_str());
  };
};

}  // namespace tutti
