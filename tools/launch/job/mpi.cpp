// SPDX-License-Identifier: MIT
#include "tools/launch/job/mpi.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>

#include "tools/launch/job/commands.hpp"

namespace tutti::launch {

namespace {

// Returns the mpirun in the folder of this program, as in an archive that contains Open MPI, or else the one on PATH.
[[nodiscard]] std::string mpirun_program() {
  const fs::path beside = fs::path(own_program()).parent_path() / "mpirun";
  return ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "mpirun";
}

}  // namespace

Start mpirun_start(const Plan& plan, const Options& o, const fs::path& folder) {
  {
    // One line for each process: with --map-by seq, rank i runs on the host of line i.
    std::ofstream out(folder / "mpirun.hosts");
    // mpirun recognises this host only by its own name.
    for (const std::size_t site : plan.site_of_mpi_rank)
      out << (plan.sites[site].here ? own_node() : plan.sites[site].host.name) << '\n';
    if (!out.flush()) fail<Error>("mpirun", "to write " + folder.string(), error_text(errno));
  }
  const bool all_here = std::all_of(plan.sites.begin(), plan.sites.end(), [](const Plan::Site& s) { return s.here; });
  Start start;
  start.argv = {mpirun_program(),
                "-np",
                std::to_string(plan.site_of_mpi_rank.size()),
                "--hostfile",
                (folder / "mpirun.hosts").string(),
                "--map-by",
                "seq",
                "--mca",
                "plm_rsh_agent",
                (folder / "rsh-agent").string(),
                "--mca",
                "plm_rsh_no_tree_spawn",
                "1"};
  // With these values mpirun notices a broken connection after 8 s. By default it does not notice it at all.
  for (const auto& [name, value] : {std::pair("oob_tcp_keepalive_time", "4"),
                                    {"oob_tcp_keepalive_intvl", "2"},
                                    {"oob_tcp_keepalive_probes", "3"}}) {
    start.argv.emplace_back("--mca");
    start.argv.emplace_back(name);
    start.argv.emplace_back(value);
  }
  // Ranks that restart for a change of members exit with 75, one after the other: mpirun must not end the rest.
  if (plan.generation > 0) start.argv.insert(start.argv.end(), {"--mca", "orte_abort_on_non_zero_status", "0"});
  const auto& more = o.mpi_arguments;
  if (std::find(more.begin(), more.end(), "--bind-to") == more.end() &&
      std::find(more.begin(), more.end(), "-bind-to") == more.end()) {
    start.argv.emplace_back("--bind-to");
    start.argv.emplace_back("none");
  }
  // Ranks that share processors must not spin inside MPI.
  for (const Plan::Site& s : plan.sites)
    if (s.here && s.order.processes.size() > std::thread::hardware_concurrency())
      start.argv.insert(start.argv.end(), {"--mca", "mpi_yield_when_idle", "1"});
  // mpirun refuses root without this option. The user has already decided what to run.
  if (::geteuid() == 0) start.argv.emplace_back("--allow-run-as-root");
  start.argv.insert(start.argv.end(), more.begin(), more.end());
  start.argv.push_back(all_here ? own_program() : remote_program(o));
  start.argv.emplace_back("--exec-rank");
  start.argv.push_back(plan.job);
  if (plan.generation > 0) start.argv.push_back(std::to_string(plan.generation));
  start.environment.emplace();
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::string_view name = entry.substr(0, entry.find('='));
    // With these variables mpirun would start its daemons by srun in Slurm's job, instead of by plm_rsh_agent.
    const bool slurm = name.starts_with("SLURM_") && name != "SLURM_CONF" && name != "SLURM_JWT";
    if (slurm || (name.starts_with("PMIX_") && !name.starts_with("PMIX_MCA_"))) continue;
    if (std::none_of(o.everywhere.begin(), o.everywhere.end(), [&](const auto& v) { return v.first == name; }))
      start.environment->emplace_back(entry);
  }
  start.signal_at_parents_death = SIGTERM;
  return start;
}

std::optional<int> rank_that_mpirun_blames(std::string_view line) {
  for (const std::string_view start : {"MPI_ABORT was invoked on rank ", "mpirun noticed that process rank "}) {
    const std::size_t at = line.find(start);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = line.substr(at + start.size());
    return tutti::detail::number_between(rest.substr(0, rest.find(' ')), 0, 1 << 24);
  }
  return {};
}

}  // namespace tutti::launch
