// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/strategy/parameter_server/wire/transport.hpp>

// Workers and servers that are threads of one process: for tests, and for programs that embed tutti.
namespace tutti::ps {

// A copy of the sent bytes, because the sending thread may end first.
class ThreadMessage {
 public:
  ThreadMessage() = default;
  ThreadMessage(std::span<const std::byte> head, std::span<const std::byte> data)
      : head_(head.begin(), head.end()), data_(data.begin(), data.end()) {}
  [[nodiscard]] std::span<const std::byte> head() const noexcept { return head_; }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_; }

 private:
  std::vector<std::byte> head_, data_;
};

// The connections between the ends in a process; it must outlive them.
class ThreadNetwork {
 public:
  explicit ThreadNetwork(int servers) {
    for (int s = 0; s < servers; ++s) servers_.push_back(std::make_shared<Box>());
  }
  [[nodiscard]] int servers() const noexcept { return static_cast<int>(servers_.size()); }

 private:
  friend class ThreadWorkerEnd;
  friend class ThreadServerEnd;
  using Incoming = Event<ThreadMessage>;

  // The messages that have arrived at an end. A closed box accepts no more messages.
  class Box {
   public:
    bool put(Incoming event) {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      events_.push_back(std::move(event));
      there_.notify_all();
      return true;
    }
    void wake() noexcept {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      there_.notify_all();
    }
    [[nodiscard]] bool closed() {
      const std::lock_guard lock(mutex_);
      return closed_;
    }
    void close() {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      events_.clear();
    }
    Incoming take(Moment deadline) {
      std::unique_lock lock(mutex_);
      there_.wait_until(lock, deadline, [&] { return woken_ || !events_.empty(); });
      woken_ = false;
      if (events_.empty()) return {};
      Incoming first = std::move(events_.front());
      events_.pop_front();
      return first;
    }

   private:
    std::mutex mutex_;
    std::condition_variable there_;
    std::deque<Incoming> events_;
    bool woken_ = false, closed_ = false;
  };

  std::vector<std::shared_ptr<Box>> servers_;
  std::mutex mutex_;
  std::int64_t next_ = 0;  // number of the next connection
  // Key: server and connection.
  std::map<std::pair<int, std::int64_t>, std::shared_ptr<Box>> connections_;
};

// A worker's end, connected to all servers of the network.
class ThreadWorkerEnd {
 public:
  using Message = ThreadMessage;

  // identity: Event::identity of this worker's messages.
  explicit ThreadWorkerEnd(ThreadNetwork& network, std::string identity = "")
      : network_(network), box_(std::make_shared<ThreadNetwork::Box>()), identity_(std::move(identity)) {
    const std::lock_guard lock(network_.mutex_);
    number_ = network_.next_++;
    for (int s = 0; s < network_.servers(); ++s) network_.connections_[{s, number_}] = box_;
  }
  ThreadWorkerEnd(const ThreadWorkerEnd&) = delete;
  ThreadWorkerEnd& operator=(const ThreadWorkerEnd&) = delete;
  ~ThreadWorkerEnd() {
    box_->close();
    const std::lock_guard lock(network_.mutex_);
    for (int s = 0; s < network_.servers(); ++s) {
      network_.connections_.erase({s, number_});
      ThreadNetwork::Incoming event;
      event.what = ThreadNetwork::Incoming::What::lost;
      event.peer = number_;
      event.why = "it ended";
      network_.servers_[static_cast<std::size_t>(s)]->put(std::move(event));
    }
  }

  [[nodiscard]] std::string name() const { return "threads"; }
  [[nodiscard]] std::string peer_name(std::int64_t) const { return "a thread"; }
  bool send(std::int64_t server, std::span<const std::byte> head, std::span<const std::byte> data, PendingSends*) {
    ThreadNetwork::Incoming event;
    event.what = ThreadNetwork::Incoming::What::message;
    event.peer = number_;
    event.identity = identity_;
    event.message = ThreadMessage(head, data);
    std::shared_ptr<ThreadNetwork::Box> to;
    {
      const std::lock_guard lock(network_.mutex_);
      to = network_.servers_[static_cast<std::size_t>(server)];
    }
    return to->put(std::move(event));
  }
  Event<Message> receive(Moment deadline) { return box_->take(deadline); }
  void wake() noexcept { box_->wake(); }
  bool reopen(std::int64_t server) {
    const std::lock_guard lock(network_.mutex_);
    if (network_.servers_[static_cast<std::size_t>(server)]->closed()) return false;
    network_.connections_[{static_cast<int>(server), number_}] = box_;
    return true;
  }

 private:
  ThreadNetwork& network_;
  std::shared_ptr<ThreadNetwork::Box> box_;
  std::string identity_;
  std::int64_t number_ = 0;
};
static_assert(Transport<ThreadWorkerEnd>);

// A server's end.
class ThreadServerEnd {
 public:
  using Message = ThreadMessage;

  ThreadServerEnd(ThreadNetwork& network, int server) : network_(network), server_(server) {
    const std::lock_guard lock(network_.mutex_);
    auto& box = network_.servers_[static_cast<std::size_t>(server)];
    // The previous end of this server may have closed its box.
    if (box->closed()) box = std::make_shared<ThreadNetwork::Box>();
    box_ = box;
  }
  ThreadServerEnd(const ThreadServerEnd&) = delete;
  ThreadServerEnd& operator=(const ThreadServerEnd&) = delete;
  ~ThreadServerEnd() {
    box_->close();
    const std::lock_guard lock(network_.mutex_);
    for (auto& [key, box] : network_.connections_) {
      if (key.first != server_) continue;
      ThreadNetwork::Incoming event;
      event.what = ThreadNetwork::Incoming::What::lost;
      event.peer = server_;
      event.why = "it ended";
      box->put(std::move(event));
    }
    std::erase_if(network_.connections_, [&](const auto& c) { return c.first.first == server_; });
  }

  [[nodiscard]] std::string name() const { return "threads"; }
  [[nodiscard]] std::string peer_name(std::int64_t peer) const { return "thread " + std::to_string(peer); }
  bool send(std::int64_t peer, std::span<const std::byte> head, std::span<const std::byte> data, PendingSends*) {
    std::shared_ptr<ThreadNetwork::Box> to;
    {
      const std::lock_guard lock(network_.mutex_);
      const auto found = network_.connections_.find({server_, peer});
      if (found == network_.connections_.end()) return false;
      to = found->second;
    }
    ThreadNetwork::Incoming event;
    event.what = ThreadNetwork::Incoming::What::message;
    event.peer = server_;
    event.message = ThreadMessage(head, data);
    return to->put(std::move(event));
  }
  Event<Message> receive(Moment deadline) { return box_->take(deadline); }
  void wake() noexcept { box_->wake(); }

 private:
  ThreadNetwork& network_;
  std::shared_ptr<ThreadNetwork::Box> box_;
  int server_;
};
static_assert(Transport<ThreadServerEnd>);

}  // namespace tutti::ps
