// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// Jobs of workers and servers that scripts start one by one, without tutti-launch.
namespace tutti {

// An address that only one process of the job uses.
struct HostPort {
  std::string host;  // without brackets
  int port = 0;
  [[nodiscard]] std::string text() const { return host_and_port(host, port); }
  [[nodiscard]] bool operator==(const HostPort&) const = default;
};

// Reads "h0:2222,h1:2222": each host as in the hosts file, with a port, without user and slots. Throws UsageError with
// `option` and the reason.
[[nodiscard]] inline std::vector<HostPort> parse_host_list(std::string_view text, const std::string& option) {
  constexpr std::size_t most = 65536;
  std::vector<HostPort> list;
  if (text.size() > max_hosts_file_bytes)
    fail<UsageError>(option, {"at most ", max_hosts_file_bytes, " bytes"}, text.size());
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto host = detail::parse_host_name(word);
    if (!host || host->port == 0 || !host->user.empty() || list.size() == most)
      fail<UsageError>(option, "HOST:PORT, separated by commas, PORT from 1 to 65535", {"'", printable(word), "'"},
                       {"e.g. ", option, " host1:2222,host2:2222; an IPv6 address is in brackets"});
    list.push_back({host->name, host->port});
  }
  auto sorted = list;
  std::sort(sorted.begin(), sorted.end(),
            [](const HostPort& a, const HostPort& b) { return std::pair(a.host, a.port) < std::pair(b.host, b.port); });
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    fail<UsageError>(option, "each host and port once", {twice->text(), " again"},
                     "give each process of a host a separate port");
  return list;
}

// Returns whether only processes of this host reach that name.
[[nodiscard]] inline bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || (host.starts_with("127.") && is_host_name(host));
}

// How the processes of such a job find each other. The arbiter of its members (arbiter.hpp) is in server 0, or in a
// process of its own, the scheduler.
struct ScriptedJob {
  std::string arbiter;              // host:port where it listens
  bool in_server = true;            // the arbiter is in server 0
  std::vector<HostPort> servers{};  // addresses by number; empty: the servers publish them
  std::vector<HostPort> workers{};  // addresses by rank, for their names; empty: not given
  std::string secret{};             // secret of the key file; empty: no key file
  std::chrono::milliseconds rank_timeout = std::chrono::seconds(10);

  // Returns the terms that must be the same for all its processes.
  [[nodiscard]] std::string terms(int workers_of_it, int servers_of_it) const {
    std::string text = std::to_string(workers_of_it) + (workers_of_it == 1 ? " worker and " : " workers and ") +
                       std::to_string(servers_of_it) + (servers_of_it == 1 ? " server" : " servers");
    for (const auto* list : {&servers, &workers}) {
      const char* before = list == &servers ? ", servers at " : ", workers at ";
      for (const HostPort& h : *list) {
        text.append(before).append(h.text());
        before = ",";
      }
    }
    return text;
  }
  [[nodiscard]] std::string arbiter_name() const {
    return (in_server ? "server 0 at " : "the scheduler at ") + arbiter;
  }
};

}  // namespace tutti
