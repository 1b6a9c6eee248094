// SPDX-License-Identifier: MIT
#pragma once

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/backends/gloo/device.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti {

namespace detail {

// Moves IPv4 addresses to the front, so that all hosts choose the same kind.
inline void put_ipv4_first(std::vector<tcp::Address>& list) {
  std::stable_partition(list.begin(), list.end(), [](const tcp::Address& a) { return a.family() == AF_INET; });
}
[[nodiscard]] inline std::vector<tcp::Address> addresses_of_interface(const std::string& name) {
  std::vector<tcp::Address> found;
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || name != i->ifa_name) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    tcp::Address& a = found.emplace_back();
    a.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&a.bytes, i->ifa_addr, a.size);
  }
  put_ipv4_first(found);
  return found;
}
// Returns the address from which this host would send to another host. Sends no packet.
[[nodiscard]] inline std::optional<tcp::Address> address_towards(const tcp::Address& other) {
  tcp::Address mine;
  mine.size = sizeof mine.bytes;
  tcp::Address to = other;
  auto& port = to.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&to.bytes)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&to.bytes)->sin_port;
  port = htons(9);  // the connect() below needs a port, but sends no packet
  const tcp::Socket s(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (s.get() < 0 || ::connect(s.get(), to.get(), to.size) != 0 ||
      ::getsockname(s.get(), mine.data(), &mine.size) != 0 || mine.is_loopback())
    return {};
  return mine;
}

}  // namespace detail

// Returns the address on which the ranks of this host (`mine`) listen for ranks of other hosts: the loopback address if
// the job has one host, otherwise the address of the interface in GLOO_SOCKET_IFNAME, or of this host's own name, or
// the address that is used towards another host. hosts: names as the launcher knows them. Throws CommunicationError if
// this host has no such address.
[[nodiscard]] inline std::string gloo_address(const std::vector<std::string>& hosts, const std::string& mine) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"); name != nullptr && *name != '\0') {
    const auto found = detail::addresses_of_interface(name);
    if (found.empty())
      fail<UsageError>("environment GLOO_SOCKET_IFNAME", "a network interface of this host that has an address",
                       {"'", printable(name), "'"}, "'ip address' lists them");
    return found.front().text();
  }
  if (std::all_of(hosts.begin(), hosts.end(), [&](const std::string& h) { return h == mine; })) return "127.0.0.1";
  const auto addresses = [](const std::string& host) {
    std::string why;
    auto list = tcp::addresses_of(host, 0, std::chrono::steady_clock::now() + std::chrono::seconds(10), why);
    std::erase_if(list, [](const tcp::Address& a) { return a.is_loopback(); });
    detail::put_ipv4_first(list);
    return list;
  };
  for (const tcp::Address& a : addresses(mine))
    if (detail::is_of_this_host(a)) return a.text();
  for (const std::string& host : hosts) {
    if (host == mine) continue;
    for (const tcp::Address& a : addresses(host))
      if (const auto found = detail::address_towards(a)) return found->text();
  }
  fail<CommunicationError>("gloo", {"an address of '", mine, "' that the other hosts reach"}, "no such address",
                           "name hosts by addresses, or set GLOO_SOCKET_IFNAME to the network interface to use");
}

}  // namespace tutti
