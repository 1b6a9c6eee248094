// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/comm/net/hmac_sha256.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>

// The interface of encrypted connections. backends/openssl implements it with TLS 1.3.
namespace tutti {

// Why a peer was not admitted.
enum class Refusal : std::uint8_t {
  silent,     // closed, or no complete handshake in time
  plain,      // no encryption, or an older version of it
  secret,     // no secret, or a wrong one
  handshake,  // a repeated or damaged handshake
};
// Returns the words for messages, after "a peer".
[[nodiscard]] constexpr const char* refusal_text(Refusal r) noexcept {
  switch (r) {
    case Refusal::silent:
      return "closed or silent before the end of the handshake";
    case Refusal::plain:
      return "without TLS 1.3";
    case Refusal::secret:
      return "without the job's secret";
    case Refusal::handshake:
      return "with a repeated or damaged handshake";
  }
  return "";
}

// Thrown if a handshake fails.
struct RefusedStream : CommunicationError {
  // why: details of the library, may be empty.
  explicit RefusedStream(Refusal r, const std::string& why = {})
      : RefusedStream(r, why.empty() ? refusal_text(r) : std::string(refusal_text(r)) + " (" + why + ")", true) {}
  Refusal refusal;
  std::string got;  // the part of the message after "got"

 private:
  RefusedStream(Refusal r, std::string text, bool)
      : CommunicationError(error_message("secure stream", "a peer that uses TLS 1.3 and knows the job's secret",
                                         {"one ", text},
                                         r == Refusal::plain ? "give all processes the same --encrypt" : "")),
        refusal(r),
        got("a peer " + std::move(text)) {}
};

// An encrypted connection in one direction: the side that connected writes, the side that accepted reads. Both sides
// have proven that they know the key. One thread at a time may use it, except stop(). All functions but stop() throw
// CommunicationError.
class SecureStream {
 public:
  enum class Handshake : std::uint8_t { done, reads, writes };

  SecureStream() = default;
  SecureStream(const SecureStream&) = delete;
  SecureStream& operator=(const SecureStream&) = delete;
  virtual ~SecureStream() = default;

  // Continues the handshake without blocking. Returns whether it is done, or for which event of the socket it waits.
  // Throws RefusedStream if the peer does not prove that it knows the key, or does not use TLS 1.3.
  virtual Handshake advance() = 0;
  // Returns the identity of the key, which is known after the handshake.
  [[nodiscard]] virtual const std::string& identity() const noexcept = 0;
  [[nodiscard]] virtual int descriptor() const noexcept = 0;

  // Encrypts the bytes. Blocks until the kernel has taken the bytes; with `more`, the last of them may wait for the
  // next call.
  virtual void write(std::span<const std::byte> bytes, bool more) = 0;
  // Tells the peer that this is the end. The peer's read() then returns false.
  virtual void finish() = 0;
  // Blocks until all bytes are filled. Returns false if the peer has called finish() before the first byte. Throws if
  // the connection ends otherwise, because somebody may have cut it.
  virtual bool read(std::span<std::byte> bytes) = 0;

  // Ends the connection, so that read() and write() throw. Any thread may call it.
  virtual void stop() noexcept = 0;
};

// Makes encrypted connections over sockets that do not block.
class SecureStreams {
 public:
  // Returns the key of an identity, or no value if the identity is unknown.
  using KeyOf = std::function<std::optional<Digest256>(std::string_view identity)>;

  SecureStreams() = default;
  SecureStreams(const SecureStreams&) = delete;
  SecureStreams& operator=(const SecureStreams&) = delete;
  virtual ~SecureStreams() = default;

  // Returns a stream that writes. Its handshake has not begun. identity: at most 200 bytes, sent unencrypted.
  [[nodiscard]] virtual std::unique_ptr<SecureStream> connect(tcp::Socket socket, std::string identity,
                                                              const Digest256& key) const = 0;
  // Returns a stream that reads. Its handshake has not begun.
  [[nodiscard]] virtual std::unique_ptr<SecureStream> accept(tcp::Socket socket, KeyOf key_of) const = 0;
  // Returns the name of the protocol, for messages.
  [[nodiscard]] virtual std::string name() const = 0;
};

// Completes the handshake. Throws RefusedStream if it fails, or is not complete at the deadline or when stopped()
// returns true.
inline void complete_handshake(SecureStream& stream, tcp::Moment deadline, const std::function<bool()>& stopped = {}) {
  for (;;) {
    const auto state = stream.advance();
    if (state == SecureStream::Handshake::done) return;
    const short events = state == SecureStream::Handshake::reads ? POLLIN : POLLOUT;
    constexpr std::chrono::milliseconds slice{50};
    while (!tcp::wait_for(stream.descriptor(), events, std::min(deadline, std::chrono::steady_clock::now() + slice)))
      if (tcp::over(deadline) || (stopped && stopped())) throw RefusedStream(Refusal::silent);
  }
}

}  // namespace tutti
