// SPDX-License-Identifier: MIT
#include "tools/trainer/backend_of_run.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>

#include "tools/trainer/check_batch.hpp"

namespace tutti::trainer {

bool is_built(const std::string& backend) {
  const std::vector<std::string> built = built_backends();
  return std::find(built.begin(), built.end(), backend) != built.end();
}

int gpu_of(const RunOptions& o, const Started& start) {
  const std::vector<int> chosen = detail::gpu_numbers(o.gpus.value_or(""));
  const auto here = static_cast<std::size_t>(start.local_size);
  if (chosen.empty()) return start.local_rank;
  if (chosen.size() != here)
    fail<UsageError>(
        "--gpus", here == 1 ? "one GPU" : std::to_string(here) + " GPUs", *o.gpus,
        "each process has one GPU: tutti-launch --gpus starts one process for each GPU, and -n counts hosts");
  return chosen[static_cast<std::size_t>(start.local_rank)];
}

BackendOptions backend_options(const RunOptions& o) {
  BackendOptions as;
  as.threads = static_cast<int>(o.threads);
  as.bf16 = o.precision == "bf16";
  as.tf32 = o.tf32;
  as.autotune = o.autotune;
  as.deterministic = o.deterministic;
  as.fusion = o.cuda_fusion;
  as.convolution = o.convolution;
  as.recompute = o.recompute;
  as.graph = o.cuda_graph;
  as.where = "--backend";
  return as;
}

bool has_gpu(const RunOptions& o, const Started& start) {
  if (o.backend != "auto" || detail::wants_no_gpu(o)) return false;
  const bool built = is_built("cuda");
  // Without the backend, check() refuses the GPUs that --gpus names.
  if (!built && o.gpus) return false;
  BackendOptions as = backend_options(o);
  if (built) as.device = gpu_of(o, start);
  // The process that trains prints the reason. The process that only answers the launcher does not.
  if (is_launcher_query()) as.warn = nullptr;
  return automatic_backend(as) == "cuda";
}

}  // namespace tutti::trainer
