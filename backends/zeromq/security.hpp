// SPDX-License-Identifier: MIT
#pragma once

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/zeromq/socket.hpp>
#include <tutti/comm/net/hmac_sha256.hpp>
#include <tutti/core/error.hpp>

// Decides which connections a server admits, and which are encrypted.
namespace tutti::zeromq {

// A pair of CURVE keys in ZeroMQ's text form: 40 characters.
struct KeyPair {
  std::string open, secret;

  [[nodiscard]] static KeyPair generate() {
    std::array<char, 41> open{}, secret{};
    if (zmq_curve_keypair(open.data(), secret.data()) != 0)
      fail<DeviceError>("ZeroMQ", "a library with CURVE", zmq_strerror(zmq_errno()),
                        "on a trusted network, --ps-plain switches encryption off");
    return {open.data(), secret.data()};
  }
  // Derives the key pair of a process from the job's secret.
  [[nodiscard]] static KeyPair of(std::string_view job_secret, std::string_view process) {
    const Digest256 digest = HmacSha256(job_secret).add("tutti curve ").add(process).digest();
    std::array<char, 41> open{}, secret{};
    static_assert(sizeof(Digest256) == 32);
    zmq_z85_encode(secret.data(), reinterpret_cast<const std::uint8_t*>(digest.data()), digest.size());
    if (zmq_curve_public(open.data(), secret.data()) != 0)
      fail<DeviceError>("ZeroMQ", "a library with CURVE", zmq_strerror(zmq_errno()),
                        "on a trusted network, --ps-plain switches encryption off");
    return {open.data(), secret.data()};
  }
};

// How the two sides of a connection authenticate each other. curve: all data is encrypted, and both sides prove that
// they have their keys. password: the worker sends a password unencrypted, which is enough if no other process can read
// the traffic, for example within a host.
struct Security {
  enum class Kind : std::uint8_t { none, password, curve };
  Kind kind = Kind::none;
  KeyPair own{};                       // for curve
  std::string server_key{};            // for curve, on a worker: the key of its server
  std::vector<std::string> workers{};  // for curve, on a server: the open keys of all workers, by rank
  std::string password{};
};

inline constexpr const char* security_domain = "tutti";

inline void secure_worker(Socket& s, const Security& by, int rank) {
  if (by.kind == Security::Kind::password) {
    s.set(ZMQ_PLAIN_USERNAME, std::string_view("worker " + std::to_string(rank)));
    s.set(ZMQ_PLAIN_PASSWORD, std::string_view(by.password));
  }
  if (by.kind == Security::Kind::curve) {
    s.set(ZMQ_CURVE_SERVERKEY, std::string_view(by.server_key));
    s.set(ZMQ_CURVE_PUBLICKEY, std::string_view(by.own.open));
    s.set(ZMQ_CURVE_SECRETKEY, std::string_view(by.own.secret));
  }
}

// Answers ZeroMQ's requests to admit connections (ZAP): without an answer ZeroMQ admits every connection. Its socket
// must be bound before the server's socket.
class Authenticator {
 public:
  Authenticator(const Context& context, const Security& by) : kind_(by.kind), password_(by.password) {
    socket_.emplace(context, ZMQ_REP);
    socket_->set(ZMQ_LINGER, 0);
    if (zmq_bind(socket_->get(), "inproc://zeromq.zap.01") != 0) fail_zmq("handle authentication requests");
    if (kind_ != Security::Kind::curve) return;
    for (std::size_t w = 0; w < by.workers.size(); ++w) admit(w, by.workers[w]);
  }
  // Admits connections of a worker with this key, until dismiss() is called.
  void admit(std::size_t worker, const std::string& key) {
    std::array<std::uint8_t, 32> raw{};
    if (key.size() != 40 || zmq_z85_decode(raw.data(), key.c_str()) == nullptr)
      fail<CommunicationError>("ZeroMQ", {"a key of worker ", worker}, "an invalid key");
    ranks_[std::string(reinterpret_cast<const char*>(raw.data()), raw.size())] = worker;
  }
  void dismiss(std::size_t worker) {
    std::erase_if(ranks_, [&](const auto& r) { return r.second == worker; });
  }
  void secure(Socket& server, const Security& by) const {
    server.set(ZMQ_ZAP_DOMAIN, std::string_view(security_domain));
    if (kind_ == Security::Kind::password) server.set(ZMQ_PLAIN_SERVER, 1);
    if (kind_ == Security::Kind::curve) {
      server.set(ZMQ_CURVE_SERVER, 1);
      server.set(ZMQ_CURVE_SECRETKEY, std::string_view(by.own.secret));
    }
  }
  [[nodiscard]] void* get() const noexcept { return socket_->get(); }
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }

  // Answers all pending requests.
  void answer() {
    for (;;) {
      std::vector<Part> asked;
      do {
        Part& p = asked.emplace_back();
        if (zmq_msg_recv(p.get(), socket_->get(), ZMQ_DONTWAIT) < 0) return;
      } while (asked.back().more());
      const std::string who = asked.size() >= 6 ? known(asked) : "";
      refused_ += who.empty() ? 1 : 0;
      const std::string_view version = asked[0].text(), id = asked.size() > 1 ? asked[1].text() : "";
      const std::string_view said[] = {version, id, who.empty() ? "400" : "200", who.empty() ? "unknown" : "", who, ""};
      for (std::size_t i = 0; i < std::size(said); ++i)
        zmq_send(socket_->get(), said[i].data(), said[i].size(), i + 1 < std::size(said) ? ZMQ_SNDMORE : 0);
    }
  }

 private:
  // Returns a name such as "worker 3", or an empty text if the connection does not belong to the job.
  [[nodiscard]] std::string known(const std::vector<Part>& asked) const {
    const std::string_view mechanism = asked[5].text();
    if (asked[0].text() != "1.0" || asked[2].text() != security_domain) return "";
    if (kind_ == Security::Kind::curve && mechanism == "CURVE" && asked.size() == 7) {
      const auto found = ranks_.find(std::string(asked[6].text()));
      return found == ranks_.end() ? "" : "worker " + std::to_string(found->second);
    }
    if (kind_ == Security::Kind::password && mechanism == "PLAIN" && asked.size() == 8 &&
        same(asked[7].text(), password_) && asked[6].text().starts_with("worker "))
      return std::string(asked[6].text());
    return "";
  }
  // Compares in a time that does not depend on the texts.
  [[nodiscard]] static bool same(std::string_view a, std::string_view b) noexcept {
    unsigned differs = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      differs |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
    return differs == 0;
  }

  Security::Kind kind_;
  std::string password_;
  std::map<std::string, std::size_t> ranks_;  // the key as bytes -> rank
  std::uint64_t refused_ = 0;
  std::optional<Socket> socket_;
};

}  // namespace tutti::zeromq
