// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <tutti/comm/net/tcp.hpp>

namespace tutti::launch {

// Reserves a port of this host while the object exists: the system gives it to no other program. Does not listen on it.
// A program that knows the number can listen on the port with SO_REUSEADDR, as tutti's rendezvous and most servers do.
class ReservedPort {
 public:
  // Reserves `port`, or any free port if `port` is 0. Returns nullopt if that is not possible.
  [[nodiscard]] static std::optional<ReservedPort> take(int port);
  [[nodiscard]] int number() const { return tcp::port_of(socket_); }

 private:
  ReservedPort() = default;
  tcp::Socket socket_;
};

// The ports at which the processes of a job connect. Rank 0 listens on the first free port of `ports` ports from `port`
// on. `ps_port` is for the scheduler of parameter servers.
struct RendezvousPorts {
  int port = 0, ports = 1, ps_port = 0;
  std::shared_ptr<const std::pair<ReservedPort, ReservedPort>> held;  // reserved while the job runs
};

// Chooses the ports. wanted: value of --root-port, or 0. here: rank 0 runs on this host, so ports can be reserved.
[[nodiscard]] RendezvousPorts choose_rendezvous_ports(int wanted, bool here);

}  // namespace tutti::launch
