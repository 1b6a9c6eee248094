// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/rendezvous_ports.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

// Returns the numeric addresses of this host's interfaces.
[[nodiscard]] std::set<std::string> own_addresses();

// Returns whether `h` is this host, reached without ssh. Compares names and addresses: hosts files of clusters also
// list this host by the name or address that other hosts use.
[[nodiscard]] bool is_here(const Host& h);

// The placement of the job: the hosts that get a process, each with its order.
struct Plan {
  struct Site {
    Host host;
    bool here = false;
    Order order;
  };
  std::string job;
  int generation = 0;  // generation of the members, see MpiGenerations
  RendezvousPorts rendezvous;
  std::vector<Site> sites;
  std::vector<std::size_t> site_of_mpi_rank;  // for workers, then servers

  [[nodiscard]] const Site& first() const { return sites[site_of_mpi_rank[0]]; }  // the site of rank 0
};

namespace detail {

// Returns this host's address as `other` sees it, or its name if that cannot be found out. Sends no packets.
[[nodiscard]] std::string address_towards(const std::string& other);

}  // namespace detail

// Returns the hosts in the order in which they get processes. This host comes first, so that rank 0, which logs and
// saves, runs on the user's host, as with mpirun.
[[nodiscard]] std::vector<Host> hosts_of(const Options& o);

// Returns the number of workers. If the command has --gpus, -n is the number of hosts, and each host gets one process
// for each GPU, whatever number of slots it has.
[[nodiscard]] std::size_t count_workers(const Options& o, std::vector<Host>& hosts);

// Returns the plan for a command line. Throws DataError for a bad hosts file.
[[nodiscard]] Plan make_plan(const Options& o);

// Adds one server for each worker, on the worker's host, to a plan without servers. make_plan() places as many servers
// in the same way.
void add_servers(Plan& plan);

// Returns the line that is printed when a job begins.
[[nodiscard]] std::string describe(const Plan& plan, const Options& o);

}  // namespace tutti::launch
