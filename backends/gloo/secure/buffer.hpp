// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// Gloo's interfaces over encrypted streams: the memory that is sent and filled.
namespace tutti::detail {

class SecureBuffer;

// A part of a buffer that is to be sent, or that waits for a message.
struct SecureMessage {
  SecureBuffer* buffer = nullptr;
  std::uint64_t slot = 0;
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  std::vector<int> from{};  // ranks that may send it
};

// What a buffer needs of the connections of its group.
class SecureConnections {
 public:
  SecureConnections() = default;
  SecureConnections(const SecureConnections&) = delete;
  SecureConnections& operator=(const SecureConnections&) = delete;
  virtual ~SecureConnections() = default;

  // Both throw ::gloo::IoException if a connection has ended.
  virtual void send(int to, SecureMessage message) = 0;
  virtual void receive(SecureMessage message) = 0;
  // Returns when no thread uses the buffer. Ends connections that are in the middle of one of its messages.
  virtual void release(SecureBuffer& buffer) = 0;

  std::mutex mutex;  // guards the state of all buffers and connections of the group
};

class SecureBuffer final : public ::gloo::transport::UnboundBuffer {
 public:
  SecureBuffer(std::shared_ptr<SecureConnections> of, void* data, std::size_t bytes, std::chrono::milliseconds timeout)
      : UnboundBuffer(data, bytes), of_(std::move(of)), timeout_(timeout) {}
  ~SecureBuffer() override { of_->release(*this); }
  SecureBuffer(const SecureBuffer&) = delete;
  SecureBuffer& operator=(const SecureBuffer&) = delete;

  using UnboundBuffer::waitRecv;
  using UnboundBuffer::waitSend;
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override { return wait(receives_, rank, timeout); }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override { return wait(sends_, rank, timeout); }
  void abortWaitRecv() override { abort(receives_); }
  void abortWaitSend() override { abort(sends_); }
  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    of_->send(to, message(slot, offset, bytes));
  }
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    recv(std::vector<int>{from}, slot, offset, bytes);
  }
  void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    SecureMessage m = message(slot, offset, bytes);
    m.from = std::move(from);
    of_->receive(std::move(m));
  }

  // ---- called by the connections, which hold the mutex ----
  void received(int peer) { complete(receives_, peer); }
  void sent(int peer) { complete(sends_, peer); }
  void fail(const std::string& why) {
    error_ = why;
    changed_.notify_all();
  }

 private:
  struct Side {
    std::deque<int> peers;  // of messages that are complete
    bool aborted = false;
  };

  [[nodiscard]] SecureMessage message(std::uint64_t slot, std::size_t offset, std::size_t bytes) {
    if (bytes == kUnspecifiedByteCount && offset <= size) bytes = size - offset;
    if (offset > size || bytes > size - offset)
      throw ::gloo::InvalidOperationException("a message of " + std::to_string(bytes) + " bytes at byte " +
                                              std::to_string(offset) + " of a buffer of " + std::to_string(size));
    return {this, slot, static_cast<std::byte*>(ptr) + offset, bytes};
  }
  bool wait(Side& side, int* rank, std::chrono::milliseconds timeout) {
    std::unique_lock lock(of_->mutex);
    const bool ready = changed_.wait_for(lock, timeout == ::gloo::transport::kUnsetTimeout ? timeout_ : timeout,
                                         [&] { return side.aborted || !side.peers.empty() || !error_.empty(); });
    if (std::exchange(side.aborted, false)) return false;
    if (side.peers.empty()) throw ::gloo::IoException(ready ? error_ : "timed out");
    if (rank != nullptr) *rank = side.peers.front();
    side.peers.pop_front();
    return true;
  }
  void abort(Side& side) {
    const std::lock_guard lock(of_->mutex);
    side.aborted = true;
    changed_.notify_all();
  }
  void complete(Side& side, int peer) {
    side.peers.push_back(peer);
    changed_.notify_all();
  }

  std::shared_ptr<SecureConnections> of_;
  std::chrono::milliseconds timeout_;
  std::condition_variable changed_;
  Side sends_, receives_;
  std::string error_;
};

}  // namespace tutti::detail
