// SPDX-License-Identifier: MIT
#pragma once

#include <zmq.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/zeromq/refused_connections.hpp>
#include <tutti/backends/zeromq/security.hpp>
#include <tutti/backends/zeromq/socket.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/descriptor_limit.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>

// ps::Transport over ZeroMQ: one connection between each worker and each server.
namespace tutti::zeromq {

struct Options {  // options for both ends of a transport
  Security security{};
  // If no data is on its way to a host, and it does not answer the kernel's probes for twice this time, it is lost. A
  // host's kernel answers even if the process computes or is paused. The arbiter of the job notices all these losses
  // earlier.
  std::chrono::milliseconds lost_after = std::chrono::seconds(10);
  // The time within which the last messages must be transmitted after this end is closed: the other end may be gone.
  std::chrono::milliseconds last_words{500};
};

namespace detail {

inline void set_up(Socket& s, const Options& o) {
  // Uses TCP's keep-alive instead of ZeroMQ's heartbeats: after both ends were paused, the timers of heartbeats would
  // expire before any data is read.
  const int seconds = std::max(static_cast<int>(o.lost_after.count() / 1000), 1);
  s.set(ZMQ_TCP_KEEPALIVE, 1);
  s.set(ZMQ_TCP_KEEPALIVE_IDLE, seconds);
  s.set(ZMQ_TCP_KEEPALIVE_INTVL, 1);
  s.set(ZMQ_TCP_KEEPALIVE_CNT, seconds);
  // Without these limits ZeroMQ drops no message silently. The senders limit how many messages are in flight.
  s.set(ZMQ_SNDHWM, 0);
  s.set(ZMQ_RCVHWM, 0);
  s.set(ZMQ_LINGER, static_cast<int>(o.last_words.count()));
  // CURVE adds a few bytes to each part.
  s.set(ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(ps::max_data + 256));
  s.set(ZMQ_IPV6, 1);
}
[[nodiscard]] inline long left(ps::Moment deadline) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<long>(std::clamp<std::int64_t>(ms, 0, 60'000));
}

}  // namespace detail

// The address of a server, and its key if the connection is encrypted. `start` differs after each start of the server.
struct ServerEndpoint {
  std::string address, key{}, start{};
};

// A worker's end of the transport.
class WorkerEnd {
 public:
  using Message = zeromq::Message;
  static constexpr const char* ended = "its connection ended";  // reason for the loss of a connected server

  using Find = std::function<std::optional<ServerEndpoint>(int server)>;
  // servers: in the order of their numbers. find: returns the new address of a server that was lost; null if servers do
  // not restart.
  WorkerEnd(int rank, std::vector<ServerEndpoint> servers, const Options& o, Find find = {})
      : rank_(rank), o_(o), find_(std::move(find)), context_(1), endpoints_(std::move(servers)) {
    // Only this process may have this name: ZeroMQ ignores a second connection with the same name.
    std::random_device device;
    name_ = {static_cast<std::uint32_t>(rank) << 8 | 1U, device(), device(), device()};
    for (const ServerEndpoint& d : endpoints_) connections_.push_back(std::make_unique<Connection>(*this, d));
    lost_.resize(endpoints_.size());
  }

  [[nodiscard]] std::string name() const {
    return o_.security.kind == Security::Kind::curve ? "ZeroMQ with CURVE" : "ZeroMQ";
  }
  [[nodiscard]] std::string peer_name(std::int64_t s) const {
    return s >= 0 && static_cast<std::size_t>(s) < endpoints_.size() ? endpoints_[static_cast<std::size_t>(s)].address
                                                                     : "";
  }
  // Connects to a lost server that has restarted. Returns false if the server has not restarted.
  bool reopen(std::int64_t s) {
    const auto i = static_cast<std::size_t>(s);
    auto endpoint = find_ ? find_(static_cast<int>(s)) : std::nullopt;
    if (!endpoint || endpoint->start == endpoints_[i].start) return false;
    // Drops messages that still wait in the old connection.
    connections_[i]->socket.set(ZMQ_LINGER, 0);
    endpoints_[i] = *std::move(endpoint);
    connections_[i] = std::make_unique<Connection>(*this, endpoints_[i]);
    ending_.erase(i);
    lost_[i] = false;
    return true;
  }
  bool send(std::int64_t s, std::span<const std::byte> head, std::span<const std::byte> data, ps::PendingSends* kept) {
    const auto i = static_cast<std::size_t>(s);
    return !lost_[i] && send_frame(connections_[i]->socket.get(), {}, head, data, kept);
  }
  ps::Event<Message> receive(ps::Moment deadline) {
    const std::size_t n = connections_.size();
    for (;;) {
      for (std::size_t i = 0; i < n; ++i) {
        next_ = (next_ + 1) % n;
        if (auto e = take(next_); e.what != ps::Event<Message>::What::nothing) return e;
      }
      if (waker_.take()) return {};
      polled_.clear();
      for (std::size_t i = 0; i < n; ++i) {
        if (lost_[i]) continue;
        polled_.push_back({connections_[i]->socket.get(), 0, ZMQ_POLLIN, 0});
        polled_.push_back({connections_[i]->monitor->get(), 0, ZMQ_POLLIN, 0});
      }
      polled_.push_back({nullptr, waker_.get(), ZMQ_POLLIN, 0});
      const long ms = detail::left(deadline);
      if (zmq_poll(polled_.data(), static_cast<int>(polled_.size()), ms) == 0 &&
          std::chrono::steady_clock::now() >= deadline)
        return {};
    }
  }
  void wake() noexcept { waker_.wake(); }

