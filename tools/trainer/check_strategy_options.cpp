// SPDX-License-Identifier: MIT
#include "tools/trainer/check_strategy_options.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer {

namespace detail {

std::vector<StrategyOption> strategy_options(const RunOptions& o) {
  const RunOptions usual;
  const auto number = [](double v) { return std::to_string(static_cast<std::int64_t>(v)); };
  return {{"--comm-wire", o.comm_wire != usual.comm_wire, o.comm_wire,
           "leave it out: NCCL does not convert gradients; --strategy mpi supports both"},
          {"--no-hierarchical", !o.hierarchical, "given",
           "leave it out: NCCL chooses its algorithm; the variable NCCL_ALGO=Ring or Tree overrides it"},
          {"--no-shared-memory", !o.shared_memory, "given",
           "leave it out; the variable NCCL_SHM_DISABLE=1 disables NCCL's shared memory"},
          {"--bucket-mib", o.bucket_mib != usual.bucket_mib, std::to_string(o.bucket_mib), nullptr},
          {"--comm-deadline", o.comm_deadline != usual.comm_deadline, number(o.comm_deadline), nullptr}};
}

}  // namespace detail

namespace {

// Refuses options that asynchronous servers cannot support, because they see the gradients of one worker, piece by
// piece, or because the options need all workers at the same step.
void check_asynchronous(const RunOptions& o) {
  const auto refuse = [](const char* option, const std::string& value, const char* why, const char* hint) {
    fail<UsageError>(option, std::string("a synchronous strategy with it, ") + why, value + " with strategy ps_async",
                     hint);
  };
  const char* const pieces = "because a server sees only pieces of one worker's gradients";
  if (o.optimizer == "lars" || o.optimizer == "larc" || o.optimizer == "lamb" || o.optimizer == "muon")
    refuse("--optimizer", o.optimizer, pieces, "use sgd, nag, adam or adamw, or --strategy ps");
  if (o.clip_norm > 0) refuse("--clip-norm", std::to_string(o.clip_norm), pieces, "leave it out, or use --strategy ps");
  if (o.sam > 0) refuse("--sam", std::to_string(o.sam), "because its workers take different steps", "leave it out");
  if (o.loss_scale == "dynamic") refuse("--loss-scale", o.loss_scale, pieces, "give it a number");
  if (o.elastic_batch == "worker")
    refuse("--elastic-batch", "worker", "because the batch of a push is one worker's", "leave it out");
  if (o.local_ckpt) refuse("--local-ckpt", "given", "because only rank 0 saves the weights of servers", "leave it out");
  if (o.eval_only)
    refuse("--eval-only", "given", "because an evaluation does not train",
           "evaluate with one process and without servers");
}

}  // namespace

