// SPDX-License-Identifier: MIT
#include "tools/launch/host/slurm.hpp"

#include <string>
#include <vector>

namespace tutti::launch {

std::vector<std::string> srun_arguments(const std::string& job, const Host& host) {
  if (!is_host_name(host.name)) fail<UsageError>("srun", "the name of a node", "'" + printable(host.name) + "'");
  return {"srun",    "--jobid=" + job, "--nodelist=" + host.name, "--nodes=1", "--ntasks=1", "--overlap",
          "--mem=0", "--mpi=none",     "--cpu-bind=none",         "--quiet",   "--",         "sh",
          "-c"};
}

}  // namespace tutti::launch
