// SPDX-License-Identifier: MIT
// header-only
// Starts the processes of a job on one host or on several hosts, see launch/cli/options.hpp.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>

#include "tools/launch/agent/guard.hpp"
#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/ssh.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/launcher.hpp"
#include "tools/launch/program_query.hpp"

namespace {

using namespace tutti;
using namespace tutti::launch;

int kill_job(const Options& o) {
  SignalQueue signals{SIGCHLD, SIGTERM, SIGINT, SIGHUP};
  std::vector<Host> hosts{{"localhost", 0, 1, 0}};
  if (!o.hosts_file.empty()) hosts = read_hosts_file(o.hosts_file);
  const auto problems = kill_on(hosts, o, o.kill_job, o.connect_timeout + 10, true, signals);
  for (const Problem& p : problems) std::fprintf(stderr, "tutti-launch: %s\n", p.message.c_str());
  return problems.empty() ? 0 : problems.front().code;
}

int run(const std::string& program, const std::vector<std::string>& arguments) {
  // Handles the modes in which the launcher starts itself on hosts.
  if (std::filesystem::path(program).filename() == "rsh-agent") become_ssh(program, arguments);
  const std::string mode = arguments.empty() ? "" : arguments[0];
  if (mode == "--exec-ranks" && arguments.size() == 1) return exec_ranks();
  if (mode == "--ask" && arguments.size() == 1) return query_locally(read_order().second);
  if (mode == "--exec-rank" && (arguments.size() == 2 || arguments.size() == 3))
    return exec_rank(arguments[1], arguments.size() == 3 ? arguments[2] : "0");
  if (mode == "--kill-here" && arguments.size() <= 2) return kill_here(arguments.size() == 2 ? arguments[1] : "");

  const Options o = parse_options(arguments);
  if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
  (void)possible_state_folders();  // refuses a bad TUTTI_STATE_DIR before anything starts
  if (o.elastic.launch_worker) return add_host_by_hand(o);
  return o.kill ? kill_job(o) : Launcher(o).run();
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-launch", [&] {
    return run(argc > 0 ? argv[0] : "", std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  });
}