 private:
  struct Connection {
    Connection(WorkerEnd& of, const ServerEndpoint& to) : socket(of.context_, ZMQ_DEALER) {
      detail::set_up(socket, of.o_);
      socket.set(ZMQ_ROUTING_ID, {reinterpret_cast<const char*>(of.name_.data()), sizeof of.name_});
      Security by = of.o_.security;
      by.server_key = to.key;
      secure_worker(socket, by, of.rank_);
      monitor.emplace(of.context_, socket, std::to_string(of.opened_++));
      if (zmq_connect(socket.get(), ("tcp://" + to.address).c_str()) != 0) fail_zmq("connect to " + to.address);
    }
    Socket socket;
    std::optional<Monitor> monitor;
  };

  // Returns messages that a server sent before its connection ended, and then the end.
  ps::Event<Message> take(std::size_t s) {
    ps::Event<Message> e;
    e.peer = static_cast<std::int64_t>(s);
    std::string why;
    while (const auto said = connections_[s]->monitor->next()) {
      if (said->event == ZMQ_EVENT_DISCONNECTED) why = ended;
      if (said->event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) why = "it does not admit this worker";
      if (said->event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL || said->event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        why = "it has other keys, or is another program";
    }
    if (!why.empty() && ending_.count(s) == 0 && !lost_[s]) ending_[s] = why;
    if (lost_[s]) return e;
    e.message.read(connections_[s]->socket.get());
    if (!e.message.head().empty()) {
      e.what = ps::Event<Message>::What::message;
    } else if (const auto end = ending_.find(s); end != ending_.end()) {
      lost_[s] = true;
      e.what = ps::Event<Message>::What::lost;
      e.why = end->second;
      ending_.erase(end);
    }
    return e;
  }

  int rank_;
  Options o_;
  Find find_;
  Context context_;
  std::array<std::uint32_t, 4> name_{};
  std::vector<ServerEndpoint> endpoints_;
  Waker waker_;
  std::vector<std::unique_ptr<Connection>> connections_;
  int opened_ = 0;
  std::vector<bool> lost_;
  std::map<std::size_t, std::string> ending_;  // the reason of an end, until all messages before it are read
  std::vector<zmq_pollitem_t> polled_;
  std::size_t next_ = 0;
};
static_assert(ps::Reopening<WorkerEnd>);

// A server's end of the transport, bound to a port.
class ServerEnd {
 public:
  using Message = zeromq::Message;

  // address: "host:port" of this host. Port 0: any free port. Throws CommunicationError if the port is in use.
  ServerEnd(const std::string& address, const Options& o) : context_(2), authenticator_(context_, o.security) {
    // Connections of strangers use descriptors until their handshakes time out.
    io::raise_descriptor_limit();
    detail::set_up(socket_, o);
    socket_.set(ZMQ_ROUTER_MANDATORY, 1);
    socket_.set(ZMQ_HANDSHAKE_IVL, 5000);
    if (o.security.kind != Security::Kind::none) authenticator_.secure(socket_, o.security);
    monitor_.emplace(context_, socket_, "server", ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    std::string at = address;
    if (at.ends_with(":0")) at.replace(at.size() - 1, 1, "*");
    if (zmq_bind(socket_.get(), ("tcp://" + at).c_str()) != 0)
      fail<CommunicationError>("parameter server", {"to listen at ", address}, zmq_strerror(zmq_errno()),
                               "another program uses that port, perhaps a job that has not ended");
  }

  // Returns the port on which it listens.
  [[nodiscard]] int port() const {
    std::array<char, 256> at{};
    std::size_t size = at.size();
    if (zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, at.data(), &size) != 0) fail_zmq("learn its port");
    const std::string text(at.data());
    return std::stoi(text.substr(text.rfind(':') + 1));
  }
  [[nodiscard]] std::string name() const { return "ZeroMQ"; }
  [[nodiscard]] std::string peer_name(std::int64_t peer) const {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? "somebody" : found->second.address;
  }
  // For workers that join and leave: admits or dismisses a worker by its open key. Call both on the receiving thread.
  void admit(std::uint32_t worker, const std::string& key) { authenticator_.admit(worker, key); }
  void dismiss(std::uint32_t worker) { authenticator_.dismiss(worker); }
  // Logs the connections that `server` refuses, at most one line a minute for each kind. Call it on the receiving
  // thread.
  void log_refusals(const std::string& server, const std::function<void(const std::string&)>& log) {
    refused_.log_to(server, log);
  }
  // Returns the number of refused connections.
  [[nodiscard]] std::uint64_t turned_away() const noexcept { return refused_.total(); }

