// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

// Carries the messages of control_messages.hpp in frames. A long message takes several frames.
namespace tutti::control {

inline constexpr std::size_t longest_frame = std::size_t{32} << 10;

// Splits a message into frames, which must be sent in order. The first byte of a frame says whether more follow.
template <class F>  // f(std::string_view frame)
void split_message(std::string_view bytes, F&& f) {
  std::string frame;
  do {
    const std::string_view part = bytes.substr(0, longest_frame - 1);
    bytes.remove_prefix(part.size());
    frame.assign(1, bytes.empty() ? '\0' : '\1');
    f(std::string_view(frame.append(part)));
  } while (!bytes.empty());
}

// Joins frames to messages again. Throws CommunicationError for frames that split_message() did not write.
class MessageAssembler {
 public:
  // Returns the bytes of a message if this frame was its last.
  [[nodiscard]] std::optional<std::string> take(std::string_view frame, std::size_t longest) {
    const bool right = !frame.empty() && frame.size() <= longest_frame && (frame[0] == '\0' || frame[0] == '\1');
    if (!right || bytes_.size() + frame.size() - 1 > longest) {
      bytes_.clear();
      fail<CommunicationError>("control channel", "a message frame", "invalid bytes",
                               "use the same version of all programs of a job");
    }
    bytes_.append(frame.substr(1));
    if (frame[0] == '\1') return {};
    return std::exchange(bytes_, {});
  }

 private:
  std::string bytes_;
};

// A process's connection to the arbiter over any carrier. Several threads may call send(), and at the same time one
// thread may call receive().
class FrameLink {
 public:
  FrameLink() = default;
  FrameLink(const FrameLink&) = delete;
  FrameLink& operator=(const FrameLink&) = delete;
  virtual ~FrameLink() = default;
  // Throws CommunicationError if the other end is gone or accepts no bytes for seconds.
  virtual void send(std::string_view frame) = 0;
  // Returns the next frame, or no value after `wait` or wake(). Throws CommunicationError if the other end is gone.
  [[nodiscard]] virtual std::optional<std::string> receive(std::chrono::milliseconds wait) = 0;
  // Makes the current or the next receive() return.
  virtual void wake() = 0;
  // The receiving thread calls it if the arbiter has answered no heartbeat within the rank time-out. Throws
  // CommunicationError if the link has no other way to detect that the arbiter has ended.
  virtual void unanswered() {}
};

// A link over a socket that keeps frames apart (SOCK_SEQPACKET), such as the one that tutti-launch gives to a process.
class SocketLink : public FrameLink {
 public:
  explicit SocketLink(io::Descriptor socket) : socket_(std::move(socket)) {
    const timeval most{5, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    ::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      fail<Error>("control channel", "a pipe", std::generic_category().message(errno));
    wake_read_ = io::Descriptor(ends[0]);
    wake_write_ = io::Descriptor(ends[1]);
  }

  void send(std::string_view frame) override {
    ssize_t n = -1;
    do n = ::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n != static_cast<ssize_t>(frame.size())) gone();
  }

  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds wait) override {
    std::array<pollfd, 2> fds{{{socket_.get(), POLLIN, 0}, {wake_read_.get(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), static_cast<int>(wait.count())) <= 0) return {};
    if (fds[1].revents != 0) {
      std::array<char, 64> some{};
      while (::read(wake_read_.get(), some.data(), some.size()) > 0) {
      }
    }
    if (fds[0].revents == 0) return {};
    std::string frame(longest_frame + 1, '\0');
    const ssize_t n = ::recv(socket_.get(), frame.data(), frame.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return {};
    if (n <= 0) gone();
    frame.resize(static_cast<std::size_t>(n));
    return frame;
  }

  void wake() override {
    // The result does not matter: a full pipe wakes the receiver too.
    [[maybe_unused]] const ssize_t n = ::write(wake_write_.get(), "", 1);
  }

 private:
  [[noreturn]] static void gone() {
    fail<CommunicationError>("control channel", "a connection to the job's arbiter", "the end of the connection",
                             "check whether tutti-launch still runs");
  }

  io::Descriptor socket_, wake_read_, wake_write_;
};

// Returns the socket with the number in TUTTI_CONTROL to the first caller in this process. Returns null if there is no
// such socket, for example if another program started this process and did not pass on its descriptors.
[[nodiscard]] inline std::unique_ptr<FrameLink> link_of_environment() {
  const char* text = std::getenv("TUTTI_CONTROL");
  const auto number = tutti::detail::number_between(text == nullptr ? "" : text, 3, 1 << 24);
  if (!number) return nullptr;
  const auto option = [&](int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(*number, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_SEQPACKET) return nullptr;
  // Programs that this process starts do not get the socket, see SocketLink.
  static std::atomic_flag taken;
  if (taken.test_and_set()) return nullptr;
  return std::make_unique<SocketLink>(io::Descriptor(*number));
}

}  // namespace tutti::control
