// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/secure/buffer.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/threads/threads.hpp>

// Gloo's interfaces over encrypted streams: the connections of two ranks, one in each direction.
namespace tutti::detail {

// The address at which a rank listens. All addresses have the same number of bytes.
class SecureAddress final : public ::gloo::transport::Address {
 public:
  explicit SecureAddress(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] std::string str() const override { return text_; }
  [[nodiscard]] std::vector<char> bytes() const override {
    std::vector<char> b(text_.begin(), text_.end());
    b.resize(kMaxByteSize);
    return b;
  }

 private:
  std::string text_;  // such as "192.168.0.1 45123"
};

// A message on the wire is this header and the bytes of the message.
struct SecureHeader {
  std::uint64_t slot = 0, bytes = 0;
};

// Sends with one thread and receives with another one, so that encryption, decryption and sums run at the same time. A
// received message waits until its receiver has posted the buffer for it; meanwhile TCP holds the sender back.
class SecurePair final : public ::gloo::transport::Pair {
 public:
  // Moves the posted buffer for a message of `peer` to `to`. Returns false if there is none yet. Called with the mutex.
  using Take = std::function<bool(int peer, std::uint64_t slot, SecureMessage& to)>;
  // Fails the posted buffers that no rank can fill any more. Called with the mutex.
  using Failed = std::function<void()>;

  SecurePair(int peer, std::mutex& mutex, SecureAddress address, Take take, Failed failed)
      : peer_(peer), mutex_(mutex), address_(std::move(address)), take_(std::move(take)), failed_(std::move(failed)) {}
  // Completes the messages that are being sent, tells the peer, and ends the connections.
  ~SecurePair() override {
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
      changed_.notify_all();
    }
    if (sender_.joinable()) sender_.join();
    close();
    if (receiver_.joinable()) receiver_.join();
  }
  SecurePair(const SecurePair&) = delete;
  SecurePair& operator=(const SecurePair&) = delete;

