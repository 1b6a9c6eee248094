// SPDX-License-Identifier: MIT
// Tests encrypted streams: data arrives and is not on the wire, and peers without the key, without encryption or with
// recorded bytes are refused.
#include <doctest/doctest.h>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/openssl/openssl.hpp>

using namespace tutti;

namespace {

using Bytes = std::vector<std::byte>;

std::pair<tcp::Socket, tcp::Socket> connected_sockets() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  return {tcp::Socket(ends[0]), tcp::Socket(ends[1])};
}
Digest256 key_of(std::string_view text) { return HmacSha256("test").add(text).digest(); }
SecureStreams::KeyOf only(const std::string& identity, const Digest256& key) {
  return [=](std::string_view id) { return id == identity ? std::optional(key) : std::nullopt; };
}
std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
bool contains(const Bytes& bytes, std::string_view text) {
  const auto wanted = bytes_of(text);
  return std::search(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()) != bytes.end();
}
Bytes receive(const tcp::Socket& s) {  // all bytes that have arrived
  Bytes all(std::size_t{1} << 20);
  const ssize_t n = ::recv(s.get(), all.data(), all.size(), 0);
  all.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return all;
}
void send(const tcp::Socket& s, std::span<const std::byte> bytes) {
  REQUIRE(::send(s.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// Two streams and the wire between them, which the test reads and changes.
struct Connection {
  explicit Connection(const TlsStreams& tls, const std::string& identity = "0>1", const Digest256& client = key_of("a"),
                      const Digest256& server = key_of("a"), const std::string& known = "0>1") {
    auto [writer_end, writer_wire] = connected_sockets();
    auto [reader_end, reader_wire] = connected_sockets();
    to_writer = std::move(writer_wire);
    to_reader = std::move(reader_wire);
    writer = tls.connect(std::move(writer_end), identity, client);
    reader = tls.accept(std::move(reader_end), only(known, server));
  }
  // Carries all bytes that have been sent to the other side.
  void carry() {
    const Bytes forth = receive(to_writer);
    if (!forth.empty()) send(to_reader, forth);
    sent.insert(sent.end(), forth.begin(), forth.end());
    if (const Bytes back = receive(to_reader); !back.empty()) send(to_writer, back);
  }
  void handshake() {
    using Handshake = SecureStream::Handshake;
    for (auto a = Handshake::reads, b = a; a != Handshake::done || b != Handshake::done; carry()) {
      if (a != Handshake::done) a = writer->advance();
      carry();
      if (b != Handshake::done) b = reader->advance();
    }
  }
  tcp::Socket to_writer, to_reader;
  std::unique_ptr<SecureStream> writer, reader;
  Bytes sent;  // by the writer
};

// Returns why a stream is refused that gets these bytes, then the end of the connection.
std::optional<Refusal> refusal(SecureStream& stream, const tcp::Socket& wire, std::span<const std::byte> bytes) {
  try {
    if (stream.advance() == SecureStream::Handshake::done) return {};
    send(wire, bytes);
    ::shutdown(wire.get(), SHUT_WR);
    for (int i = 0; i < 10; ++i)
      if (stream.advance() == SecureStream::Handshake::done) return {};
  } catch (const RefusedStream& e) {
    CHECK(std::string(e.what()).find("[secure stream] expected a peer that uses TLS 1.3") == 0);
    return e.refusal;
  }
  FAIL("the stream still waits");
  return {};
}

using Context = openssl::Owned<SSL_CTX>;

// Exchanges data with an SSL object of the test until one side fails. Returns why the stream refuses it.
std::optional<Refusal> refusal_of(SecureStream& stream, tcp::Socket wire, SSL_CTX* context, bool as_server) {
  const openssl::Owned<SSL> ssl(::SSL_new(context));
  ::SSL_set_fd(ssl.get(), wire.get());
  as_server ? ::SSL_set_accept_state(ssl.get()) : ::SSL_set_connect_state(ssl.get());
  try {
    for (int i = 0; i < 20; ++i) {
      ::SSL_do_handshake(ssl.get());
      if (stream.advance() == SecureStream::Handshake::done) return {};
    }
  } catch (const RefusedStream& e) {
    return e.refusal;
  }
  FAIL("the stream still waits");
  return {};
}

void give_certificate(SSL_CTX* context) {
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(::EVP_EC_gen("P-256"), &::EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&::X509_free)> own(::X509_new(), &::X509_free);
  ::X509_gmtime_adj(::X509_getm_notBefore(own.get()), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(own.get()), 3600);
  ::X509_set_pubkey(own.get(), key.get());
  REQUIRE(::X509_sign(own.get(), key.get(), ::EVP_sha256()) > 0);
  REQUIRE(::SSL_CTX_use_certificate(context, own.get()) == 1);
  REQUIRE(::SSL_CTX_use_PrivateKey(context, key.get()) == 1);
}

}  // namespace

TEST_CASE("data arrives in order, and neither data nor key is on the wire") {
  const TlsStreams tls;
  Connection c(tls);
  c.handshake();
  CHECK(c.reader->identity() == "0>1");
  const std::string text = "conv1.weight conv1.weight conv1.weight";
  Bytes large(100'000);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7 / 3);
  c.writer->write(bytes_of(text), true);
  c.writer->write(large, false);
  c.writer->finish();
  c.carry();
  Bytes got(text.size()), more(large.size());
  CHECK(c.reader->read(got));
  CHECK(c.reader->read(more));
  CHECK(std::equal(got.begin(), got.end(), bytes_of(text).begin()));
  CHECK(more == large);
  CHECK_FALSE(c.reader->read(got));
  CHECK(c.sent.size() > large.size());
  CHECK_FALSE(contains(c.sent, "conv1"));
  const Digest256 key = key_of("a");
  CHECK_FALSE(contains(c.sent, {reinterpret_cast<const char*>(key.data()), key.size()}));
}

TEST_CASE("a stream changes its key after so many bytes") {
  const TlsStreams tls(20'000);
  Connection c(tls);
  c.handshake();
  Bytes sent(15'000), got(15'000);
  for (int round = 0; round < 10; ++round) {
    std::fill(sent.begin(), sent.end(), static_cast<std::byte>(round));
    c.writer->write(sent, false);
    c.carry();
    CHECK(c.reader->read(got));
    CHECK(got == sent);
  }
}

TEST_CASE("two connections with the same key and data have different bytes on the wire") {
  const TlsStreams tls;
  std::array<Bytes, 2> sent;
  for (Bytes& s : sent) {
    Connection c(tls);
    c.handshake();
    c.writer->write(bytes_of("the same data"), false);
    c.carry();
    s = c.sent;
  }
  CHECK(sent[0].size() == sent[1].size());
  CHECK(sent[0] != sent[1]);
}

TEST_CASE("a wrong key and an unknown identity are refused by both sides") {
  const TlsStreams tls;
  for (const bool unknown : {false, true}) {
    Connection c(tls, unknown ? "2>1" : "0>1", key_of(unknown ? "a" : "b"));
    CHECK(c.writer->advance() == SecureStream::Handshake::reads);
    c.carry();
    const auto refused = [](SecureStream& s) {
      try {
        static_cast<void>(s.advance());
      } catch (const RefusedStream& e) {
        return e.refusal;
      }
      FAIL("not refused");
      return Refusal::silent;
    };
    CHECK(refused(*c.reader) == Refusal::secret);
    c.carry();
    CHECK(refused(*c.writer) == Refusal::secret);
  }
}

TEST_CASE("a peer without encryption is refused") {
  const TlsStreams tls;
  const std::string binary("\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0", 16);
  for (const std::string& text : {std::string("GET / HTTP/1.0\r\n\r\n"), binary, std::string(300, 'x')}) {
    Connection accepts(tls), connects(tls);
    CHECK(refusal(*accepts.reader, accepts.to_reader, bytes_of(text)) == Refusal::plain);
    CHECK(refusal(*connects.writer, connects.to_writer, bytes_of(text)) == Refusal::plain);
  }
}

TEST_CASE("an older version of TLS is refused") {
  const TlsStreams tls;
  const Context old(::SSL_CTX_new(::TLS_method()));
  ::SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  give_certificate(old.get());
  Connection accepts(tls), connects(tls);
  CHECK(refusal_of(*accepts.reader, std::move(accepts.to_reader), old.get(), false) == Refusal::plain);
  CHECK(refusal_of(*connects.writer, std::move(connects.to_writer), old.get(), true) == Refusal::plain);
}

TEST_CASE("a certificate does not replace the key") {
  const TlsStreams tls;
  const Context other(::SSL_CTX_new(::TLS_method()));
  give_certificate(other.get());
  Connection accepts(tls), connects(tls);
  CHECK(refusal_of(*accepts.reader, std::move(accepts.to_reader), other.get(), false) == Refusal::secret);
  CHECK(refusal_of(*connects.writer, std::move(connects.to_writer), other.get(), true) == Refusal::secret);
}

TEST_CASE("a recorded connection is refused, and a truncated one") {
  const TlsStreams tls;
  Connection c(tls);
  c.handshake();
  c.writer->write(bytes_of("data"), false);
  c.carry();
  Connection again(tls);
  CHECK(refusal(*again.reader, again.to_reader, c.sent) == Refusal::handshake);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, std::size_t{100}}) {
    Connection cut(tls);
    CHECK(refusal(*cut.reader, cut.to_reader, std::span(c.sent).first(bytes)) == Refusal::silent);
  }
}

TEST_CASE("a changed, repeated or oversized record, and an end without close_notify, are errors") {
  const TlsStreams tls;
  const auto error_after = [&](const std::function<void(Connection&, Bytes)>& attack) {
    Connection c(tls);
    c.handshake();
    c.writer->write(bytes_of("0123456789"), false);
    attack(c, receive(c.to_writer));
    ::shutdown(c.to_reader.get(), SHUT_WR);
    Bytes got(10);
    for (int i = 0; i < 3; ++i) {
      try {
        if (!c.reader->read(got)) return std::string("an end");
      } catch (const CommunicationError& e) {
        return std::to_string(i) + " " + e.what();
      }
    }
    return std::string("no error");
  };
  CHECK(error_after([](Connection& c, Bytes record) {
          record.back() ^= std::byte{1};
          send(c.to_reader, record);
        }).starts_with("0 [secure stream] expected"));
  CHECK(error_after([](Connection& c, const Bytes& record) {
          send(c.to_reader, record);
          send(c.to_reader, record);
        }).starts_with("1 [secure stream] expected"));
  CHECK(error_after([](Connection& c, const Bytes&) {
          constexpr std::array<unsigned char, 5> header{23, 3, 3, 0xff, 0xff};
          send(c.to_reader, std::as_bytes(std::span(header)));
        }).starts_with("0 [secure stream] expected"));
  CHECK(error_after([](Connection& c, const Bytes& record) {
          send(c.to_reader, record);
        }).starts_with("1 [secure stream] expected a connection that ends with a message of TLS"));
  CHECK(error_after([](Connection& c, const Bytes& record) {
          send(c.to_reader, record);
          c.writer->finish();
          send(c.to_reader, receive(c.to_writer));
        }) == "an end");
}

TEST_CASE("stop() ends a read of another thread") {
  const TlsStreams tls;
  Connection c(tls);
  c.handshake();
  std::string error;
  std::thread reads([&] {
    Bytes got(10);
    try {
      static_cast<void>(c.reader->read(got));
    } catch (const CommunicationError& e) {
      error = e.what();
    }
  });
  c.reader->stop();
  reads.join();
  CHECK(error.find("[secure stream]") == 0);
}