  bool send(std::int64_t peer, std::span<const std::byte> head, std::span<const std::byte> data,
            ps::PendingSends* kept) {
    const auto found = peers_.find(peer);
    return found != peers_.end() && send_frame(socket_.get(), found->second.id, head, data, kept);
  }
  ps::Event<Message> receive(ps::Moment deadline) {
    for (;;) {
      authenticator_.answer();
      note_ends();
      if (auto e = take(); e.what != ps::Event<Message>::What::nothing) return e;
      if (waker_.take()) return {};
      zmq_pollitem_t polled[] = {{socket_.get(), 0, ZMQ_POLLIN, 0},
                                 {monitor_->get(), 0, ZMQ_POLLIN, 0},
                                 {authenticator_.get(), 0, ZMQ_POLLIN, 0},
                                 {nullptr, waker_.get(), ZMQ_POLLIN, 0}};
      if (zmq_poll(polled, 4, detail::left(deadline)) == 0 && std::chrono::steady_clock::now() >= deadline) return {};
    }
  }
  void wake() noexcept { waker_.wake(); }

 private:
  struct Peer {
    std::string id, address;
    int fd = -1;
  };
  static constexpr const char* ended = "its connection ended";

  // A connection is identified by its descriptor, which a later connection may get too.
  void note_ends() {
    const auto now = RefusedConnections::Clock::now();
    refused_.say(now);
    while (const auto said = monitor_->next()) {
      if (said->event != ZMQ_EVENT_DISCONNECTED) {
        refused_.hear(said->event, now);
        continue;
      }
      const auto found = by_fd_.find(static_cast<int>(said->value));
      if (found == by_fd_.end()) {
        refused_.ended_unknown(now);
        continue;
      }
      ending_.push_back(found->second);
      by_fd_.erase(found);
    }
  }
  // Returns messages that a worker sent before its connection ended, and then the end.
  ps::Event<Message> take() {
    ps::Event<Message> e;
    Part id;
    int rc = -1;
    while ((rc = zmq_msg_recv(id.get(), socket_.get(), ZMQ_DONTWAIT)) < 0 && zmq_errno() == EINTR) {
    }
    if (rc >= 0) {
      const bool more = id.more();
      if (more) e.message.read(socket_.get());
      e.what = ps::Event<Message>::What::message;
      e.peer = peer_of(id, e.message.head_);
      e.identity = e.message.head_.property("User-Id");
    } else if (!ending_.empty()) {
      e.what = ps::Event<Message>::What::lost;
      e.peer = ending_.front();
      e.why = ended;
      ending_.pop_front();
      const auto found = peers_.find(e.peer);
      const auto named = by_id_.find(found->second.id);
      if (named != by_id_.end() && named->second == e.peer) by_id_.erase(named);
      peers_.erase(found);
    }
    return e;
  }
  std::int64_t peer_of(Part& id, Part& head) {
    const int fd = zmq_msg_get(head.get(), ZMQ_SRCFD);
    const std::string name(id.text());
    const auto found = by_id_.find(name);
    if (found != by_id_.end() && peers_.at(found->second).fd == fd) return found->second;
    // A new connection, of a new worker or of a worker that has reconnected.
    const std::int64_t number = next_++;
    refused_.became_known();
    const auto forget = [&](std::int64_t old) {
      if (std::find(ending_.begin(), ending_.end(), old) == ending_.end()) ending_.push_back(old);
    };
    if (found != by_id_.end()) {
      by_fd_.erase(peers_.at(found->second).fd);
      forget(found->second);
    }
    if (const auto other = by_fd_.find(fd); other != by_fd_.end()) forget(other->second);
    by_id_[name] = number;
    by_fd_[fd] = number;
    peers_[number] = {name, head.property("Peer-Address"), fd};
    return number;
  }

  Context context_;
  Waker waker_;
  Authenticator authenticator_;  // must be constructed before the socket that uses it
  Socket socket_{context_, ZMQ_ROUTER};
  std::optional<Monitor> monitor_;
  RefusedConnections refused_;
  std::map<std::int64_t, Peer> peers_;
  std::map<std::string, std::int64_t> by_id_;
  std::map<int, std::int64_t> by_fd_;
  std::deque<std::int64_t> ending_;
  std::int64_t next_ = 0;
};
static_assert(ps::Transport<ServerEnd>);

}  // namespace tutti::zeromq
