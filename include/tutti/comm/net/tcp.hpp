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
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

// TCP sockets that never block longer than a deadline.
namespace tutti::tcp {

using Moment = std::chrono::steady_clock::time_point;
using Socket = io::Descriptor;

[[nodiscard]] inline std::string error_text(int number) { return std::generic_category().message(number); }  // of errno

// Returns the milliseconds that poll() may wait: at least 0, at most `most`.
[[nodiscard]] inline int left(Moment deadline, int most = 1000) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, most));
}
// Returns whether the deadline has passed.
[[nodiscard]] inline bool over(Moment deadline) { return std::chrono::steady_clock::now() >= deadline; }

// Returns whether the socket became ready for `events` before the deadline.
[[nodiscard]] inline bool wait_for(int fd, short events, Moment deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, left(deadline));
    if (n > 0) return true;
    if (n == 0 && over(deadline)) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

// An address with its port.
struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
  [[nodiscard]] sockaddr* data() noexcept { return reinterpret_cast<sockaddr*>(&bytes); }
  // Returns the address without the port, for messages.
  [[nodiscard]] std::string text() const {
    std::array<char, NI_MAXHOST> name{};
    if (::getnameinfo(get(), size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "nowhere";
    return name.data();
  }
  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }
  // Returns whether the address is in 127.0.0.0/8, or ::1.
  [[nodiscard]] bool is_loopback() const noexcept {
    if (family() == AF_INET)
      return (ntohl(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr);
  }
};

// Finds the addresses of a host with the system's resolver, which may use the network and has no deadline.
struct SystemLookup {
  std::vector<Address> operator()(const std::string& host, int port, bool numbers_only, std::string& why) const {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    if (numbers_only) hints.ai_flags = AI_NUMERICHOST;
    addrinfo* raw = nullptr;
    std::vector<Address> found;
    if (const int e = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw); e != 0) {
      why = ::gai_strerror(e);
      return found;
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      Address& to = found.emplace_back();
      to.size = std::min(a->ai_addrlen, socklen_t{sizeof to.bytes});
      std::memcpy(&to.bytes, a->ai_addr, to.size);
    }
    return found;
  }
};

// Returns the addresses of a host. Returns an empty list and sets `why` if it has no address, or if the answer does not
// arrive before the deadline. The lookup runs in its own thread, which is abandoned if it takes too long.
template <class Lookup = SystemLookup>
[[nodiscard]] std::vector<Address> addresses_of(const std::string& host, int port, Moment deadline, std::string& why,
                                                Lookup lookup = {}) {
  // A numeric address needs no lookup.
  if (auto numbers = SystemLookup{}(host, port, true, why); !numbers.empty()) return numbers;
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    bool there = false;
    std::vector<Address> found;
    std::string why;
  };
  const auto shared = std::make_shared<Shared>();
  try {
    std::thread([shared, host, port, lookup] {
      std::string reason;
      auto found = lookup(host, port, false, reason);
      const std::lock_guard lock(shared->mutex);
      shared->found = std::move(found);
      shared->why = std::move(reason);
      shared->there = true;
      shared->done.notify_all();
    }).detach();
  } catch (const std::system_error& e) {
    why = e.what();
    return {};
  }
  std::unique_lock lock(shared->mutex);
  if (!shared->done.wait_until(lock, deadline, [&] { return shared->there; })) {
    why = "no address for that name in time";
    return {};
  }
  why = shared->why;
  return std::move(shared->found);
}

// Returns a socket that listens on this address. If that fails, returns no value and sets `error` to the errno.
[[nodiscard]] inline std::optional<Socket> listen_on(const Address& a, int backlog, int& error) {
  Socket s(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (s.get() >= 0) {
    ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.family() == AF_INET6) ::setsockopt(s.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(s.get(), a.get(), a.size) == 0 && ::listen(s.get(), backlog) == 0) return s;
  }
  error = errno;
  return {};
}

// Returns the address that means all addresses of this host; for AF_INET6 including all IPv4 addresses.
[[nodiscard]] inline Address any_address(int family, int port) {
  Address any;
  any.bytes.ss_family = static_cast<sa_family_t>(family);
  any.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  auto& number = family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&any.bytes)->sin6_port
                                    : reinterpret_cast<sockaddr_in*>(&any.bytes)->sin_port;
  number = htons(static_cast<std::uint16_t>(port));
  return any;
}

[[nodiscard]] inline int port_of(const Socket& s) {  // the port of the socket, which the system may have chosen
  sockaddr_storage a{};
  socklen_t size = sizeof a;
  if (::getsockname(s.get(), reinterpret_cast<sockaddr*>(&a), &size) != 0) return 0;
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&a);
  const auto* four = reinterpret_cast<const sockaddr_in*>(&a);
  return ntohs(a.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
}

// Connects once, to the first address that answers. Each address gets a head start of `stagger` over the next one,
// which begins at once if an address fails (RFC 8305). Returns no value and sets `why` if all fail.
[[nodiscard]] inline std::optional<Socket> connect_first(
    std::span<const Address> addresses, Moment deadline, std::string& why,
    std::chrono::milliseconds stagger = std::chrono::milliseconds(250)) {
  std::vector<Socket> tried;
  const auto connected = [](Socket& s) {
    const int on = 1;
    ::setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return std::optional<Socket>(std::move(s));
  };
  std::size_t next = 0;
  for (Moment turn = std::chrono::steady_clock::now();;) {
    if (next < addresses.size() && (tried.empty() || over(turn))) {
      const Address& a = addresses[next++];
      turn = std::chrono::steady_clock::now() + stagger;
      Socket s(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (s.get() >= 0 && ::connect(s.get(), a.get(), a.size) == 0) return connected(s);
      if (s.get() >= 0 && errno == EINPROGRESS)
        tried.push_back(std::move(s));
      else
        why = error_text(errno);
      continue;
    }
    if (tried.empty()) return {};
    if (over(deadline)) {
      why = error_text(ETIMEDOUT);
      return {};
    }
    std::vector<pollfd> polled;
    polled.reserve(tried.size());
    for (const Socket& s : tried) polled.push_back({s.get(), POLLOUT, 0});
    const Moment until = next < addresses.size() ? std::min(turn, deadline) : deadline;
    if (::poll(polled.data(), polled.size(), left(until)) <= 0) continue;
    for (std::size_t i = tried.size(); i-- > 0;) {
      if (polled[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      if (::getsockopt(tried[i].get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      if (error == 0) return connected(tried[i]);
      why = error_text(error);
      tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

// Connects once to a host, at any of its addresses. Returns no value and sets `why` if that fails.
[[nodiscard]] inline std::optional<Socket> connect_to(const std::string& host, int port, Moment deadline,
                                                      std::string& why) {
  const auto addresses = addresses_of(host, port, deadline, why);
  return connect_first(addresses, deadline, why);
}

enum class Transfer : std::uint8_t { done, late, closed };  // how sending or receiving ended

// Sends all of `bytes`.
[[nodiscard]] inline Transfer send_all(const Socket& s, std::span<const std::byte> bytes, Moment deadline) {
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
// Fills `bytes`.
[[nodiscard]] inline Transfer receive_all(const Socket& s, std::span<std::byte> bytes, Moment deadline) {
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
