// SPDX-License-Identifier: MIT
#include "tools/launch/host/control_socket.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

#include "tools/launch/host/process.hpp"

namespace tutti::launch {

ProcessSocket ControlSocket::open() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail<Error>("control channel", "a pair of sockets", error_text(errno));
  fd_ = io::Descriptor(ends[0]);
  waiting_.clear();
  return ProcessSocket(io::Descriptor(ends[1]));
}

void ControlSocket::close() {
  fd_ = io::Descriptor();
  waiting_.clear();
  bytes_ = 0;
}

void ControlSocket::put(std::string frame) {
  if (fd_.get() < 0) return;
  bytes_ += frame.size();
  waiting_.push_back(std::move(frame));
  if (bytes_ > (std::size_t{8} << 20)) close();
}

void ControlSocket::send() {
  while (fd_.get() >= 0 && !waiting_.empty()) {
    const ssize_t n = ::send(fd_.get(), waiting_.front().data(), waiting_.front().size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
    if (n < 0) return close();
    bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
}

}  // namespace tutti::launch
