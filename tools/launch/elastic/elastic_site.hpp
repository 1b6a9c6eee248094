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

// The hosts file as it is written, and what hosts that join are told.
namespace tutti::launch {

// A line of the hosts file.
[[nodiscard]] std::string line_of(const Host& h);

void replace_hosts_file(const std::filesystem::path& file, const std::string& text);

// The hosts with which a job begins, each with as many slots as it has workers.
[[nodiscard]] std::vector<ListedHost> hosts_at_begin(const Plan& plan);

// The order of workers that join a host: that of the others, with their own numbers.
[[nodiscard]] Plan::Site joining_site(const Plan& plan, const ListedHost& where, std::vector<ProcessOrder> workers,
                                      int count, std::uint64_t epoch);

// The preparation of a host, under the number of its first new worker: the text of a script, whatever runs it.
[[nodiscard]] Plan::Site prepare_site(Plan::Site site, const std::string& script);

// `tutti-launch --launch-worker --host HOST`: a line more in the hosts file of a job that runs.
int add_host_by_hand(const Options& o);

}  // namespace tutti::launch
