// SPDX-License-Identifier: MIT
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/dist/hosts_file.hpp>
#include <tutti/io/file.hpp>

#include "options.hpp"
#include "process.hpp"
#include "wire.hpp"

namespace tutti::launch {

// Is it this host, reached without ssh?
[[nodiscard]] inline bool is_here(const Host& h) {
  if (h.port != 0) return false;
  return h.name == "localhost" || h.name == "127.0.0.1" || h.name == "::1" || h.name == own_node();
}

// Who runs where: the hosts that get a process, each with its order.
struct Plan {
  struct Site {
    Host host;
    bool here = false;
    Order order;
  };
  std::string job;
  std::vector<Site> sites;
  std::vector<std::size_t> site_of_mpi_rank;  // workers, then servers
};

[[nodiscard]] inline std::string new_job() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) number = std::random_device{}();
  constexpr char digits[] = "0123456789abcdef";
  std::string job;
  for (int i = 0; i < 16; ++i) job += digits[(number >> (60 - 4 * i)) & 15U];
  return job;
}

namespace detail {

// This host's address as the other one sees it; its name where that cannot be found out. Nothing is sent.
[[nodiscard]] inline std::string address_towards(const std::string& other) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(other.c_str(), "9", &hints, &found) != 0) return own_node();
  std::string address;
  for (const addrinfo* a = found; a != nullptr && address.empty(); a = a->ai_next) {
    const io::Descriptor fd(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage mine{};
    socklen_t size = sizeof mine;
    if (fd.get() < 0 || ::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&mine), &size) != 0)
      continue;
    char text[NI_MAXHOST];
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&mine), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0)
      address = text;
  }
  ::freeaddrinfo(found);
  return address.empty() ? own_node() : address;
}

// A port that is free here and now, 0 if there is none.
[[nodiscard]] inline int free_port() {
  const io::Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  if (fd.get() < 0 || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &size) != 0)
    return 0;
  return ntohs(any.sin_port);
}

}  // namespace detail

// The plan for a command line; DataError for a bad hosts file.
[[nodiscard]] inline Plan make_plan(const Options& o) {
  std::vector<Host> hosts{{"localhost", 0, o.workers.value_or(1), 0}};
  if (!o.hosts_file.empty()) hosts = read_hosts_file(o.hosts_file);
  const auto workers = o.workers ? static_cast<std::size_t>(*o.workers) : total_slots(hosts);
  const auto servers = static_cast<std::size_t>(o.servers);

  Plan plan;
  plan.job = new_job();
  std::map<std::size_t, std::size_t> site_of_host;
  const auto place = [&](const std::string& role, std::size_t count) {
    int rank = 0;
    for (const std::size_t h : place_processes(hosts, count)) {
      const auto [site, fresh] = site_of_host.emplace(h, plan.sites.size());
      if (fresh) plan.sites.push_back({hosts[h], is_here(hosts[h]), {}});
      ProcessOrder p;
      p.role = role;
      p.rank = rank++;
      p.mpi_rank = static_cast<int>(plan.site_of_mpi_rank.size());
      plan.sites[site->second].order.processes.push_back(p);
      plan.site_of_mpi_rank.push_back(site->second);
    }
  };
  place("worker", workers);
  place("server", servers);

  // Rank 0's host is where the others meet.
  const Plan::Site& first = plan.sites[plan.site_of_mpi_rank[0]];
  std::string root = first.here ? "127.0.0.1" : first.host.name;
  for (const Plan::Site& s : plan.sites)
    if (first.here && !s.here) root = detail::address_towards(s.host.name);
  int port = first.here ? detail::free_port() : 0;
  // Elsewhere nobody can ask; below the ports that systems hand out by themselves it is free in all likelihood.
  if (port == 0) port = 20000 + static_cast<int>(std::random_device{}() % 10000);

  Order common;
  common.job = plan.job;
  common.job_name = o.job_name.empty() ? std::filesystem::path(o.command[0]).filename().string() : o.job_name;
  common.folder = o.sync_dir.empty() ? std::filesystem::current_path().string() : o.sync_dir;
  common.log_dir = o.log_dir.empty() ? "" : std::filesystem::absolute(o.log_dir).lexically_normal().string();
  common.root_host = root;
  common.root_port = port;
  common.workers = static_cast<int>(workers);
  common.servers = o.servers;
  common.through_mpi = o.launcher == "mpi";
  common.host_timeout = o.host_timeout;
  common.command = o.command;
  common.everywhere = o.everywhere;
  common.on_workers = o.on_workers;
  common.on_servers = o.on_servers;
  for (Plan::Site& s : plan.sites) {
    Order order = common;
    order.host = s.host.name;
    order.processes = std::move(s.order.processes);
    std::map<std::string, int> count, next;
    for (const auto& p : order.processes) ++count[p.role];
    for (auto& p : order.processes) {
      p.local_rank = next[p.role]++;
      p.local_size = count[p.role];
    }
    s.order = std::move(order);
  }
  return plan;
}

}  // namespace tutti::launch
