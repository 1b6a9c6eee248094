// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/plan.hpp"

// Writes the hosts file, and makes the orders for hosts that join.
namespace tutti::launch {

// Returns a line of the hosts file.
[[nodiscard]] std::string line_of(const Host& h);

void replace_hosts_file(const std::filesystem::path& file, const std::string& text);

// Returns the hosts with which a job begins. The slots of a host are the number of its workers.
[[nodiscard]] std::vector<ListedHost> hosts_at_begin(const Plan& plan);

// Returns the order for workers that join a host: the order of the other workers, with new numbers.
[[nodiscard]] Plan::Site joining_site(const Plan& plan, const ListedHost& where, std::vector<ProcessOrder> workers,
                                      int count, std::uint64_t epoch);

// Returns the order to run `script`, which prepares a host. Its only process has the number of the host's first new
// worker. `script` is the text of an executable script.
[[nodiscard]] Plan::Site prepare_site(Plan::Site site, const std::string& script);

// `tutti-launch --launch-worker --host HOST`: adds a line to the hosts file of a running job.
int add_host_by_hand(const Options& o);

}  // namespace tutti::launch
