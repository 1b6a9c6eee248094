// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>

#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/core/threads/spin_pause.hpp>

namespace tutti::ps {

using Moment = std::chrono::steady_clock::time_point;

// Running sends that still read the memory passed to them.
class PendingSends {
 public:
  PendingSends() = default;
  PendingSends(const PendingSends&) = delete;
  PendingSends& operator=(const PendingSends&) = delete;
  void begin() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void end() noexcept { count_.fetch_sub(1, std::memory_order_release); }
  [[nodiscard]] bool none() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // Returns whether all sends have ended within the time. They end shortly after the receiver has got the data.
  [[nodiscard]] bool wait(std::chrono::nanoseconds time) const noexcept {
    PauseTolerantTimer patience(time);
    for (int turn = 0; !none(); ++turn) {
      if (turn < 1000) {
        spin_pause();
        continue;
      }
      if (patience.is_over()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

 private:
  std::atomic<int> count_{0};
};

// The result of receive().
template <class Message>
struct Event {
  enum class What : std::uint8_t { nothing, message, lost };
  What what = What::nothing;
  std::int64_t peer = -1;
  Message message{};
  std::string identity{};  // the peer's proved identity, for example "worker 3"; empty: the transport requires no proof
  std::string why{};       // lost: the reason
};

// One end of the connections between the workers and the servers of a job. A worker's peers are the servers, 0, 1, ...
// A server's peers are numbers that arrive with the messages. Each connection has a new number, so a worker that
// reconnects is a different peer. Messages between two ends arrive in order, each once or not at all. The loss of an
// end is reported after its earlier messages. One thread uses an end; only wake() may be called by any thread.
template <class T>
concept Transport = requires(T& t, const T& ct, typename T::Message& message, std::int64_t peer,
                             std::span<const std::byte> bytes, PendingSends* kept, Moment deadline) {
  requires std::movable<typename T::Message> && std::default_initializable<typename T::Message>;
  // The bytes are valid as long as the message.
  { message.head() } -> std::same_as<std::span<const std::byte>>;
  { message.data() } -> std::same_as<std::span<const std::byte>>;
  { ct.name() } -> std::convertible_to<std::string>;
  // Returns a peer's name for logs: its address, if it has one.
  { ct.peer_name(peer) } -> std::convertible_to<std::string>;
  // Sends two parts without waiting. Returns false if the peer is gone. If `kept` is given, it counts the send, and the
  // data is read later. If it is null, the data is copied.
  { t.send(peer, bytes, bytes, kept) } -> std::same_as<bool>;
  // Returns a message, the loss of a peer, or neither if wake() was called or the deadline has passed.
  { t.receive(deadline) } -> std::same_as<Event<typename T::Message>>;
  { t.wake() }
  noexcept;
};

// A worker's end that can connect again to a restarted server. reopen() returns false if it is not reachable yet.
template <class T>
concept Reopening = Transport<T> && requires(T& t, std::int64_t server) {
  { t.reopen(server) } -> std::same_as<bool>;
};

}  // namespace tutti::ps
