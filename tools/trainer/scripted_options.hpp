// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/option_groups.hpp"
#include "tools/trainer/options.hpp"

// The options of TensorFlow's distributed CIFAR-10 scripts. Each process gets all addresses and its own place. A
// separate process evaluates.
namespace tutti::trainer {

// Returns whether a script started this process as one of a job with parameter servers.
[[nodiscard]] inline bool is_scripted(const RunOptions& o) {
  return !o.ps_hosts.empty() || !o.worker_hosts.empty() || !o.job_name.empty() || o.task_index;
}

// Returns whether this process evaluates the checkpoints of a run in other processes.
[[nodiscard]] inline bool evaluates_beside(const RunOptions& o) {
  return !o.eval_dir.empty() || !o.checkpoint_dir.empty() || !o.eval_data.empty() || o.eval_interval_secs || o.run_once;
}

namespace detail {

template <class V>
void describe_scripted(RunOptions& o, V& v) {
  v.group("Jobs that scripts start one process at a time (--strategy ps_async)");
  v("ps-hosts", o.ps_hosts, "HOST:PORT of each server, separated by commas");
  v("worker-hosts", o.worker_hosts, "HOST:PORT of each worker; the ports only distinguish workers");
  v("job-name", o.job_name, "ps or worker: the role of this process", Scope::rank);
  v("task-index", o.task_index, "place of this process in that list, from 0; default: 0", Scope::rank);

  v.group("Evaluation of a run in other processes");
  v("checkpoint-dir", o.checkpoint_dir, "folder of that run; default: /tmp/cifar10_train", Scope::rank);
  v("eval-dir", o.eval_dir, "folder of TensorBoard's curve; default: /tmp/cifar10_eval", Scope::rank);
  v("eval-data", o.eval_data, "test (default) or train_eval; uses --num-examples images, by default 10000",
    Scope::rank);
  v("eval-interval-secs", o.eval_interval_secs, "seconds between checks for a new checkpoint; default: 300",
    Scope::rank);
  v("run-once", o.run_once, "evaluate the newest checkpoint once, and end", Scope::rank);
}

}  // namespace detail

// Sets the defaults of TensorFlow's scripts if `said` is such a command.
void apply_scripted_defaults(RunOptions& o, const RunOptions& said);

}  // namespace tutti::trainer