  // ---- Gloo's interface ----
  [[nodiscard]] const ::gloo::transport::Address& address() const override { return address_; }
  // Connects to the peer, and waits until the peer has connected. The group sets how().
  void connect(const std::vector<char>& bytes) override {
    try {
      const std::string text(bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0'));
      const tcp::Moment deadline = how_.deadline();
      auto out = how_.encrypt(dial(text, deadline));
      complete_handshake(*out, deadline, [this] { return closed(); });
      std::unique_lock lock(mutex_);
      out_ = std::move(out);
      sender_ = start_thread("gloo", [this] { send_messages(); });
      while (in_ == nullptr && error_.empty())
        if (changed_.wait_until(lock, deadline) == std::cv_status::timeout)
          throw ::gloo::IoException("no encrypted connection from it in time");
      if (!error_.empty()) throw ::gloo::IoException(error_);
    } catch (const RefusedStream& e) {
      throw ::gloo::IoException(e.got);
    } catch (const Error& e) {
      throw ::gloo::IoException(e.what());
    }
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    fail("the end of the group");
  }
  void setSync(bool, bool) override { unsupported(); }
  std::unique_ptr<::gloo::transport::Buffer> createSendBuffer(int, void*, std::size_t) override { unsupported(); }
  std::unique_ptr<::gloo::transport::Buffer> createRecvBuffer(int, void*, std::size_t) override { unsupported(); }
  void send(::gloo::transport::UnboundBuffer* buffer, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    buffer->send(peer_, slot, offset, bytes);
  }
  void recv(::gloo::transport::UnboundBuffer* buffer, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    buffer->recv(peer_, slot, offset, bytes);
  }

  // ---- called by the group ----
  struct How {
    std::function<tcp::Moment()> deadline;                              // of connect()
    std::function<std::unique_ptr<SecureStream>(tcp::Socket)> encrypt;  // begins a stream to the peer
  };
  void how(How h) { how_ = std::move(h); }
  // Takes the stream of the peer after its handshake. Returns false if there is already one.
  [[nodiscard]] bool admit(std::unique_ptr<SecureStream> in) {
    const std::lock_guard lock(mutex_);
    if (in_ != nullptr || !error_.empty()) return false;
    in_ = std::move(in);
    receiver_ = start_thread("gloo", [this] { receive_messages(); });
    changed_.notify_all();
    return true;
  }
  // The following functions need the mutex.
  [[nodiscard]] bool is_admitted() const noexcept { return in_ != nullptr; }
  [[nodiscard]] const std::string& error() const noexcept { return error_; }  // empty while the pair works
  void enqueue(SecureMessage m) {
    queue_.push_back(std::move(m));
    changed_.notify_all();
  }
  // Call after a buffer was posted.
  void look() { changed_.notify_all(); }
  // Forgets messages of the buffer. Returns false, and ends the connections, if a thread uses it.
  [[nodiscard]] bool forget(const SecureBuffer& buffer) {
    std::erase_if(queue_, [&](const SecureMessage& m) { return m.buffer == &buffer; });
    if (sending_ != &buffer && receiving_ != &buffer) return true;
    fail("a message that was given up");
    return false;
  }
  void wait(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }

 private:
  [[noreturn]] static void unsupported() {
    throw ::gloo::InvalidOperationException("encrypted connections support unbound buffers only");
  }
  [[nodiscard]] bool closed() {
    const std::lock_guard lock(mutex_);
    return !error_.empty();
  }
  [[nodiscard]] tcp::Socket dial(const std::string& text, tcp::Moment deadline) {
    std::string why = "an invalid address";
    const std::size_t space = text.find(' ');
    const auto found = space == std::string::npos
                           ? std::vector<tcp::Address>()
                           : tcp::SystemLookup{}(text.substr(0, space), std::atoi(text.c_str() + space), true, why);
    if (found.empty()) throw ::gloo::IoException(why);
    const tcp::Address& a = found.front();
    tcp::Socket s(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(s.get(), a.get(), a.size) == 0) return s;
    if (errno != EINPROGRESS) throw ::gloo::IoException(tcp::error_text(errno));
    constexpr std::chrono::milliseconds slice{50};
    while (!tcp::wait_for(s.get(), POLLOUT, std::min(deadline, std::chrono::steady_clock::now() + slice))) {
      if (closed()) throw ::gloo::IoException("the end of the group");
      if (tcp::over(deadline)) throw ::gloo::IoException(tcp::error_text(ETIMEDOUT));
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) throw ::gloo::IoException(tcp::error_text(error));
    return s;
  }

  // Needs the mutex.
  void fail(const std::string& why) {
    if (!error_.empty()) return;
    error_ = why;
    for (const SecureMessage& m : queue_) m.buffer->fail(why);
    queue_.clear();
    if (out_ != nullptr) out_->stop();
    if (in_ != nullptr) in_->stop();
    failed_();
    changed_.notify_all();
  }
  void send_messages() {
    std::vector<std::byte> first(std::size_t{16} << 10);  // the header and the first bytes, which fill a record
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return !error_.empty() || !queue_.empty() || draining_; });
      if (!error_.empty()) return;
      const bool last = queue_.empty();
      const SecureMessage m = last ? SecureMessage{} : std::move(queue_.front());
      if (!last) queue_.pop_front();
      sending_ = m.buffer;
      lock.unlock();
      std::string why;
      try {
        if (last) {
          out_->finish();
          return;
        }
        const SecureHeader header{m.slot, m.bytes};
        const std::size_t head = std::min(m.bytes, first.size() - sizeof header);
        std::memcpy(first.data(), &header, sizeof header);
        if (head > 0) std::memcpy(first.data() + sizeof header, m.at, head);
        out_->write(std::span(first).first(sizeof header + head), head < m.bytes);
        out_->write({m.at + head, m.bytes - head}, false);
      } catch (const Error& e) {
        why = e.what();
      }
      lock.lock();
      sending_ = nullptr;
      // A message that was written is sent, even if the peer has closed its other connection since.
      if (!why.empty()) {
        if (m.buffer != nullptr) m.buffer->fail(error_.empty() ? why : error_);
        fail(why);
        changed_.notify_all();
        return;
      }
      m.buffer->sent(peer_);
      changed_.notify_all();
    }
  }
  void receive_messages() {
    for (;;) {
      SecureHeader header;
      std::string why;
      try {
        if (!in_->read(std::as_writable_bytes(std::span(&header, 1)))) why = "the end of the connection";
      } catch (const Error& e) {
        why = e.what();
      }
      std::unique_lock lock(mutex_);
      SecureMessage m;
      if (why.empty()) changed_.wait(lock, [&] { return !error_.empty() || take_(peer_, header.slot, m); });
      if (m.buffer != nullptr && m.bytes != header.bytes)
        why = "a message of " + std::to_string(header.bytes) + " bytes in place of " + std::to_string(m.bytes);
      receiving_ = m.buffer;
      if (m.buffer != nullptr && why.empty()) {
        lock.unlock();
        try {
          if (!in_->read({m.at, m.bytes})) why = "the end of the connection";
        } catch (const Error& e) {
          why = e.what();
        }
        lock.lock();
      }
      receiving_ = nullptr;
      if (!why.empty() || m.buffer == nullptr) {
        if (m.buffer != nullptr) m.buffer->fail(error_.empty() ? why : error_);
        fail(why);
        changed_.notify_all();
        return;
      }
      m.buffer->received(peer_);
      changed_.notify_all();
    }
  }

  int peer_;
  std::mutex& mutex_;
  SecureAddress address_;
  Take take_;
  Failed failed_;
  How how_;
  std::condition_variable changed_;
  std::unique_ptr<SecureStream> out_, in_;
  std::deque<SecureMessage> queue_;
  SecureBuffer *sending_ = nullptr, *receiving_ = nullptr;
  std::string error_;
  bool draining_ = false;
  std::thread sender_, receiver_;
};

}  // namespace tutti::detail
