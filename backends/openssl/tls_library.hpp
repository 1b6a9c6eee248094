// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>

// What TlsStream needs of OpenSSL: contexts, sessions, errors, and an output that collects records.
namespace tutti::openssl {

struct Free {
  void operator()(SSL_CTX* p) const noexcept { ::SSL_CTX_free(p); }
  void operator()(SSL* p) const noexcept { ::SSL_free(p); }
  void operator()(SSL_SESSION* p) const noexcept { ::SSL_SESSION_free(p); }
  void operator()(BIO_METHOD* p) const noexcept { ::BIO_meth_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

// Returns p. Throws DeviceError if it is null.
template <class T>
[[nodiscard]] T* made(T* p, const char* what) {
  if (p == nullptr) fail<DeviceError>("openssl", what, "an error of the library", "install libssl3 of OpenSSL 3");
  return p;
}

// The only cipher suite. All processors since 2013 have instructions for AES.
inline constexpr const char* cipher_suite = "TLS_AES_128_GCM_SHA256";

// Returns a session that makes a connection use the key (RFC 8446, section 2.2).
[[nodiscard]] inline Owned<SSL_SESSION> session_of(SSL* ssl, const Digest256& key) {
  constexpr std::array<unsigned char, 2> suite{0x13, 0x01};  // TLS_AES_128_GCM_SHA256
  Owned<SSL_SESSION> s(::SSL_SESSION_new());
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl, suite.data());
  if (s == nullptr || cipher == nullptr || ::SSL_SESSION_set_cipher(s.get(), cipher) != 1 ||
      ::SSL_SESSION_set_protocol_version(s.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_SESSION_set1_master_key(s.get(), reinterpret_cast<const unsigned char*>(key.data()), key.size()) != 1)
    return nullptr;
  return s;
}

// Returns a context of TLS 1.3 without certificates, tickets and early data. Keys are exchanged with Diffie-Hellman, so
// a recorded connection cannot be decrypted with the key later.
[[nodiscard]] inline Owned<SSL_CTX> make_context() {
  Owned<SSL_CTX> c(made(::SSL_CTX_new(::TLS_method()), "a context"));
  ::SSL_CTX_set_options(c.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_clear_options(c.get(), SSL_OP_ALLOW_NO_DHE_KEX);  // a configuration file of the system may set it
  ::SSL_CTX_set_session_cache_mode(c.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(c.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ::SSL_CTX_set_read_ahead(c.get(), 1);
  ::SSL_CTX_set_default_read_buffer_len(c.get(), std::size_t{128} << 10);
  if (::SSL_CTX_set_min_proto_version(c.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_max_proto_version(c.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(c.get(), cipher_suite) != 1 ||
      ::SSL_CTX_set1_groups_list(c.get(), "X25519:P-256") != 1 || ::SSL_CTX_set_num_tickets(c.get(), 0) != 1)
    c.reset();
  static_cast<void>(made(c.get(), "TLS 1.3 with AES-128-GCM and X25519"));
  return c;
}

// Takes OpenSSL's oldest error of this thread, and clears the others. code: its reason.
[[nodiscard]] inline std::string take_error(int& code) {
  const unsigned long e = ::ERR_get_error();
  ::ERR_clear_error();
  code = ERR_GET_REASON(e);
  const char* text = ::ERR_reason_error_string(e);
  return e == 0 ? "the end of the connection" : text == nullptr ? "error " + std::to_string(code) : text;
}

// Classifies the reason of a failed handshake.
[[nodiscard]] inline Refusal refusal_of(int code) noexcept {
  switch (code) {
    case 0:
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return Refusal::silent;
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_CERTIFICATE_SET:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_MISSING_SIGALGS_EXTENSION:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
      return Refusal::secret;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_BAD_RECORD_TYPE:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return Refusal::plain;
    default:
      return Refusal::handshake;
  }
}

// Collects the records that OpenSSL writes, and sends many of them with one call of the kernel.
class RecordOutput {
 public:
  explicit RecordOutput(int fd) : fd_(fd) { bytes_.reserve(capacity + record); }

  // Sends all bytes. Returns false if the connection has ended.
  [[nodiscard]] bool flush() noexcept {
    std::span<const std::byte> left(bytes_);
    while (!left.empty()) {
      const ssize_t n = ::send(fd_, left.data(), left.size(), MSG_NOSIGNAL);
      if (n > 0) {
        left = left.subspan(static_cast<std::size_t>(n));
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        pollfd p{fd_, POLLOUT, 0};
        if (::poll(&p, 1, -1) < 0 && errno != EINTR) return false;
      } else if (!(n < 0 && errno == EINTR)) {
        return false;
      }
    }
    bytes_.clear();
    return true;
  }
  // Returns a BIO, OpenSSL's interface of an output, that writes to this object.
  [[nodiscard]] BIO* bio() {
    static const Owned<BIO_METHOD> method = make_method();
    BIO* b = made(::BIO_new(method.get()), "an output");
    ::BIO_set_data(b, this);
    ::BIO_set_init(b, 1);
    return b;
  }

 private:
  static constexpr std::size_t capacity = std::size_t{128} << 10, record = std::size_t{17} << 10;

  static int write(BIO* b, const char* data, int n) {
    auto& out = *static_cast<RecordOutput*>(::BIO_get_data(b));
    const auto* first = reinterpret_cast<const std::byte*>(data);
    try {
      out.bytes_.insert(out.bytes_.end(), first, first + n);
    } catch (const std::bad_alloc&) {
      return -1;
    }
    return out.bytes_.size() < capacity || out.flush() ? n : -1;
  }
  static long control(BIO* b, int command, long, void*) {
    // OpenSSL flushes at the end of each flight of the handshake and after an alert, but not after data.
    return command == BIO_CTRL_FLUSH && static_cast<RecordOutput*>(::BIO_get_data(b))->flush() ? 1 : 0;
  }
  static Owned<BIO_METHOD> make_method() {
    Owned<BIO_METHOD> m(made(::BIO_meth_new(BIO_TYPE_SOURCE_SINK, "tutti"), "an output"));
    ::BIO_meth_set_write(m.get(), write);
    ::BIO_meth_set_ctrl(m.get(), control);
    return m;
  }

  int fd_;
  std::vector<std::byte> bytes_;
};

}  // namespace tutti::openssl
