// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <tutti/comm/net/tcp.hpp>

namespace tutti::launch {

// A port of this host that no other program is given while this exists, though nobody listens there: who knows it can,
// with SO_REUSEADDR, as tutti's rendezvous and most servers do.
class ReservedPort {
 public:
  // port 0: one that is free. Nothing where it cannot be had.
  [[nodiscard]] static std::optional<ReservedPort> take(int port);
  [[nodiscard]] int number() const { return tcp::port_of(socket_); }

 private:
  ReservedPort() = default;
  tcp::Socket socket_;
};

// Where the processes of a job meet: rank 0's listens at the first free of `ports` ports from `port` on, and `ps_port`
// is for a scheduler of parameter servers.
struct RendezvousPorts {
  int port = 0, ports = 1, ps_port = 0;
  std::shared_ptr<const std::pair<ReservedPort, ReservedPort>> held;  // as long as the job runs
};

// wanted: --root-port, or 0. here: rank 0 is on this host, whose ports can be held.
[[nodiscard]] RendezvousPorts choose_rendezvous_ports(int wanted, bool here);

}  // namespace tutti::launch
