// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/io/file.hpp>

// The channel between a process of the job and its agent, see tutti/cluster/channel/control_channel.hpp. The agent
// forwards frames to the arbiter in the launcher, and back, in lines "control worker 0 <base64>".
namespace tutti::launch {

// The process's end of the channel, which the launcher's side holds until the process has been started.
class ProcessSocket {
 public:
  ProcessSocket() = default;
  explicit ProcessSocket(io::Descriptor fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int get() const noexcept { return fd_.get(); }
  [[nodiscard]] std::string number() const { return fd_.get() < 0 ? "" : std::to_string(fd_.get()); }

 private:
  io::Descriptor fd_;
};

// The agent's end of the channel.
class ControlSocket {
 public:
  [[nodiscard]] ProcessSocket open();
  void close();

  // Returns an entry for poll(). full: does not wait for input.
  [[nodiscard]] pollfd wanted(bool full) const noexcept {
    return {fd_.get(), static_cast<short>((full ? 0 : POLLIN) | (waiting_.empty() ? 0 : POLLOUT)), 0};
  }
  // Sends a frame to the process. Closes the channel of a process that does not read.
  void put(std::string frame);
  void send();
  // Reads the frames that the process has sent, and calls f(std::string_view frame) for each.
  template <class F>
  void read(F&& f) {
    for (int most = 64; fd_.get() >= 0 && most > 0; --most) {
      std::string frame(control::longest_frame + 1, '\0');
      const ssize_t n = ::recv(fd_.get(), frame.data(), frame.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0 || static_cast<std::size_t>(n) > control::longest_frame) return close();
      f(std::string_view(frame).substr(0, static_cast<std::size_t>(n)));
    }
  }

 private:
  io::Descriptor fd_;
  std::deque<std::string> waiting_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::launch
