// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>

// Ranks that meet on the loopback interface of this host.
namespace tutti::rendezvous_test {

using namespace std::chrono_literals;

using Bytes = std::array<std::uint64_t, 16>;

inline RendezvousOptions options(int port, int rank, int size, std::chrono::milliseconds deadline = 20s,
                                 const std::string& job = "0123456789abcdef",
                                 const std::string& secret = "a secret of the tests") {
  return {"127.0.0.1", port, job, secret, rank, size, deadline};
}

// Returns the error of a call, or an empty text if it succeeded.
inline std::string trouble(TcpRendezvous& meet, Bytes& data) {
  try {
    meet(std::as_writable_bytes(std::span(data)));
    return "";
  } catch (const CommunicationError& e) {
    return e.what();
  }
}

// A rank that runs in a thread, with its data and its error.
struct Other {
  Bytes data{};
  std::string error;
  std::thread thread;
  explicit Other(const RendezvousOptions& o, std::chrono::milliseconds pause = 0ms)
      : thread([this, o, pause] {
          std::this_thread::sleep_for(pause);
          TcpRendezvous meet(o);
          error = trouble(meet, data);
        }) {}
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() { join(); }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Listens at a free port of this host.
inline tcp::Socket open_door() {
  int error = 0;
  auto s = tcp::listen_on(tcp::any_address(AF_INET, 0), 8, error);
  if (!s) fail<CommunicationError>("test", "a free port", tcp::error_text(error));
  return *std::move(s);
}

}  // namespace tutti::rendezvous_test
