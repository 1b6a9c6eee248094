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

#include <tutti/core/threads/spin_pause.hpp>

namespace tutti::ps {

using Deadline = std::chrono::steady_clock::time_point;

// Sends under way that still read the memory they were given.
class PendingSends {
 public:
  PendingSends() = default;
  PendingSends(const PendingSends&) = delete;
  PendingSends& operator=(const PendingSends&) = delete;
  void begin() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void end() noexcept { count_.fetch_sub(1, std::memory_order_release); }
  [[nodiscard]] bool none() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // Whether they are over by the deadline. They are short, once the other side has what was sent.
  [[nodiscard]] bool wait(Deadline deadline) const noexcept {
    for (int turn = 0; !none(); ++turn) {
      if (turn < 1000) {
        spin_pause();
        continue;
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

 private:
  std::atomic<int> count_{0};
};

// What receive() has to tell.
template <class Message>
struct Event {
  enum class What : std::uint8_t { nothing, message, lost };
  What what = What::nothing;
  std::int64_t peer = -1;
  Message message{};
  std::string identity{};  // who the peer has proved to be, "worker 3"; empty: the transport asks for no proof
  std::string why{};       // lost: what became of it
};

// One end of the connections between the workers and the servers of a job. A worker's peers are the servers, 0, 1, ...;
// a server's are numbers that come with what they send, a new one for each connection, so that who comes again is
// somebody else. Messages between two ends come in order, each once or not at all, and when an end is lost, what it
// sent before has come first. One thread uses it; wake() alone may be called by any.
template <class T>
concept Transport = requires(T& t, const T& ct, typename T::Message& message, std::int64_t peer,
                             std::span<const std::byte> bytes, PendingSends* kept, Deadline deadline) {
  requires std::movable<typename T::Message> && std::default_initializable<typename T::Message>;
  // Valid as long as the message is.
  { message.head() } -> std::same_as<std::span<const std::byte>>;
  { message.data() } -> std::same_as<std::span<const std::byte>>;
  { ct.name() } -> std::convertible_to<std::string>;
  // What a log calls a peer: its address, where there is one.
  { ct.peer_name(peer) } -> std::convertible_to<std::string>;
  // False: the peer is gone. Never waits. The data is read later where `kept` is given, which counts such sends, and
  // is copied where it is null.
  { t.send(peer, bytes, bytes, kept) } -> std::same_as<bool>;
  // A message, a peer that is lost, or nothing: woken, or the deadline has come.
  { t.receive(deadline) } -> std::same_as<Event<typename T::Message>>;
  { t.wake() }
  noexcept;
};

// A worker's end that can connect anew to a server which was started again: false where it is not there yet.
template <class T>
concept Reopening = Transport<T> && requires(T& t, std::int64_t server) {
  { t.reopen(server) } -> std::same_as<bool>;
};

}  // namespace tutti::ps
