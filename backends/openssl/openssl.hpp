// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/backends/openssl/tls_library.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>

// Encrypted connections with TLS 1.3 of OpenSSL. The key of a connection is an external pre-shared key (RFC 8446,
// section 4.2.11); there are no certificates.
namespace tutti {

namespace openssl {

class TlsStream final : public SecureStream {
 public:
  // key: of the side that connects. key_of: of the side that accepts; the other is empty.
  TlsStream(SSL_CTX* context, tcp::Socket socket, std::string identity, const Digest256& key,
            SecureStreams::KeyOf key_of, std::uint64_t bytes_per_key)
      : socket_(std::move(socket)),
        output_(socket_.get()),
        identity_(std::move(identity)),
        key_(key),
        key_of_(std::move(key_of)),
        bytes_per_key_(bytes_per_key),
        ssl_(made(::SSL_new(context), "a connection")) {
    SSL_set_app_data(ssl_.get(), this);
    ::SSL_set_bio(ssl_.get(), made(::BIO_new_socket(socket_.get(), BIO_NOCLOSE), "an input"), output_.bio());
    if (key_of_) {
      ::SSL_set_accept_state(ssl_.get());
      ::SSL_set_psk_find_session_callback(ssl_.get(), find_key);
    } else {
      ::SSL_set_connect_state(ssl_.get());
      // No certificate is trusted, so a peer that does not know the key cannot use a certificate instead.
      ::SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
      ::SSL_set_psk_use_session_callback(ssl_.get(), use_key);
    }
  }

  Handshake advance() override {
    ::ERR_clear_error();
    const int n = ::SSL_do_handshake(ssl_.get());
    if (n == 1) {
      // A certificate cannot replace the key, whatever the peer prefers.
      if (::SSL_session_reused(ssl_.get()) != 1) throw RefusedStream(Refusal::secret);
      return Handshake::done;
    }
    const int state = ::SSL_get_error(ssl_.get(), n);
    if (state == SSL_ERROR_WANT_READ) return Handshake::reads;
    if (state == SSL_ERROR_WANT_WRITE) return Handshake::writes;
    int code = 0;
    const std::string why = take_error(code);
    throw RefusedStream(refusal_of(code), why);
  }
  [[nodiscard]] const std::string& identity() const noexcept override { return identity_; }
  [[nodiscard]] int descriptor() const noexcept override { return socket_.get(); }

  void write(std::span<const std::byte> bytes, bool more) override {
    while (!bytes.empty()) {
      std::size_t n = 0;
      if (written_ >= bytes_per_key_) {
        // One key of AES-GCM must not encrypt more than 2^24.5 records (RFC 8446, section 5.5).
        if (::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) broken("the next key");
        written_ = 0;
      }
      ::ERR_clear_error();
      if (::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n) != 1) broken("a connection that takes data");
      written_ += n;
      bytes = bytes.subspan(n);
    }
    if (!more && !output_.flush()) broken("a connection that takes data");
  }
  void finish() override {
    ::ERR_clear_error();
    if (::SSL_shutdown(ssl_.get()) < 0 || !output_.flush()) broken("a connection that takes data");
  }
  bool read(std::span<std::byte> bytes) override {
    for (bool first = true; !bytes.empty();) {
      std::size_t n = 0;
      ::ERR_clear_error();
      if (::SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &n) == 1) {
        bytes = bytes.subspan(n);
        first = false;
        continue;
      }
      const int state = ::SSL_get_error(ssl_.get(), 0);
      if (state == SSL_ERROR_ZERO_RETURN && first) return false;
      if (state == SSL_ERROR_ZERO_RETURN) broken("a whole message", "the end of the connection");
      if (state != SSL_ERROR_WANT_READ) broken("a connection that ends with a message of TLS");
      pollfd p{socket_.get(), POLLIN, 0};
      if (::poll(&p, 1, -1) < 0 && errno != EINTR) broken("a connection that ends with a message of TLS");
    }
    return true;
  }
  void stop() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  static int use_key(SSL* ssl, const EVP_MD* hash, const unsigned char** id, std::size_t* bytes,
                     SSL_SESSION** session) {
    auto& self = *static_cast<TlsStream*>(SSL_get_app_data(ssl));
    static_cast<void>(hash);  // the only suite has SHA-256
    *session = session_of(ssl, self.key_).release();
    *id = reinterpret_cast<const unsigned char*>(self.identity_.data());
    *bytes = self.identity_.size();
    return *session != nullptr ? 1 : 0;
  }
  // Without a session, the handshake fails because there is no certificate.
  static int find_key(SSL* ssl, const unsigned char* id, std::size_t bytes, SSL_SESSION** session) {
    auto& self = *static_cast<TlsStream*>(SSL_get_app_data(ssl));
    *session = nullptr;
    if (bytes > longest_identity) return 1;
    try {
      self.identity_.assign(reinterpret_cast<const char*>(id), bytes);
      if (const auto key = self.key_of_(self.identity_)) *session = session_of(ssl, *key).release();
    } catch (const std::exception&) {
      return 0;
    }
    return 1;
  }
  [[noreturn]] static void broken(const char* expected, std::string got = {}) {
    int code = 0;
    if (got.empty()) got = take_error(code);
    fail<CommunicationError>("secure stream", expected, got);
  }

  static constexpr std::size_t longest_identity = 200;

  tcp::Socket socket_;
  RecordOutput output_;
  std::string identity_;
  Digest256 key_;
  SecureStreams::KeyOf key_of_;
  std::uint64_t bytes_per_key_, written_ = 0;
  Owned<SSL> ssl_;
};

}  // namespace openssl

// Connections with TLS 1.3. Its threads may use it at the same time.
class TlsStreams final : public SecureStreams {
 public:
  // bytes_per_key: after so many bytes, a stream that writes changes to the next key.
  explicit TlsStreams(std::uint64_t bytes_per_key = std::uint64_t{1} << 36)
      : context_(openssl::make_context()), bytes_per_key_(bytes_per_key) {}

  [[nodiscard]] std::unique_ptr<SecureStream> connect(tcp::Socket socket, std::string identity,
                                                      const Digest256& key) const override {
    return std::make_unique<openssl::TlsStream>(context_.get(), std::move(socket), std::move(identity), key, KeyOf{},
                                                bytes_per_key_);
  }
  [[nodiscard]] std::unique_ptr<SecureStream> accept(tcp::Socket socket, KeyOf key_of) const override {
    return std::make_unique<openssl::TlsStream>(context_.get(), std::move(socket), "", Digest256{}, std::move(key_of),
                                                bytes_per_key_);
  }
  [[nodiscard]] std::string name() const override { return "TLS 1.3"; }

 private:
  openssl::Owned<SSL_CTX> context_;
  std::uint64_t bytes_per_key_;
};

}  // namespace tutti
