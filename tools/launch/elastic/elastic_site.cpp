// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_site.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/cli/elastic_options.hpp"
#include "tools/launch/elastic/elastic_log.hpp"

namespace tutti::launch {

std::string line_of(const Host& h) {
  const bool brackets = h.name.find(':') != std::string::npos;
  std::string line = (h.user.empty() ? "" : h.user + "@") + (brackets ? "[" + h.name + "]" : h.name);
  if (h.port != 0) line += ":" + std::to_string(h.port);
  return line + (h.slots == 1 ? "" : " slots=" + std::to_string(h.slots)) + "\n";
}

void replace_hosts_file(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path aside = io::aside_path(file);
  std::ofstream out(aside, std::ios::trunc);
  if (!(out << text) || !out.flush()) io::fail_file("write", aside, errno);
  out.close();
  io::rename_path(aside, file);
}

std::vector<ListedHost> hosts_at_begin(const Plan& plan) {
  std::vector<Host> hosts;
  for (const Plan::Site& s : plan.sites) {
    Host h = s.host;
    h.slots = static_cast<int>(std::count_if(s.order.processes.begin(), s.order.processes.end(),
                                             [](const ProcessOrder& p) { return p.role == "worker"; }));
    if (h.slots > 0) hosts.push_back(std::move(h));
  }
  return with_keys(std::move(hosts));
}

Plan::Site joining_site(const Plan& plan, const ListedHost& where, std::vector<ProcessOrder> workers, int count,
                        std::uint64_t epoch) {
  Plan::Site site{where.host, where.here(), plan.first().order};
  site.order.host = where.host.name;
  site.order.workers = count;
  site.order.joins = true;
  site.order.keeps = false;
  site.order.epoch = static_cast<int>(epoch);
  site.order.processes = std::move(workers);
  return site;
}

Plan::Site prepare_site(Plan::Site site, const std::string& script) {
  site.order.processes.resize(1);
  site.order.processes[0].role = "prepare";
  site.order.through_mpi = false;
  site.order.generation = 0;
  site.order.command = {
      "sh", "-c", "f=$(mktemp) && trap 'rm -f \"$f\"' EXIT && printf %s \"$1\" >\"$f\" && chmod 700 \"$f\" && \"$f\"",
      "prepare", script};
  return site;
}

int add_host_by_hand(const Options& o) {
  const std::filesystem::path file = elastic_folder(o.elastic) / "host_worker";
  const std::filesystem::path log = elastic_folder(o.elastic) / "host_worker_log";
  // Other processes may add hosts at the same time, and a job may begin. On file systems without such locks, both edits
  // can begin with the same file.
  const io::Descriptor lock = lock_hosts(file.parent_path());
  if (!MembershipLog::in_use(log) || !io::path_exists(file))
    fail<UsageError>("--launch-worker",
                     "a running job with its hosts file in " + printable(file.parent_path().string()), "none",
                     "give --elastic-dir the folder that tutti-launch --elastic printed");
  auto hosts = parse_hosts(o.elastic.host + (o.workers ? " slots=" + std::to_string(*o.workers) : "") + "\n", "--host");
  const std::string text = io::read_text_file(file, max_hosts_file_bytes);
  const ListedHost mine = with_keys(hosts).at(0);
  for (const ListedHost& l : with_keys(parse_hosts(text, file.string())))
    if (l.key == mine.key)
      fail<UsageError>("--host", "a host that is not in " + printable(file.string()),
                       mine.host.name + ", which is in line " + std::to_string(l.host.line));
  replace_hosts_file(file, text + (text.ends_with('\n') ? "" : "\n") + line_of(mine.host));
  std::printf("%s has been added to %s; %s will show when it joins\n", mine.host.name.c_str(), file.c_str(),
              log.c_str());
  return 0;
}

}  // namespace tutti::launch
