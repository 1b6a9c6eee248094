// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

namespace tutti::testing {

// An arbiter in this process. Like tutti-launch's agents, it carries frames between the arbiter and channels over pairs
// of sockets.
class ArbiterHarness {
 public:
  explicit ArbiterHarness(const control::ArbiterOptions& o) : service_(o) {
    thread_ = std::thread([this] { run(); });
  }
  ~ArbiterHarness() {
    stopping_ = true;
    thread_.join();
  }
  // Opens a channel for the next connection. The number of the first connection is 0.
  [[nodiscard]] std::unique_ptr<ControlChannel> channel() {
    return std::make_unique<ControlChannel>(std::make_unique<control::SocketLink>(socket()));
  }
  // Returns the socket of such a connection, for a channel in another process.
  [[nodiscard]] io::Descriptor socket() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
      fail<Error>("test", "a pair of sockets", "none");
    const std::lock_guard lock(mutex_);
    sockets_.emplace_back(ends[0]);
    return io::Descriptor(ends[1]);
  }
  void close(std::size_t connection) {
    const std::lock_guard lock(mutex_);
    sockets_[connection] = io::Descriptor();
  }
  void ended(std::size_t connection) {
    const std::lock_guard lock(mutex_);
    service_.ended(connection, "SIGKILL");
    send();
  }
  // Calls f(Arbiter&) and returns its result.
  template <class F>
  auto ask(F&& f) {
    const std::lock_guard lock(mutex_);
    return f(service_.arbiter());
  }
  // Returns whether the process of that connection has asked for admission.
  [[nodiscard]] bool knows(control::ConnectionId connection) {
    const std::lock_guard lock(mutex_);
    return service_.knows(connection);
  }
  // Forks after this object's thread has begun, and while it allocates no memory. Otherwise the allocator of
  // AddressSanitizer would stay locked in the child.
  [[nodiscard]] pid_t fork() {
    while (!began_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex_);
    return ::fork();
  }
  void deaf(bool yes) { deaf_ = yes; }

 private:
  void run() {
    began_ = true;
    while (!stopping_) {
      {
        const std::lock_guard lock(mutex_);
        for (std::size_t connection = 0; connection < sockets_.size() && !deaf_; ++connection) {
          std::string frame(control::longest_frame, '\0');
          const ssize_t n = ::recv(sockets_[connection].get(), frame.data(), frame.size(), MSG_DONTWAIT);
          if (n > 0) service_.receive(connection, frame.substr(0, static_cast<std::size_t>(n)), control::now());
        }
        if (!deaf_) service_.tick(control::now());
        send();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void send() {
    service_.send([&](control::ConnectionId connection, std::string_view frame) {
      (void)::send(sockets_[connection].get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }

  std::mutex mutex_;
  control::ArbiterService service_;
  std::vector<io::Descriptor> sockets_;
  std::atomic<bool> stopping_{false}, deaf_{false};
  std::atomic<bool> began_{false};
  std::thread thread_;
};

}  // namespace tutti::testing
