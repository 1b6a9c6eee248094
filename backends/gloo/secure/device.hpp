// SPDX-License-Identifier: MIT
#pragma once

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/device.hpp>
#include <tutti/backends/gloo/secure/buffer.hpp>
#include <tutti/backends/gloo/secure/pair.hpp>
#include <tutti/comm/net/hmac_sha256.hpp>
#include <tutti/comm/net/refusal_counts.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/threads/threads.hpp>

// Gloo's interfaces over encrypted streams: the device and the group, which admits the peers.
namespace tutti {

struct GlooSecurity {  // of one group
  const SecureStreams* streams = nullptr;
  std::shared_ptr<RefusalCounts> refusals{};
  std::string address{};  // an address of this host, on which it listens
  std::string secret{};   // common to the ranks of this group alone
  std::string group{};    // its name, sent unencrypted
  std::string self{};     // the name of this rank, for messages
};

namespace detail {

class SecureContext final : public ::gloo::transport::Context {
 public:
  SecureContext(int me, int ranks, GlooSecurity security)
      : Context(me, ranks), security_(std::move(security)), connections_(std::make_shared<Connections>(ranks)) {
    listener_ = listen_at(security_.address);
    admission_ = start_thread("gloo", [this] { admit(); });
  }
  ~SecureContext() override {
    stopped_ = true;
    admission_.join();
    for (auto& p : pairs_) p.reset();
    const std::lock_guard lock(connections_->mutex);
    std::fill(connections_->pairs.begin(), connections_->pairs.end(), nullptr);
  }
  SecureContext(const SecureContext&) = delete;
  SecureContext& operator=(const SecureContext&) = delete;

  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override {
    Connections& c = *connections_;
    auto p = std::make_unique<SecurePair>(
        peer, c.mutex, SecureAddress(found_text() + " " + std::to_string(tcp::port_of(listener_))),
        [&c](int from, std::uint64_t slot, SecureMessage& to) { return c.take(from, slot, to); },
        [&c] { c.fail_posts(); });
    // As with Gloo's TCP transport, the time-out of a connection is five times that of the group.
    p->how({[this] { return std::chrono::steady_clock::now() + 5 * getTimeout(); },
            [this, peer](tcp::Socket s) {
              const std::string name = identity(rank, peer);
              return security_.streams->connect(std::move(s), name, key(name));
            }});
    const std::lock_guard lock(c.mutex);
    auto& at = pairs_.at(static_cast<std::size_t>(peer));
    c.pairs.at(static_cast<std::size_t>(peer)) = p.get();
    at = std::move(p);
    return at;
  }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override {
    return std::make_unique<SecureBuffer>(connections_, data, bytes, getTimeout());
  }

 private:
  struct Connections final : SecureConnections {
    explicit Connections(int ranks) : pairs(static_cast<std::size_t>(ranks)) {}

    void send(int to, SecureMessage m) override {
      const std::lock_guard lock(mutex);
      working(to).enqueue(std::move(m));
    }
    void receive(SecureMessage m) override {
      const std::lock_guard lock(mutex);
      const std::vector<int> from = m.from;
      if (std::all_of(from.begin(), from.end(), [&](int r) { return !at(r).error().empty(); }))
        static_cast<void>(working(from.empty() ? -1 : from.front()));
      posts.push_back(std::move(m));
      for (const int r : from) at(r).look();
    }
    void release(SecureBuffer& buffer) override {
      std::unique_lock lock(mutex);
      std::erase_if(posts, [&](const SecureMessage& m) { return m.buffer == &buffer; });
      for (SecurePair* p : pairs)
        while (p != nullptr && !p->forget(buffer)) p->wait(lock);
    }
    [[nodiscard]] bool take(int from, std::uint64_t slot, SecureMessage& to) {
      const auto post = std::find_if(posts.begin(), posts.end(), [&](const SecureMessage& m) {
        return m.slot == slot && std::find(m.from.begin(), m.from.end(), from) != m.from.end();
      });
      if (post == posts.end()) return false;
      to = std::move(*post);
      posts.erase(post);
      return true;
    }
    void fail_posts() {
      std::erase_if(posts, [&](const SecureMessage& m) {
        if (!std::all_of(m.from.begin(), m.from.end(), [&](int r) { return !at(r).error().empty(); })) return false;
        m.buffer->fail(at(m.from.front()).error());
        return true;
      });
    }
    [[nodiscard]] SecurePair& at(int r) {
      if (r < 0 || static_cast<std::size_t>(r) >= pairs.size() || pairs[static_cast<std::size_t>(r)] == nullptr)
        throw ::gloo::InvalidOperationException("no connection with rank " + std::to_string(r));
      return *pairs[static_cast<std::size_t>(r)];
    }
    [[nodiscard]] SecurePair& working(int r) {
      SecurePair& p = at(r);
      if (!p.error().empty()) throw ::gloo::IoException(p.error());
      return p;
    }

