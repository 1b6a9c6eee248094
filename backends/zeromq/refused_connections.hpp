// SPDX-License-Identifier: MIT
#pragma once

#include <zmq.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tutti::zeromq {

// Counts the connections that a server refuses, by kind. Logs each kind at most once a minute.
class RefusedConnections {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind {
    silent,    // closed, or no data within the time for a handshake
    greeting,  // did not begin with ZeroMQ's greeting
    security,  // no encryption, another mechanism, or a wrong key of the server
    identity,  // a key or password that does not belong to the job
  };

  // server: name of the server, such as "server 0". log: called on the thread that counts.
  void log_to(std::string server, std::function<void(const std::string&)> log) {
    server_ = std::move(server);
    log_ = std::move(log);
  }
  void count(Kind kind, Clock::time_point now) {
    ++total_;
    ++counts_[static_cast<std::size_t>(kind)].unsaid;
    say(now);
  }
  // Logs the counts that are due. Call it from time to time.
  void say(Clock::time_point now) {
    for (std::size_t kind = 0; kind < counts_.size(); ++kind) {
      Count& c = counts_[kind];
      if (c.unsaid == 0 || !log_ || (c.said_any && now - c.said < std::chrono::minutes(1))) continue;
      log_(server_ + " refused " + std::to_string(c.unsaid) + (c.unsaid == 1 ? " connection: " : " connections: ") +
           reasons[kind]);
      c.said = now;
      c.said_any = true;
      c.unsaid = 0;
    }
  }
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

  // ---- called for the events of a socket's monitor ----
  // Counts any event except ZMQ_EVENT_DISCONNECTED.
  void hear(int event, Clock::time_point now) {
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ++succeeded_;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) fail_handshake(Kind::silent, now);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) fail_handshake(Kind::security, now);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) fail_handshake(Kind::identity, now);
  }
  // Call it when an admitted connection has sent its first message.
  void became_known() noexcept { ++known_; }
  // Call it when a connection has ended that never sent a message. ZeroMQ reports no failure if a greeting is not
  // ZeroMQ's. So an end without a reported failure counts as a wrong greeting, unless the connection had been admitted.
  void ended_unknown(Clock::time_point now) {
    ++ended_;
    const std::uint64_t let_in = succeeded_ > known_ ? succeeded_ - known_ : 0;
    if (ended_ <= failed_ + let_in + greetings_) return;
    ++greetings_;
    count(Kind::greeting, now);
  }

 private:
  struct Count {
    std::uint64_t unsaid = 0;
    bool said_any = false;
    Clock::time_point said{};
  };
  static constexpr std::array<const char*, 4> reasons{
      "closed or silent before the end of the handshake", "not ZeroMQ's greeting",
      "without the job's encryption, or with a wrong key of the server", "with a key that is not one of the job's"};

  void fail_handshake(Kind kind, Clock::time_point now) {
    ++failed_;
    count(kind, now);
  }

  std::string server_;
  std::function<void(const std::string&)> log_;
  std::array<Count, 4> counts_{};
  std::uint64_t total_ = 0, succeeded_ = 0, known_ = 0, failed_ = 0, ended_ = 0, greetings_ = 0;
};

}  // namespace tutti::zeromq
