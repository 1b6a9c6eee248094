// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/arbiter/control_store.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>
#include <tutti/core/error.hpp>

namespace tutti::control {

// The arbiter and its store for connections of any kind that carry frames: the sockets of tutti-launch, or a transport
// if scripts start the job. After a frame that cannot be decoded, no further frame of its connection is accepted.
class ArbiterService {
 public:
  explicit ArbiterService(const ArbiterOptions& options) : arbiter_(options) {}

  // Handles a frame of a connection, received at `now`. Returns false for a connection's first frame that is not valid.
  bool receive(ConnectionId connection, std::string_view frame, Time now) {
    Session& session = sessions_[connection];
    if (session.broken) return true;
    try {
      const auto bytes = session.assembler.take(frame, longest_message);
      if (bytes) dispatch(connection, decode(*bytes), now);
      return true;
    } catch (const CommunicationError&) {
      session.broken = true;
      return false;
    }
  }
  // Returns whether a frame of this connection was received.
  [[nodiscard]] bool knows(ConnectionId connection) const { return sessions_.contains(connection); }
  // Notes that the process of this connection has ended. how: a text for messages.
  void ended(ConnectionId connection, const std::string& how) {
    sessions_.erase(connection);
    store_.forget(connection);
    arbiter_.ended(connection, how);
  }
  void tick(Time now) { arbiter_.tick(now); }

  // Calls f(connection, frame) for each frame that is to be sent.
  template <class F>
  void send(F&& f) {
    // A process that is one generation late may still look up the keys of its generation.
    if (arbiter_.generation() > 1) store_.forget_before(arbiter_.generation() - 1);
    for (auto& m : arbiter_.take_messages()) out_.push_back(std::move(m));
    for (const Outgoing& o : std::exchange(out_, {}))
      split_message(encode(o.message), [&](std::string_view frame) { f(o.connection, frame); });
  }
  [[nodiscard]] Arbiter& arbiter() noexcept { return arbiter_; }
  [[nodiscard]] const Arbiter& arbiter() const noexcept { return arbiter_; }

 private:
  struct Session {
    MessageAssembler assembler;
    bool broken = false;
  };

  void dispatch(ConnectionId connection, const Message& message, Time now) {
    if (const auto* p = std::get_if<Publish>(&message)) {
      store_.publish(connection, *p, out_);
    } else if (const auto* l = std::get_if<Lookup>(&message)) {
      store_.lookup(connection, *l, out_);
    } else if (const auto* d = std::get_if<NextNumber>(&message)) {
      store_.next_number(connection, *d, out_);
    } else if (const auto* f = std::get_if<Forget>(&message)) {
      store_.forget(connection, f->request);
    } else {
      arbiter_.receive(connection, message, now);
    }
  }

  Arbiter arbiter_;
  ControlStore store_;
  std::map<ConnectionId, Session> sessions_;
  std::vector<Outgoing> out_;
};

}  // namespace tutti::control
