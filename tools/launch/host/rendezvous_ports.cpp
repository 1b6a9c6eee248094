// SPDX-License-Identifier: MIT
#include "tools/launch/host/rendezvous_ports.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

namespace tutti::launch {

std::optional<ReservedPort> ReservedPort::take(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    ReservedPort h;
    h.socket_ = tcp::Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1, off = 0;
    if (h.socket_.get() < 0) continue;
    ::setsockopt(h.socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) ::setsockopt(h.socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const tcp::Address any = tcp::any_address(family, port);
    if (::bind(h.socket_.get(), any.get(), any.size) == 0) return h;
    if (errno == EADDRINUSE) return {};
  }
  return {};
}

RendezvousPorts choose_rendezvous_ports(int wanted, bool here) {
  RendezvousPorts m;
  if (here) {
    auto first = ReservedPort::take(wanted), second = ReservedPort::take(wanted == 0 ? 0 : wanted + 1);
    if (first && second) {
      m.port = first->number();
      m.ps_port = second->number();
      m.held = std::make_shared<const std::pair<ReservedPort, ReservedPort>>(*std::move(first), *std::move(second));
      return m;
    }
    if (wanted != 0)
      fail<UsageError>("--root-port", "a free port, and the next one free too",
                       std::to_string(wanted + (first ? 1 : 0)) + ", which is in use",
                       "leave --root-port out, and the launcher finds a free port");
  }
  // Ports of other hosts cannot be checked. Ports below the ephemeral range are most probably free.
  constexpr int some = 8;
  m.port = wanted != 0 ? wanted : 20000 + static_cast<int>(std::random_device{}() % 10000);
  m.ports = wanted != 0 ? 1 : some;
  m.ps_port = m.port + m.ports;
  return m;
}

}  // namespace tutti::launch
