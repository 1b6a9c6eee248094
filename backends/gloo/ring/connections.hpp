// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/device.hpp>
#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// The TCP connections of a rank with its neighbours in a ring, for sums: it sends to the rank before it and receives
// from the rank after it. The thread that sums sends and receives itself, and TCP chooses the sizes of its buffers.
// Gloo's own connections cost more processor time: a second thread handles their events, and Gloo limits the send
// buffer to 64 KiB.
class RingConnections {
 public:
  // address: of this host, on which it listens for its neighbour.
  RingConnections(int rank, int size, const std::string& address)
      : rank_(rank), size_(size), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), secret_(new_secret()) {
    if (wake_.get() < 0) detail::no_device(address, tcp::error_text(errno));
    listener_ = detail::listen_at(address);
  }
  RingConnections(const RingConnections&) = delete;
  RingConnections& operator=(const RingConnections&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  // Publishes the address of this rank. key: prefix of the group's keys in the store, which end with a rank's number.
  void publish(KeyStore& store, const std::string& key) const {
    tcp::Address a;
    a.size = sizeof a.bytes;
    if (::getsockname(listener_.get(), a.data(), &a.size) != 0) throw ::gloo::IoException(tcp::error_text(errno));
    store.publish(key + std::to_string(rank_),
                  secret_ + " " + std::to_string(tcp::port_of(listener_)) + " " + a.text());
  }
  // A collective call after publish(). names: the ranks' names for messages. Throws a CommunicationError that names the
  // neighbour that has not arrived in time. After stop() it may throw any exception.
  void connect(KeyStore& store, const std::string& key, const std::vector<std::string>& names, const Deadline& deadline,
               const std::atomic<bool>& stopped) {
    const std::string& before = names[static_cast<std::size_t>((rank_ + size_ - 1) % size_)];
    const auto text = store.lookup(key + std::to_string((rank_ + size_ - 1) % size_), deadline, stopped);
    check();
    if (!text) fail<CommunicationError>("gloo", {"a message from ", before, " in time"}, "no message");
    const std::size_t first = text->find(' '), second = text->find(' ', first + 1);
    std::string why = "an invalid message", secret = text->substr(0, first);
    std::vector<tcp::Address> found;
    if (second != std::string::npos && secret.size() == secret_.size())
      found = tcp::SystemLookup{}(text->substr(second + 1), std::atoi(text->c_str() + first), true, why);
    if (found.empty()) fail<CommunicationError>("gloo", {"the address of ", before}, why);
    dial(found.front(), before);
    std::vector<Candidate> candidates;
    std::string* left = &secret;  // to send
    while (left != nullptr || in_.get() < 0) {
      if (deadline.is_over()) {
        const std::string& late = left != nullptr ? before : names[static_cast<std::size_t>((rank_ + 1) % size_)];
        fail<CommunicationError>("gloo", {"a connection with ", late, " in time"}, "no connection");
      }
      std::vector<pollfd> polled{{wake_.get(), POLLIN, 0},
                                 {left != nullptr ? out_.get() : -1, POLLOUT, 0},
                                 {in_.get() < 0 ? listener_.get() : -1, POLLIN, 0}};
      for (const Candidate& c : candidates) polled.push_back({c.socket.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), milliseconds(deadline));
      check();
      if (polled[1].revents != 0 && introduce(*left, before)) left = nullptr;
      for (std::size_t i = candidates.size(); i-- > 0;)
        if (polled[i + 3].revents != 0 && admit(candidates[i]))
          candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(i));
      if (polled[2].revents != 0) accept_into(candidates);
    }
    const std::lock_guard lock(mutex_);
    listener_ = tcp::Socket();
  }

  // Sends some of the bytes and returns how many; 0 if it would have to wait. more: the caller sends more at once.
  // Throws ::gloo::IoException.
  [[nodiscard]] std::size_t send(std::span<const std::byte> bytes, bool more = false) {
    const ssize_t n = ::send(out_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno != EAGAIN && errno != EINTR) end("sending", tcp::error_text(errno));
    return 0;
  }
  // Receives some bytes, as send().
  [[nodiscard]] std::size_t receive(std::span<std::byte> bytes) {
    const ssize_t n = ::recv(in_.get(), bytes.data(), bytes.size(), 0);
    if (n > 0) return static_cast<std::size_t>(n);
    if (n == 0) end("receiving", "the peer has closed the connection");
    if (errno != EAGAIN && errno != EINTR) end("receiving", tcp::error_text(errno));
    return 0;
  }
  // Waits until it can send, if `sends`, or receive this many bytes, if there are any. More bytes for each wake-up save
  // processor time. Throws ::gloo::IoException at the deadline and after stop().
  void wait(bool sends, std::size_t receives, const Deadline& deadline) {
    check();
    if (deadline.is_over()) throw ::gloo::IoException("timed out");
    if (receives > 0 && receives != least_) {
      const int bytes = static_cast<int>(receives);
      if (::setsockopt(in_.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0) least_ = receives;
    }
    std::array<pollfd, 3> polled{
        {{wake_.get(), POLLIN, 0}, {receives > 0 ? in_.get() : -1, POLLIN, 0}, {sends ? out_.get() : -1, POLLOUT, 0}}};
    ::poll(polled.data(), polled.size(), milliseconds(deadline));
    check();
  }
  // Throws ::gloo::IoException after stop().
  void check() const {
    if (stopped_.load(std::memory_order_acquire)) throw ::gloo::IoException("interrupted");
  }

  // Makes current and later calls throw, here and on the neighbours. Any thread may call it.
  void stop() noexcept {
    stopped_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
    const std::lock_guard lock(mutex_);
    for (const tcp::Socket* s : {&out_, &in_})
      if (s->get() >= 0) ::shutdown(s->get(), SHUT_RDWR);
  }

 private:
  // A connection whose peer has not proven yet that it knows the secret.
  struct Candidate {
    tcp::Socket socket;
    std::string said;
  };

  [[nodiscard]] static int milliseconds(const Deadline& deadline) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline.next_wait()).count();
    return static_cast<int>(std::clamp<std::int64_t>(ms, 0, 1000));
  }
  [[noreturn]] void end(const char* what, const std::string& why) const {
    check();
    throw ::gloo::IoException(std::string(what) + ": " + why);
  }
  void dial(const tcp::Address& a, const std::string& name) {
    tcp::Socket s(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(s.get(), a.get(), a.size) != 0 && errno != EINPROGRESS)
      fail<CommunicationError>("gloo", {"a connection with ", name}, tcp::error_text(errno));
    const std::lock_guard lock(mutex_);
    out_ = std::move(s);
  }
  // Sends the neighbour's secret, which fits the buffer of a new connection. Returns whether it was sent.
  [[nodiscard]] bool introduce(const std::string& secret, const std::string& name) {
    const ssize_t n = ::send(out_.get(), secret.data(), secret.size(), MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(secret.size())) return true;
    if (n >= 0 || (errno != EAGAIN && errno != EINTR))
      fail<CommunicationError>("gloo", {"a connection with ", name}, tcp::error_text(n < 0 ? errno : EPIPE),
                               "GLOO_SOCKET_IFNAME names the network interface to use");
    return false;
  }
  void accept_into(std::vector<Candidate>& candidates) const {
    constexpr std::size_t most = 256;  // the oldest one must leave for a further one
    tcp::Socket s(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s.get() < 0) return;
    if (candidates.size() == most) candidates.erase(candidates.begin());
    candidates.push_back({std::move(s), {}});
  }
  // Returns whether the candidate is no longer one: it became the neighbour, or was refused.
  [[nodiscard]] bool admit(Candidate& c) {
    std::array<char, 256> room{};
    const ssize_t n = ::recv(c.socket.get(), room.data(), std::min(room.size(), secret_.size() - c.said.size()), 0);
    if (n < 0) return errno != EAGAIN && errno != EINTR;
    c.said.append(room.data(), static_cast<std::size_t>(n));
    if (n > 0 && c.said.size() < secret_.size()) return false;
    if (c.said == secret_ && in_.get() < 0) {
      const std::lock_guard lock(mutex_);
      in_ = std::move(c.socket);
    }
    return true;
  }

  int rank_, size_;
  io::Descriptor wake_;
  std::string secret_;
  std::mutex mutex_;  // for stop() while the sockets are set
  tcp::Socket listener_, out_, in_;
  std::size_t least_ = 1;  // bytes for which the kernel wakes wait()
  std::atomic<bool> stopped_{false};
};

}  // namespace tutti
