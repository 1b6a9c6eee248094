// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/option_groups.hpp"
#include "tools/trainer/options.hpp"

// The commands of TensorFlow's distributed CIFAR-10 scripts: processes that are told all addresses and which of them
// they are, and an evaluation beside them.
namespace tutti::trainer {

// Started by a script as one process of a job with parameter servers.
[[nodiscard]] inline bool is_scripted(const RunOptions& o) {
  return !o.ps_hosts.empty() || !o.worker_hosts.empty() || !o.job_name.empty() || o.task_index;
}

// Evaluates the checkpoints of a run that goes on elsewhere.
[[nodiscard]] inline bool evaluates_beside(const RunOptions& o) {
  return !o.eval_dir.empty() || !o.checkpoint_dir.empty() || !o.eval_data.empty() || o.eval_interval_secs || o.run_once;
}

namespace detail {

template <class V>
void describe_scripted(RunOptions& o, V& v) {
  v.group("Jobs that scripts start one process at a time (--strategy ps_async)");
  v("ps-hosts", o.ps_hosts, "HOST:PORT of each server, with commas between");
  v("worker-hosts", o.worker_hosts, "HOST:PORT of each worker, whose ports only tell them apart");
  v("job-name", o.job_name, "ps or worker: what this process is", Scope::rank);
  v("task-index", o.task_index, "its place in that list, from 0; default: 0", Scope::rank);

  v.group("Evaluation beside a run that goes on elsewhere");
  v("checkpoint-dir", o.checkpoint_dir, "folder of that run; default: /tmp/cifar10_train", Scope::rank);
  v("eval-dir", o.eval_dir, "folder of TensorBoard's curve; default: /tmp/cifar10_eval", Scope::rank);
  v("eval-data", o.eval_data, "test (default) or train_eval; --num-examples of them, 10000 where it is not given",
    Scope::rank);
  v("eval-interval-secs", o.eval_interval_secs, "seconds between looks for a new checkpoint; default: 300",
    Scope::rank);
  v("run-once", o.run_once, "evaluate the newest checkpoint once, and end", Scope::rank);
}

}  // namespace detail

// The defaults of such a command, where `said` is one: those of the scripts.
void apply_scripted_defaults(RunOptions& o, const RunOptions& said);

}  // namespace tutti::trainer