    std::vector<SecurePair*> pairs;
    std::vector<SecureMessage> posts;  // in the order in which they were posted
  };
  struct Candidate {
    std::unique_ptr<SecureStream> stream;
    std::string from;
    tcp::Moment until{};
    short events = POLLIN;
  };

  [[nodiscard]] std::string found_text() const {
    tcp::Address a;
    a.size = sizeof a.bytes;
    return ::getsockname(listener_.get(), a.data(), &a.size) == 0 ? a.text() : std::string();
  }
  // Each direction of each pair has a key of its own, so a connection cannot be reflected to its sender.
  [[nodiscard]] std::string identity(int from, int to) const {
    return security_.group + " " + std::to_string(from) + ">" + std::to_string(to);
  }
  [[nodiscard]] Digest256 key(const std::string& name) const {
    return HmacSha256(security_.secret).add("tutti gloo connection 1\n").add(name).digest();
  }
  [[nodiscard]] int peer_of(std::string_view name) const {
    for (int r = 0; r < size; ++r)
      if (r != rank && name == identity(r, rank)) return r;
    return -1;
  }
  [[nodiscard]] bool complete() {
    const std::lock_guard lock(connections_->mutex);
    for (int r = 0; r < size; ++r) {
      const SecurePair* p = connections_->pairs[static_cast<std::size_t>(r)];
      if (r != rank && (p == nullptr || !p->is_admitted())) return false;
    }
    return true;
  }

  // Admits the peers, until all of them are connected. Handshakes run at the same time, so strangers delay no peer.
  void admit() {
    constexpr std::size_t most = 256;  // candidates; the oldest one must leave for a further one
    constexpr std::chrono::milliseconds slice{50};
    constexpr std::chrono::seconds patience{10};
    std::vector<Candidate> candidates;
    while (!stopped_ && !complete()) {
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      for (const Candidate& c : candidates) polled.push_back({c.stream->descriptor(), c.events, 0});
      if (::poll(polled.data(), polled.size(), static_cast<int>(slice.count())) < 0) continue;
      for (std::size_t i = candidates.size(); i-- > 0;) {
        const bool late = tcp::over(candidates[i].until);
        if (late) refuse(Refusal::silent, candidates[i].from);
        if (late || (polled[i + 1].revents != 0 && advance(candidates[i])))
          candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[0].revents == 0) continue;
      tcp::Address from;
      from.size = sizeof from.bytes;
      tcp::Socket s(::accept4(listener_.get(), from.data(), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (s.get() < 0) continue;
      if (candidates.size() == most) {
        refuse(Refusal::silent, candidates.front().from);
        candidates.erase(candidates.begin());
      }
      const auto key_of = [this](std::string_view name) {
        return peer_of(name) < 0 ? std::nullopt : std::optional(key(std::string(name)));
      };
      candidates.push_back(
          {security_.streams->accept(std::move(s), key_of), from.text(), std::chrono::steady_clock::now() + patience});
    }
    listener_ = tcp::Socket();
  }
  // Returns whether the candidate is no longer one.
  [[nodiscard]] bool advance(Candidate& c) {
    try {
      const auto state = c.stream->advance();
      c.events = state == SecureStream::Handshake::writes ? POLLOUT : POLLIN;
      if (state != SecureStream::Handshake::done) return false;
    } catch (const RefusedStream& e) {
      refuse(e.refusal, c.from);
      return true;
    }
    const int peer = peer_of(c.stream->identity());
    SecurePair* pair = nullptr;
    {
      const std::lock_guard lock(connections_->mutex);
      pair = peer < 0 ? nullptr : connections_->pairs[static_cast<std::size_t>(peer)];
    }
    if (pair == nullptr || !pair->admit(std::move(c.stream))) refuse(Refusal::handshake, c.from);
    return true;
  }
  void refuse(Refusal r, const std::string& from) const { security_.refusals->count(r, security_.self, from); }

  GlooSecurity security_;
  std::shared_ptr<Connections> connections_;
  tcp::Socket listener_;
  std::atomic<bool> stopped_{false};
  std::thread admission_;
};

}  // namespace detail

// Gloo's device for one group with encrypted connections.
class GlooSecureDevice final : public ::gloo::transport::Device {
 public:
  explicit GlooSecureDevice(GlooSecurity security) : security_(std::move(security)) {}

  [[nodiscard]] std::string str() const override { return security_.streams->name() + " at " + security_.address; }
  [[nodiscard]] const std::string& getPCIBusID() const override { return no_bus_; }
  std::shared_ptr<::gloo::transport::Context> createContext(int rank, int size) override {
    return std::make_shared<detail::SecureContext>(rank, size, security_);
  }

 private:
  GlooSecurity security_;
  std::string no_bus_;
};

}  // namespace tutti
