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

// The addresses of this host's interfaces, in numbers.
[[nodiscard]] std::set<std::string> own_addresses();

// Is it this host, reached without ssh? By its names, and by what they stand for: hosts files of clusters list this
// host, too, by the name or address that it has for others.
[[nodiscard]] bool is_here(const Host& h);

// Who runs where: the hosts that get a process, each with its order.
struct Plan {
  struct Site {
    Host host;
    bool here = false;
    Order order;
  };
  std::string job;
  int generation = 0;  // of members, see MpiGenerations
  RendezvousPorts rendezvous;
  std::vector<Site> sites;
  std::vector<std::size_t> site_of_mpi_rank;  // workers, then servers

  [[nodiscard]] const Site& first() const { return sites[site_of_mpi_rank[0]]; }  // that of rank 0
};

namespace detail {

// This host's address as the other one sees it; its name where that cannot be found out. Nothing is sent.
[[nodiscard]] std::string address_towards(const std::string& other);

}  // namespace detail

// The hosts in the order in which they are filled: this one before the others, so that rank 0, which logs and saves,
// is where the user is; as mpirun has it.
[[nodiscard]] std::vector<Host> hosts_of(const Options& o);

// How many workers there are. With --gpus in the command -n counts hosts, and each gets a process for each GPU,
// whatever its slots say.
[[nodiscard]] std::size_t count_workers(const Options& o, std::vector<Host>& hosts);

// The plan for a command line; DataError for a bad hosts file.
[[nodiscard]] Plan make_plan(const Options& o);

// Gives a plan without servers one beside each worker, as make_plan() places as many.
void add_servers(Plan& plan);

// The line with which a job begins.
[[nodiscard]] std::string describe(const Plan& plan, const Options& o);

}  // namespace tutti::launch
