// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/io/file.hpp>

// Passes a window from one process to another: a process requests it from the owner over a Unix socket. The socket has
// a random abstract name, so there is no file, and both sides check the user of the other process.
namespace tutti {

namespace detail {

inline constexpr std::size_t server_name_digits = 32;  // hexadecimal digits

[[nodiscard]] inline bool is_server_name(std::string_view name) noexcept {
  return name.size() == server_name_digits && name.find_first_not_of("0123456789abcdef") == name.npos;
}
// Fills `a` with the abstract address of `name` and returns its length.
[[nodiscard]] inline socklen_t abstract_address(std::string_view name, sockaddr_un& a) noexcept {
  static constexpr std::string_view prefix = "tutti-window-";
  a = {};
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path + 1, prefix.data(), prefix.size());
  std::memcpy(a.sun_path + 1 + prefix.size(), name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + prefix.size() + name.size());
}
// Returns whether the process at the other end belongs to this user. If not, sets `whose`.
[[nodiscard]] inline bool is_own_user(int fd, std::string& whose) {
  ucred other{};
  socklen_t size = sizeof other;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid()) return true;
  whose = "a process of user " + std::to_string(other.uid);
  return false;
}

// Sends a byte and, if `fd` is valid, also this descriptor.
inline void send_descriptor(int socket, int fd) noexcept {
  char said = fd >= 0 ? 'y' : 'n';
  iovec v{&said, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  if (fd >= 0) {
    m.msg_control = control.data();
    m.msg_controllen = control.size();
    cmsghdr* const h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(h), &fd, sizeof fd);
  }
  (void)::sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}
// Returns no descriptor and sets `why` if none was received.
[[nodiscard]] inline io::Descriptor receive_descriptor(int socket, std::string& why) {
  char said = 0;
  iovec v{&said, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  m.msg_control = control.data();
  m.msg_controllen = control.size();
  ssize_t n = 0;
  do n = ::recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  io::Descriptor fd;
  // Every received descriptor must be closed, even if it is not expected.
  for (cmsghdr* h = n > 0 ? CMSG_FIRSTHDR(&m) : nullptr; h != nullptr; h = CMSG_NXTHDR(&m, h)) {
    int one = -1;
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS || h->cmsg_len != CMSG_LEN(sizeof one)) continue;
    std::memcpy(&one, CMSG_DATA(h), sizeof one);
    fd = io::Descriptor(one);
  }
  if (n < 0)
    why = std::string("no answer from its owner: ") + std::strerror(errno);
  else if (n == 0)
    why = "its owner closed the connection";
  else if (fd.get() < 0 || said != 'y' || (m.msg_flags & MSG_CTRUNC) != 0)
    why = said == 'n' ? "its owner has no such window" : "an answer without a window";
  if (!why.empty()) fd = io::Descriptor();
  return fd;
}

}  // namespace detail

