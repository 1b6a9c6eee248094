// SPDX-License-Identifier: MIT
#pragma once

#include <malloc.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>

// ZeroMQ's handles as objects that release their resources.
namespace tutti::zeromq {

[[noreturn]] inline void fail_zmq(const std::string& what) {
  fail<CommunicationError>("ZeroMQ", {"to ", what}, zmq_strerror(zmq_errno()));
}

// Keeps the memory of sent messages for later messages. Otherwise the system maps and clears new memory for each
// message of a megabyte, which takes as long as copying the message. Affects the whole process.
inline void keep_message_memory() noexcept {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 512 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
#endif
}

class Context {
 public:
  // threads: the number of I/O threads.
  explicit Context(int threads) : handle_(zmq_ctx_new()) {
    if (handle_ == nullptr) fail_zmq("start");
    zmq_ctx_set(handle_, ZMQ_IO_THREADS, threads);
    keep_message_memory();
  }
  // Waits until all sent messages are transmitted or dropped. Afterwards ZeroMQ does not read the senders' memory.
  ~Context() {
    while (zmq_ctx_term(handle_) != 0 && zmq_errno() == EINTR) {
    }
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  [[nodiscard]] void* get() const noexcept { return handle_; }

 private:
  void* handle_;
};

class Socket {
 public:
  Socket(const Context& context, int type) : handle_(zmq_socket(context.get(), type)) {
    if (handle_ == nullptr) fail_zmq("open a socket");
  }
  Socket(Socket&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (handle_ != nullptr) zmq_close(handle_);
  }
  [[nodiscard]] void* get() const noexcept { return handle_; }

  void set(int option, int value) { set_bytes(option, &value, sizeof value); }
  void set(int option, std::int64_t value) { set_bytes(option, &value, sizeof value); }
  void set(int option, std::string_view value) { set_bytes(option, value.data(), value.size()); }

 private:
  void set_bytes(int option, const void* value, std::size_t size) {
    if (zmq_setsockopt(handle_, option, value, size) != 0)
      fail_zmq("set option " + std::to_string(option) + " of a socket");
  }
  void* handle_;
};

// One part of a message.
class Part {
 public:
  Part() noexcept { zmq_msg_init(&m_); }
  Part(Part&& o) noexcept {
    zmq_msg_init(&m_);
    zmq_msg_move(&m_, &o.m_);
  }
  Part& operator=(Part&& o) noexcept {
    zmq_msg_move(&m_, &o.m_);
    return *this;
  }
  ~Part() { zmq_msg_close(&m_); }
  [[nodiscard]] zmq_msg_t* get() noexcept { return &m_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(zmq_msg_data(&m_)), zmq_msg_size(&m_)};
  }
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
  }
  [[nodiscard]] bool more() const noexcept { return zmq_msg_more(&m_) != 0; }
  // Returns a property of the sender's connection, or an empty text.
  [[nodiscard]] std::string property(const char* name) noexcept {
    const char* const value = zmq_msg_gets(&m_, name);
    return value == nullptr ? "" : value;
  }

 private:
  mutable zmq_msg_t m_;
};

// A received frame: its head and its data.
class Message {
 public:
  [[nodiscard]] std::span<const std::byte> head() const noexcept { return head_.bytes(); }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_.bytes(); }

 private:
  friend class WorkerEnd;
  friend class ServerEnd;
  // Reads the remaining parts of a message. A message that has more parts than a frame becomes empty.
  void read(void* socket) {
    bool more = receive(socket, head_);
    if (more) more = receive(socket, data_);
    for (bool first = true; more; first = false) {
      Part rest;
      more = receive(socket, rest);
      if (first) {
        head_ = Part();
        data_ = Part();
      }
    }
  }
  static bool receive(void* socket, Part& to) {
    while (zmq_msg_recv(to.get(), socket, ZMQ_DONTWAIT) < 0)
      if (zmq_errno() != EINTR) return false;
    return to.more();
  }
  Part head_, data_;
};

// Sends head and data without waiting. Returns false if the peer is not connected.
inline bool send_frame(void* socket, std::string_view to, std::span<const std::byte> head,
                       std::span<const std::byte> data, ps::PendingSends* kept) {
  const auto put = [&](const void* bytes, std::size_t n, bool more) {
    int rc = -1;
    while ((rc = zmq_send(socket, bytes, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0))) < 0 && zmq_errno() == EINTR) {
    }
    return rc >= 0;
  };
  if (!to.empty() && !put(to.data(), to.size(), true)) return false;
  if (!put(head.data(), head.size(), !data.empty())) return false;
  if (data.empty()) return true;
  if (kept == nullptr) return put(data.data(), data.size(), false);
  zmq_msg_t m;
  kept->begin();
  // ZeroMQ's own thread reads the data, and calls back when it has finished.
  if (zmq_msg_init_data(
          &m, const_cast<std::byte*>(data.data()), data.size(),
          [](void*, void* hint) { static_cast<ps::PendingSends*>(hint)->end(); }, kept) != 0) {
    kept->end();
    return false;
  }
  while (zmq_msg_send(&m, socket, ZMQ_DONTWAIT) < 0)
    if (zmq_errno() != EINTR) {
      zmq_msg_close(&m);
      return false;
    }
  return true;
}

// Receives the events of a socket's connections.
class Monitor {
 public:
  struct Event {
    int event = 0;
    std::uint32_t value = 0;
  };
  // more: events in addition to the ends of connections and of handshakes.
  Monitor(const Context& context, Socket& of, const std::string& name, int more = 0) : socket_(context, ZMQ_PAIR) {
    const std::string at = "inproc://monitor-" + name;
    if (zmq_socket_monitor(of.get(), at.c_str(),
                           ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | more) != 0)
      fail_zmq("watch a socket");
    socket_.set(ZMQ_LINGER, 0);
    if (zmq_connect(socket_.get(), at.c_str()) != 0) fail_zmq("watch a socket");
  }
  [[nodiscard]] void* get() const noexcept { return socket_.get(); }
  [[nodiscard]] std::optional<Event> next() {
    Part event, address;
    if (zmq_msg_recv(event.get(), socket_.get(), ZMQ_DONTWAIT) < 0) return {};
    if (event.more()) zmq_msg_recv(address.get(), socket_.get(), ZMQ_DONTWAIT);
    if (event.bytes().size() < 6) return Event{};
    std::uint16_t number = 0;
    Event said;
    std::memcpy(&number, event.bytes().data(), sizeof number);
    std::memcpy(&said.value, event.bytes().data() + 2, sizeof said.value);
    said.event = number;
    return said;
  }

 private:
  Socket socket_;
};

// Ends a poll. Any thread may call wake().
class Waker {
 public:
  Waker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_.get() < 0) fail<DeviceError>("ZeroMQ", "a file descriptor", std::strerror(errno));
  }
  [[nodiscard]] int get() const noexcept { return fd_.get(); }
  void wake() noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof one);
  }
  // Returns true if wake() was called since the last call.
  bool take() noexcept {
    std::uint64_t count = 0;
    return ::read(fd_.get(), &count, sizeof count) > 0;
  }

 private:
  io::Descriptor fd_;
};

}  // namespace tutti::zeromq
