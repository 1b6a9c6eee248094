// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/cluster/launch/slurm.hpp>
#include <tutti/core/error.hpp>

// A job inside an allocation of Slurm: the nodes are its hosts, and srun starts processes on them.
namespace tutti::launch {

// Returns the number of the Slurm job in which this process runs, or an empty text outside of one. Throws UsageError if
// it is not a number.
template <class Get>
[[nodiscard]] std::string slurm_job(const Get& get) {
  const std::string job = tutti::detail::slurm_text(get, "SLURM_JOB_ID");
  if (!job.empty() && (job.size() > 10 || job.find_first_not_of("0123456789") != std::string::npos))
    tutti::detail::fail_slurm("SLURM_JOB_ID", "the number of a job", job);
  return job;
}

// Returns the nodes of that job, each with as many slots as Slurm has tasks for it, or no nodes outside of a job.
template <class Get>
[[nodiscard]] std::vector<Host> slurm_hosts(const Get& get) {
  const std::string list = tutti::detail::slurm_text(get, "SLURM_JOB_NODELIST");
  if (list.empty() || slurm_job(get).empty()) return {};
  const auto nodes = expand_slurm_nodes(list, "SLURM_JOB_NODELIST");
  const std::string said = tutti::detail::slurm_text(get, "SLURM_TASKS_PER_NODE");
  std::vector<int> tasks(nodes.size(), 1);
  if (!said.empty()) tasks = expand_slurm_tasks(said, "SLURM_TASKS_PER_NODE");
  // Within a step, such as an interactive shell, the variable lists the tasks of that step.
  if (tasks.size() != nodes.size() && !tutti::detail::slurm_text(get, "SLURM_STEP_NUM_TASKS").empty())
    tasks.assign(nodes.size(), 1);
  if (tasks.size() != nodes.size())
    tutti::detail::fail_slurm("SLURM_TASKS_PER_NODE", "the tasks of " + std::to_string(nodes.size()) + " nodes", said);
  std::vector<Host> hosts;
  for (std::size_t i = 0; i < nodes.size(); ++i) hosts.push_back({nodes[i], 0, tasks[i], 0});
  return hosts;
}

// Throws UsageError if srun started several launchers: each launcher would start its own job. One launcher is enough.
template <class Get>
void require_one_launcher(const Get& get) {
  const auto step = read_slurm_step(get);
  if (step && step->size > 1)
    fail<UsageError>(
        "environment SLURM_STEP_NUM_TASKS", "one tutti-launch for the job",
        std::to_string(step->size) + " of them, started by srun",
        "call tutti-launch without srun: in the batch script, and under salloc, it starts the processes on "
        "every node");
}

// Completes the launcher's options (options.hpp) with the allocation and the job of Slurm. Throws UsageError for
// options that Slurm cannot satisfy.
template <class Options>
void look_for_slurm(Options& o) {
  const auto get = [](const char* name) { return std::getenv(name); };
  require_one_launcher(get);
  if (o.hosts_file.empty() && o.launcher != "local") o.allocation = slurm_hosts(get);
  if (!o.allocation.empty() && o.launcher != "ssh") o.slurm_job = slurm_job(get);
  if (o.launcher == "srun" && o.slurm_job.empty())
    fail<UsageError>("--launcher srun", "a Slurm job, and no hosts file",
                     o.hosts_file.empty() ? "no job" : o.hosts_file, "start a job with sbatch or salloc");
  if (!o.slurm_job.empty() && !o.sync_dir.empty())
    fail<UsageError>("--sync-dst-dir", "--launcher ssh, because srun cannot copy the working folder", "srun",
                     "copy files with sbcast, or use a working folder that all nodes share");
}

// Returns srun's arguments up to the command, which a shell on the node reads. The step shares the resources of the job
// on the node.
[[nodiscard]] std::vector<std::string> srun_arguments(const std::string& job, const Host& host);

}  // namespace tutti::launch
