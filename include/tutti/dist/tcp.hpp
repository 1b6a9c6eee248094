// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/dist/hosts_file.hpp>
#include <tutti/io/file.hpp>

// TCP sockets that never block longer than a deadline.
namespace tutti::tcp {

using Deadline = std::chrono::steady_clock::time_point;
using Socket = io::Descriptor;

[[nodiscard]] inline std::string error_text(int number) { return std::generic_category().message(number); }

// Milliseconds that poll() may wait: at least 0, at most `most`.
[[nodiscard]] inline int left(Deadline deadline, int most = 1000) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, most));
}
[[nodiscard]] inline bool over(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }

// Whether the socket became ready for `events` before the deadline.
[[nodiscard]] inline bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, left(deadline));
    if (n > 0) return true;
    if (n == 0 && over(deadline)) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

// Listens at a port of all of this host's addresses; port 0: one that is free. CommunicationError if it is taken.
[[nodiscard]] inline Socket listen_at(int port, int backlog) {
  const auto attempt = [&](int family, int& error) -> Socket {
    Socket s(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1, off = 0;
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    six.sin6_port = four.sin_port = htons(static_cast<std::uint16_t>(port));
    four.sin_family = AF_INET;
    const auto* address =
        family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<const sockaddr*>(&four);
    const socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
    if (s.get() >= 0) {
      ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (family == AF_INET6) ::setsockopt(s.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(s.get(), address, size) == 0 && ::listen(s.get(), backlog) == 0) return s;
    }
    error = errno;
    return Socket();
  };
  int error = 0;
  // A host without IPv6 still has IPv4.
  for (const int family : {AF_INET6, AF_INET})
    if (Socket s = attempt(family, error); s.get() >= 0) return s;
  fail<CommunicationError>("tcp", "to listen at port " + std::to_string(port), error_text(error),
                           error == EADDRINUSE ? "another program has the port; choose another one" : "");
}
[[nodiscard]] inline int port_of(const Socket& s) {
  sockaddr_storage a{};
  socklen_t size = sizeof a;
  if (::getsockname(s.get(), reinterpret_cast<sockaddr*>(&a), &size) != 0) return 0;
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&a);
  const auto* four = reinterpret_cast<const sockaddr_in*>(&a);
  return ntohs(a.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
}

// One attempt to connect, at each address of the host. Nothing where that fails; `why` says how.
[[nodiscard]] inline std::optional<Socket> connect_to(const std::string& host, int port, Deadline deadline,
                                                      std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (const int e = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw); e != 0) {
    why = ::gai_strerror(e);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s.get() < 0) continue;
    int error = ::connect(s.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!wait_for(s.get(), POLLOUT, deadline))
        error = ETIMEDOUT;
      else if (::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    }
    if (error == 0) {
      const int on = 1;
      ::setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return s;
    }
    why = error_text(error);
  }
  return {};
}

enum class Transfer : std::uint8_t { done, late, closed };

[[nodiscard]] inline Transfer send_all(const Socket& s, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(s.get(), POLLOUT, deadline)) return Transfer::late;
    } else if (!(n < 0 && errno == EINTR)) {
      return Transfer::closed;
    }
  }
  return Transfer::done;
}
[[nodiscard]] inline Transfer receive_all(const Socket& s, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(s.get(), bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(s.get(), POLLIN, deadline)) return Transfer::late;
    } else if (!(n < 0 && errno == EINTR)) {
      return Transfer::closed;
    }
  }
  return Transfer::done;
}

}  // namespace tutti::tcp
