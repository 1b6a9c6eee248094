// SPDX-License-Identifier: MIT
#include "tools/trainer/scripted.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

#include "tools/trainer/check_values.hpp"
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer {

namespace detail {

std::string address_towards(const HostPort& other) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(other.host.c_str(), std::to_string(other.port).c_str(), &hints, &found) != 0 || found == nullptr)
    fail<CommunicationError>("environment DMLC_PS_ROOT_URI", "a host name that can be resolved", other.host,
                             "check the name, and that it is in /etc/hosts or the DNS");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  const io::Descriptor socket(::socket(all->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  std::array<char, 256> text{};
  if (socket.get() < 0 || ::connect(socket.get(), all->ai_addr, all->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    fail<CommunicationError>("environment DMLC_PS_ROOT_URI", "a host that can be reached from here", other.host,
                             "set this host's address in DMLC_NODE_HOST");
  return text.data();
}

}  // namespace detail

namespace {

// Reads --ps-hosts and the related options.
ScriptedJob job_of_lists(const RunOptions& o, Started& start) {
  if (start.launched || start.mpi)
    fail<UsageError>("--ps-hosts", "a process that no launcher has numbered",
                     start.mpi ? start.starter_of_mpi() : "tutti-launch, or DMLC_ROLE",
                     start.srun ? "use 'srun --mpi=none', so that the lists number the processes"
                                : "leave the lists out: tutti-launch -n N -s M gives its processes all addresses");
  for (const auto& [name, value] : {std::pair{"--ps-hosts", &o.ps_hosts}, {"--worker-hosts", &o.worker_hosts}})
    if (value->empty())
      fail<UsageError>(name, "HOST:PORT of each process", "none",
                       "give both lists, --job_name and --task_index; generate-trainer writes such commands");
  ScriptedJob job;
  job.servers = parse_host_list(o.ps_hosts, "--ps-hosts");
  job.workers = parse_host_list(o.worker_hosts, "--worker-hosts");
  for (const HostPort& h : job.workers)
    if (std::find(job.servers.begin(), job.servers.end(), h) != job.servers.end())
      fail<UsageError>("--worker-hosts", "other ports than those of --ps-hosts", h.text());
  if (o.job_name != "ps" && o.job_name != "worker")
    fail<UsageError>("--job-name", "ps or worker", "'" + printable(o.job_name) + "'");
  const auto& list = o.job_name == "ps" ? job.servers : job.workers;
  const std::int64_t index = o.task_index.value_or(0);
  if (index < 0 || index >= static_cast<std::int64_t>(list.size()))
    fail<UsageError>("--task-index",
                     list.size() == 1 ? "0" : "0 to " + std::to_string(list.size() - 1) + ", a place in the list",
                     std::to_string(index));
  job.arbiter = job.servers[0].text();
  start.launched = true;
  start.role = o.job_name == "ps" ? "server" : "worker";
  start.role_variable = "--job-name";
  start.workers = static_cast<int>(job.workers.size());
  start.servers = static_cast<int>(job.servers.size());
  start.size = static_cast<int>(list.size());
  start.rank = static_cast<int>(index);
  start.host = list[static_cast<std::size_t>(index)].host;
  // The script gives each process its own GPU, so the processes of a host share only the cores.
  start.local_size = static_cast<int>(
      std::count_if(list.begin(), list.end(), [&](const HostPort& h) { return h.host == start.host; }));
  return job;
}

}  // namespace

Started how_started(const RunOptions& o) {
  Started start{read_launch_environment(), {}};
  if (is_scripted(o)) {
    start.scripted = job_of_lists(o, start);
  } else if (!start.scheduler.empty()) {
    start.scripted = ScriptedJob{start.scheduler, false};
    const HostPort at = parse_host_list(start.scheduler, "DMLC_PS_ROOT_URI").at(0);
    start.host = !start.node_host.empty() ? start.node_host : detail::address_towards(at);
  }
  if (!start.scripted) {
    for (const auto& [name, given] :
         {std::pair{"--ps-key-file", !o.ps_key_file.empty()}, {"--rank-timeout", o.rank_timeout.has_value()}})
      if (given)
        fail<UsageError>(name, "a job with processes that scripts start", "another job",
                         start.launched ? "jobs of tutti-launch do not need it; tutti-launch has its own --rank-timeout"
                                        : "give --ps_hosts, --worker_hosts, --job_name and --task_index");
    return start;
  }
  if (o.ps_key_file.empty() && !o.ps_plain)
    fail<UsageError>(
        "--ps-key-file", "a file with the secret of the job, from which all its processes derive their keys", "none",
        "make one with 'umask 077; openssl rand -hex 32 > job.key' and copy it to every host; on a trusted "
        "network --ps-plain works without it");
  if (!o.ps_key_file.empty()) start.scripted->secret = read_key_file(o.ps_key_file, "--ps-key-file");
  if (o.rank_timeout) {
    detail::number("--rank-timeout", *o.rank_timeout, 0.1, 1e6);
    start.scripted->rank_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(*o.rank_timeout * 1000));
  }
  return start;
}

}  // namespace tutti::trainer
