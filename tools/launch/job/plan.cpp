// SPDX-License-Identifier: MIT
#include "tools/launch/job/plan.hpp"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/host/process.hpp"

namespace tutti::launch {

std::set<std::string> own_addresses() {
  std::set<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    const auto size =
        static_cast<socklen_t>(i->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    char text[NI_MAXHOST];
    if (::getnameinfo(i->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) found.insert(text);
  }
  ::freeifaddrs(all);
  return found;
}

bool is_here(const Host& h) {
  if (h.port != 0) return false;
  const passwd* me = ::getpwuid(::geteuid());
  if (!h.user.empty() && (me == nullptr || h.user != me->pw_name)) return false;
  if (h.name == "localhost" || h.name == "127.0.0.1" || h.name == "::1" || h.name == own_node()) return true;
  // Slurm's name of this node may be no host name.
  if (const char* node = std::getenv("SLURMD_NODENAME"); node != nullptr && h.name == node) return true;
  // A name server that does not answer delays this by its time-out, but only once.
  static const std::set<std::string> mine = own_addresses();
  static const auto began = Clock::now();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = seconds_since(began) > 3 ? AI_NUMERICHOST : 0;
  addrinfo* found = nullptr;
  if (::getaddrinfo(h.name.c_str(), nullptr, &hints, &found) != 0) return false;
  char text[NI_MAXHOST];
  const bool here =
      found != nullptr &&
      ::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
      (mine.contains(text) || std::string_view(text).starts_with("127."));
  ::freeaddrinfo(found);
  return here;
}

namespace detail {

namespace {

// Adds the variables of this process that may be options of the program, such as TUTTI_EPOCHS: ssh passes none on.
[[nodiscard]] Variables with_program_options(Variables v) {
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry(*e), name = entry.substr(0, entry.find('='));
    if (!name.starts_with("TUTTI_") || name.size() == entry.size() || is_launcher_variable(name)) continue;
    if (std::none_of(v.begin(), v.end(), [&](const auto& known) { return known.first == name; }))
      v.emplace_back(name, entry.substr(name.size() + 1));
  }
  return v;
}

}  // namespace

}  // namespace detail

namespace {

[[nodiscard]] std::string new_job() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) number = std::random_device{}();
  constexpr char digits[] = "0123456789abcdef";
  std::string job;
  for (int i = 0; i < 16; ++i) job += digits[(number >> (60 - 4 * i)) & 15U];
  return job;
}

}  // namespace

namespace detail {

std::string address_towards(const std::string& other) {
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

}  // namespace detail

std::vector<Host> hosts_of(const Options& o) {
  std::vector<Host> hosts{{"localhost", 0, o.gpus ? 1 : o.workers.value_or(1), 0}};
  if (!o.allocation.empty()) hosts = o.allocation;
  if (!o.hosts_file.empty()) hosts = read_hosts_file(o.hosts_file);
  if (const auto here = std::find_if(hosts.begin(), hosts.end(), is_here); here != hosts.end())
    std::rotate(hosts.begin(), here, here + 1);
  return hosts;
}

std::size_t count_workers(const Options& o, std::vector<Host>& hosts) {
  if (!o.gpus) return o.workers ? static_cast<std::size_t>(*o.workers) : total_slots(hosts);
  const std::size_t count = o.workers ? static_cast<std::size_t>(*o.workers) : hosts.size();
  if (*o.gpus > 1 && count > hosts.size())
    fail<UsageError>(
        "--num-workers",
        "at most " + count_text(hosts.size(), "host") + ", because -n counts hosts if the command has --gpus",
        std::to_string(count),
        "one process runs for each of the " + std::to_string(*o.gpus) + " GPUs of a host: -n " +
            std::to_string(hosts.size()) + ", or leave -n out");
  for (Host& h : hosts) h.slots = *o.gpus;
  return count * static_cast<std::size_t>(*o.gpus);
}

Plan make_plan(const Options& o) {
  std::vector<Host> hosts = hosts_of(o);
  const std::size_t workers = count_workers(o, hosts);
  const auto servers = static_cast<std::size_t>(o.servers.value_or(0));

  Plan plan;
  plan.job = new_job();
  std::map<std::size_t, std::size_t> site_of_host;
  std::vector<bool> here;
  for (const Host& h : hosts) here.push_back(is_here(h));
  const auto place = [&](const std::string& role, std::size_t count) {
    int rank = 0;
    for (std::size_t h : place_processes(hosts, count)) {
      // All names of this host count as its first name.
      if (here[h]) h = 0;
      const auto [site, fresh] = site_of_host.emplace(h, plan.sites.size());
      if (fresh) plan.sites.push_back({hosts[h], here[h], {}});
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

  // All processes connect to rank 0's host.
  const Plan::Site& first = plan.first();
  std::string root = first.here ? "127.0.0.1" : first.host.name;
  for (const Plan::Site& s : plan.sites) {
    if (!first.here || s.here) continue;
    root = detail::address_towards(s.host.name);
    break;
  }
  if (plan.sites.size() == 1) root = "127.0.0.1";
  plan.rendezvous = choose_rendezvous_ports(o.root_port, first.here);

  Order common;
  common.job = plan.job;
  common.job_name = o.job_name.empty() ? std::filesystem::path(o.command[0]).filename().string() : o.job_name;
  common.folder = o.sync_dir.empty() ? std::filesystem::current_path().string() : o.sync_dir;
  common.log_dir = o.log_dir.empty() ? "" : std::filesystem::absolute(o.log_dir).lexically_normal().string();
  common.root_host = root;
  common.root_port = plan.rendezvous.port;
  common.root_ports = plan.rendezvous.ports;
  common.ps_port = plan.rendezvous.ps_port;
  common.secret = new_secret();
  common.workers = static_cast<int>(workers);
  common.servers = static_cast<int>(servers);
  common.keeps = o.server_restarts > 0;
  common.elastic = o.elastic.on;
  common.host_timeout = o.host_timeout;
  common.command = o.command;
  common.everywhere = detail::with_program_options(o.everywhere);
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

void add_servers(Plan& plan) {
  const std::vector<std::size_t> workers = plan.site_of_mpi_rank;
  std::map<std::size_t, int> count;
  for (const std::size_t site : workers) ++count[site];
  for (std::size_t i = 0; i < workers.size(); ++i) {
    Order& order = plan.sites[workers[i]].order;
    const int servers = static_cast<int>(std::count_if(order.processes.begin(), order.processes.end(),
                                                       [](const ProcessOrder& p) { return p.role == "server"; }));
    order.processes.push_back(
        {"server", static_cast<int>(i), servers, count[workers[i]], static_cast<int>(plan.site_of_mpi_rank.size())});
    plan.site_of_mpi_rank.push_back(workers[i]);
  }
  for (Plan::Site& s : plan.sites) s.order.servers = static_cast<int>(workers.size());
}

std::string describe(const Plan& plan, const Options& o) {
  const Order& order = plan.first().order;
  std::string line = "job " + plan.job + ": " + count_text(static_cast<std::size_t>(order.workers), "worker");
  if (order.servers > 0) line += ", " + count_text(static_cast<std::size_t>(order.servers), "server");
  line += " on " + count_text(plan.sites.size(), "host");
  if (o.gpus) line += ", one for each of the " + std::to_string(*o.gpus) + " GPUs of --gpus";
  return line + ", " + o.launcher + "; rank 0 on " + plan.first().host.name;
}

}  // namespace tutti::launch