// Serves requests for the windows of a process, on its own thread.
class WindowServer {
 public:
  // Calls `answer` with the descriptor of the window with this number, or with -1. Runs on the server's thread. The
  // descriptor must stay open while `answer` runs. The constructor throws DeviceError if the socket cannot be made.
  using FindDescriptor = std::function<void(std::uint64_t number, const std::function<void(int descriptor)>& answer)>;
  explicit WindowServer(FindDescriptor find) : find_(std::move(find)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    static constexpr char digits[] = "0123456789abcdef";
    std::random_device device;
    while (name_.size() < detail::server_name_digits)
      for (std::uint32_t n = device(), i = 0; i < 8; ++i, n >>= 4) name_ += digits[n & 15U];
    sockaddr_un at{};
    const socklen_t size = detail::abstract_address(name_, at);
    socket_ = io::Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (stop_.get() < 0 || socket_.get() < 0 || ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        ::listen(socket_.get(), 256) != 0)
      fail<DeviceError>("window", "a Unix socket", std::strerror(errno));
    thread_ = start_thread("window", [this] { run(); });
  }
  ~WindowServer() {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  WindowServer(const WindowServer&) = delete;
  WindowServer& operator=(const WindowServer&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // Returns the number of refused processes of other users.
  [[nodiscard]] std::uint64_t sent_away() const noexcept { return sent_away_; }

  // Requests a window of the process with this name. Returns no descriptor and sets `why` if that fails. Waits at most
  // two seconds.
  [[nodiscard]] static io::Descriptor ask(std::string_view name, std::uint64_t number, std::string& why) {
    why.clear();
    const io::Descriptor s = connect(name, why);
    if (s.get() < 0) return {};
    if (::send(s.get(), &number, sizeof number, MSG_NOSIGNAL) != ssize_t{sizeof number}) {
      why = std::string("cannot send a request to its owner: ") + std::strerror(errno);
      return {};
    }
    return detail::receive_descriptor(s.get(), why);
  }
  // Returns whether the process still serves requests.
  [[nodiscard]] static bool is_open(std::string_view name) {
    std::string why;
    return connect(name, why).get() >= 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most_clients = 64;
  struct Client {
    io::Descriptor socket;
    Clock::time_point until;
  };

  static io::Descriptor connect(std::string_view name, std::string& why) {
    if (!detail::is_server_name(name)) {
      why = "the name of its server is invalid";
      return {};
    }
    sockaddr_un at{};
    const socklen_t size = detail::abstract_address(name, at);
    io::Descriptor s(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const timeval two_seconds{2, 0};
    if (s.get() < 0 || ::setsockopt(s.get(), SOL_SOCKET, SO_RCVTIMEO, &two_seconds, sizeof two_seconds) != 0 ||
        ::setsockopt(s.get(), SOL_SOCKET, SO_SNDTIMEO, &two_seconds, sizeof two_seconds) != 0) {
      why = std::string("cannot open a Unix socket: ") + std::strerror(errno);
      return {};
    }
    if (::connect(s.get(), reinterpret_cast<sockaddr*>(&at), size) != 0) {
      why = std::string("cannot connect to its owner") + (errno == ECONNREFUSED
                                                              ? ": it has ended, or is in another container"
                                                              : std::string(": ") + std::strerror(errno));
      return {};
    }
    if (!detail::is_own_user(s.get(), why)) return {};
    return s;
  }

  void run() noexcept {
    std::vector<Client> clients;
    std::vector<pollfd> polled;
    for (;;) {
      polled.assign(1, {stop_.get(), POLLIN, 0});
      // If there are too many clients, further connections wait in the socket's queue.
      polled.push_back({clients.size() < most_clients ? socket_.get() : -1, POLLIN, 0});
      for (const Client& g : clients) polled.push_back({g.socket.get(), POLLIN, 0});
      (void)::poll(polled.data(), polled.size(), clients.empty() ? -1 : 1000);
      if (polled[0].revents != 0) return;
      const auto now = Clock::now();
      for (std::size_t i = 0; i < clients.size(); ++i)
        if (polled[i + 2].revents != 0) {
          serve(clients[i].socket.get());
          clients[i].until = now;
        }
      std::erase_if(clients, [&](const Client& g) { return g.until <= now; });
      if (polled[1].revents == 0) continue;
      io::Descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      std::string whose;
      if (client.get() < 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for example because no descriptor is free
      else if (detail::is_own_user(client.get(), whose))
        clients.push_back({std::move(client), now + std::chrono::seconds(10)});
      else
        ++sent_away_;
    }
  }
  void serve(int client) noexcept {
    std::uint64_t number = 0;
    if (::recv(client, &number, sizeof number, MSG_TRUNC) != ssize_t{sizeof number}) return;
    find_(number, [client](int fd) { detail::send_descriptor(client, fd); });
  }

  FindDescriptor find_;
  std::string name_;
  io::Descriptor stop_, socket_;
  std::atomic<std::uint64_t> sent_away_{0};
  std::thread thread_;
};

}  // namespace tutti