namespace detail {

void check_strategy_options(RunOptions& o, const std::string& said, bool lone) {
  const bool servers = o.strategy == "ps" || o.strategy == "ps_async";
  if (o.gc_type == "none" && o.gc_threshold != RunOptions().gc_threshold)
    fail<UsageError>("--gc-threshold", "--gc-type 2bit with it", "--gc-type none", "leave it out");
  if (o.gc_type != "none" && !servers)
    fail<UsageError>("--gc-type",
                     "a parameter-server strategy with it, because gradients are compressed towards servers",
                     o.gc_type + " with strategy " + o.strategy, "use --strategy ps with tutti-launch -s M");
  if (o.gc_type != "none" && o.elastic_batch == "worker")
    fail<UsageError>("--gc-type", "none with --elastic-batch worker, because the threshold is for one batch", o.gc_type,
                     "leave out one of the two");
  if (o.gc_type != "none" && o.comm_wire != "same")
    fail<UsageError>("--gc-type", "none with --comm-wire " + o.comm_wire, o.gc_type, "leave out one of the two");
  std::string idle;
  for (const StrategyOption& option : strategy_options(o)) {
    if (!option.given) continue;
    const std::string_view name = option.name;
    const bool acts = name == "--no-shared-memory" || (o.strategy == "ps" && name == "--comm-wire");
    if (servers && option.hint != nullptr && !acts)
      fail<UsageError>(option.name, "strategy mpi with it, because it has no effect with servers", option.value,
                       "leave it out");
    if (o.strategy == "nccl" && option.hint != nullptr)
      fail<UsageError>(option.name, "strategy mpi with it, because it has no effect with nccl", option.value,
                       option.hint);
    if (o.strategy == "solo" && said == "solo")
      fail<UsageError>(option.name, "a strategy of several processes with it", "--strategy solo",
                       "leave out one of the two; mpirun -np N and tutti-launch -n N start N processes");
    if (o.strategy == "solo") idle += (idle.empty() ? "" : ", ") + std::string(option.name);
  }
  if (o.ps_plain && !servers)
    fail<UsageError>("--ps-plain", "strategy ps with it", "--strategy " + o.strategy,
                     "leave it out, or start servers with tutti-launch -s M");
  if (o.ps_staleness && o.strategy != "ps_async")
    fail<UsageError>("--ps-staleness", "strategy ps_async with it", "--strategy " + o.strategy,
                     "with other strategies all ranks do the same step");
  if (o.ps_snapshot_seconds != RunOptions().ps_snapshot_seconds && o.strategy != "ps_async")
    fail<UsageError>("--ps-snapshot-seconds", "strategy ps_async with it", "--strategy " + o.strategy,
                     "with other strategies servers have no state to save");
  number("--ps-snapshot-seconds", o.ps_snapshot_seconds, 0, 1e6);
  if (o.ps_staleness) number("--ps-staleness", *o.ps_staleness, 0, 1'000'000'000);
  if (o.strategy == "ps_async") check_asynchronous(o);
  if (!idle.empty()) o.notes.push_back("one process trains alone, so these have no effect: " + idle);
  if (lone && o.strategy == "ps")
    for (const auto& [option, given] :
         {std::pair{"--gc-type 2bit", o.gc_type == "2bit"}, {"--comm-wire bf16", o.comm_wire == "bf16"}})
      if (given)
        o.notes.push_back("no effect: " + std::string(option) +
                          ": the only worker of strategy ps sends no gradients to its servers");
}

float gradient_threshold(const RunOptions& o) {
  if (o.gc_type == "none") return 0;
  if (o.loss_scale == "dynamic")
    fail<UsageError>("--gc-type",
                     "none with a dynamic loss scale, because gradients that are not sent yet have the old scale",
                     o.gc_type, "give --loss-scale a number");
  const double scale = schedule::parse_numbers("--loss-scale", o.loss_scale)[0];
  return static_cast<float>(o.gc_threshold * scale / static_cast<double>(o.global_batch_size));
}

}  // namespace detail

namespace {

// Returns the whole number of a variable of Horovod's.
std::int64_t horovod_number(const std::string& name, const std::string& value, std::int64_t most) {
  if (!value.empty() && value.size() < 16 && value.find_first_not_of("0123456789") == value.npos)
    if (const std::int64_t n = std::stoll(value); n <= most) return n;
  fail<UsageError>("environment " + name, "a number from 0 to " + std::to_string(most), "'" + printable(value) + "'",
                   "unset " + name);
}

}  // namespace

void apply_horovod_variables(RunOptions& o, const std::vector<std::pair<std::string, std::string>>& variables,
                             int processes) {
  std::string idle;
  for (const auto& [rest, value] : variables) {
    const std::string name = "HOROVOD_" + rest;
    if (rest == "SIZE" && processes == 1 && horovod_number(name, value, 1 << 24) > 1)
      fail<UsageError>("environment HOROVOD_SIZE",
                       "no horovodrun, because its " + value + " processes would each train alone", value,
                       "start them with tutti-launch -n " + value + ", or with mpirun -np " + value);
    if (rest == "FUSION_THRESHOLD" && o.strategy != "solo") {
      const std::int64_t bytes = horovod_number(name, value, std::int64_t{1} << 40);
      if (o.bucket_mib == RunOptions().bucket_mib)
        o.bucket_mib = std::clamp<std::int64_t>((bytes + (1 << 19)) >> 20, 1, 1024);
      o.notes.push_back(name + "=" + value + ": --bucket-mib " + std::to_string(o.bucket_mib));
    } else if (rest == "HIERARCHICAL_ALLREDUCE" && (o.strategy == "mpi" || o.strategy == "gloo")) {
      if (horovod_number(name, value, 1) == 0) o.hierarchical = false;
      o.notes.push_back(name + "=" + value + ": " + (o.hierarchical ? "--hierarchical" : "--no-hierarchical"));
    } else {
      idle += (idle.empty() ? "" : ", ") + name;
    }
  }
  if (!idle.empty()) o.notes.push_back("no effect: " + idle + " (strategy " + o.strategy + ")");
}

void note_ps_variables(RunOptions& o, const std::vector<std::string>& set) {
  static constexpr const char* idle[] = {"DMLC_INTERFACE",        "DMLC_LOCAL",    "DMLC_PS_VAN_TYPE",
                                         "PS_DROP_MSG",           "PS_RESEND",     "PS_RESEND_TIMEOUT",
                                         "PS_HEARTBEAT_INTERVAL", "PS_VERBOSE",    "PS_HEARTBEAT_TIMEOUT",
                                         "DMLC_USE_KUBERNETES",   "PS_WATER_MARK", "MXNET_KVSTORE_SIZE_LOWER_BOUND"};
  std::string found, hint;
  for (const std::string& name : set) {
    if (std::find(std::begin(idle), std::end(idle), name) == std::end(idle)) continue;
    found += (found.empty() ? "" : ", ") + name;
    if (name == "DMLC_INTERFACE") hint += "; set a host's address in DMLC_NODE_HOST or the hosts file";
    if (name == "PS_HEARTBEAT_TIMEOUT") hint += "; the limit is --rank-timeout of this program or of tutti-launch";
  }
  if (!found.empty()) o.notes.push_back("no effect: " + found + hint);
}

}  // namespace tutti::trainer
