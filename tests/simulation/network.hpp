// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "clock.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// The sockets and pipes of the simulated processes. A message arrives after a random delay, and after the messages that
// were sent before it over the same connection. If the way is cut, it arrives when the cut is over, as over TCP.
class Network {
 public:
  static constexpr int first_descriptor = 1'000'000;
  static constexpr std::size_t capacity = std::size_t{1} << 20;  // bytes on the way, over one connection

  // One end of a connection.
  struct Socket {
    struct Message {
      Nanos arrives;
      std::string bytes;
    };
    Process* owner = nullptr;
    int peer = 0;
    std::deque<Message> arriving{};
    std::size_t bytes = 0;
    Nanos last = 0;     // arrival of the last message
    Nanos end = never;  // arrival of the news that the peer has closed its end
    bool open = true, waits = true;
    Nanos send_timeout = never;
    bool was_reset = false;
  };

  explicit Network(Scheduler& scheduler) : scheduler_(scheduler) { current_ = this; }
  ~Network() { current_ = nullptr; }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  [[nodiscard]] static Network* current() noexcept { return current_; }

  // Whether messages on the way are lost with the machine that sent them.
  bool loses_messages = false;

  // Returns the moment of a process's clock at which the simulation's time is `at`.
  [[nodiscard]] static Moment moment(const Process& p, Nanos at) {
    return at == never ? Moment{} : Moment{CLOCK_BOOTTIME, p.clocks.read(CLOCK_BOOTTIME, at)};
  }

  // Returns the descriptors of the two ends of a new connection. A process owns its end after claim().
  std::pair<int, int> connect(Process& a, Process& b, bool waits = true) {
    const int first = first_descriptor + static_cast<int>(sockets_.size());
    for (int i = 0; i < 2; ++i) {
      Socket& s = sockets_.emplace_back();
      s.owner = i == 0 ? &a : &b;
      s.peer = first + 1 - i;
      s.waits = waits;
    }
    if (!a.runs()) close(first);
    if (!b.runs()) close(first + 1);
    return {first, first + 1};
  }
  int claim(int descriptor) {
    if (Socket* s = find(descriptor)) s->owner->descriptors.insert(descriptor);
    return descriptor;
  }
  // Returns the socket of an open descriptor of the running process, or null.
  [[nodiscard]] Socket* find(int descriptor) {
    const int i = descriptor - first_descriptor;
    if (i < 0 || i >= static_cast<int>(sockets_.size())) return nullptr;
    Socket& s = sockets_[static_cast<std::size_t>(i)];
    return s.open ? &s : nullptr;
  }
  [[nodiscard]] static bool owns(int descriptor) noexcept { return descriptor >= first_descriptor; }

  // ---- one connection ----
  // Returns whether the peer accepts no more bytes now.
  [[nodiscard]] bool is_full(const Socket& from) { return peer(from).bytes >= capacity; }
  // Returns whether this end knows that the peer has closed its end.
  [[nodiscard]] bool peer_is_gone(const Socket& from) { return arrival(from, from.end) <= scheduler_.now(); }
  void send(const Socket& from, std::string bytes) {
    Socket& to = peer(from);
    if (!to.open || to.was_reset) return;
    to.bytes += bytes.size();
    to.last = std::max(to.last, scheduler_.now() + delay(*from.owner, *to.owner));
    to.arriving.push_back({to.last, std::move(bytes)});
    scheduler_.wake_all(to.owner);
    if (to.owner != from.owner && from.owner == &scheduler_.process()) scheduler_.count_send();
  }
  // Returns the time at which the next message or the end of the connection can be read.
  [[nodiscard]] Nanos readable_at(const Socket& s) {
    return arrival(s, s.arriving.empty() ? s.end : s.arriving.front().arrives);
  }
  // Takes the next message, which is readable. An empty text is the end of the connection.
  [[nodiscard]] std::string take(Socket& s) {
    if (s.arriving.empty()) return {};
    std::string bytes = std::move(s.arriving.front().bytes);
    s.arriving.pop_front();
    s.bytes -= bytes.size();
    scheduler_.wake_all(peer(s).owner);
    return bytes;
  }
  // silent: the machine has lost its power, so its messages on the way are lost, and the peer does not learn of it.
  void close(int descriptor, bool silent = false) {
    Socket* s = find(descriptor);
    if (s == nullptr) return;
    s->open = false;
    s->owner->descriptors.erase(descriptor);
    Socket& other = peer(*s);
    if (!silent) other.end = std::max(other.last, scheduler_.now() + delay(*s->owner, *other.owner));
    if (silent && loses_messages) take_back(other, other.arriving.size());
    scheduler_.wake_all(other.owner);
  }

  // Takes back up to `most` of the newest messages that were sent from here and have not arrived yet.
  void take_back(int descriptor, std::size_t most) {
    if (const Socket* const s = find(descriptor)) take_back(peer(*s), most);
  }
  // Ends a connection for this end only, as a router does that has forgotten it.
  void reset(int descriptor) {
    if (Socket* const s = find(descriptor)) {
      s->arriving.clear();
      s->bytes = 0;
      s->end = scheduler_.now();
      s->was_reset = true;
      scheduler_.wake_all(s->owner);
    }
  }
  // Closes all sockets of a process that has ended.
  void close_all(const Process& p, bool silent) {
    for (std::size_t i = 0; i < sockets_.size(); ++i)
      if (sockets_[i].owner == &p) close(first_descriptor + static_cast<int>(i), silent);
  }

  // ---- the ways between processes ----
  // Cuts the way from one process to another for a time. Later cuts replace earlier ones.
  void cut(const Process& from, const Process& to, Nanos time) {
    ways_[{from.number, to.number}].cut = {scheduler_.now(), scheduler_.now() + time};
    scheduler_.wake_all(&to);
  }
  [[nodiscard]] bool is_cut(const Process& from, const Process& to) {
    const Way& w = ways_[{from.number, to.number}];
    return w.cut.first <= scheduler_.now() && scheduler_.now() < w.cut.second;
  }
  // Returns whether a way between two processes is cut.
  [[nodiscard]] bool is_cut_off(const Process& a, const Process& b) { return is_cut(a, b) || is_cut(b, a); }
  // Sets the longest delay of a message.
  void slow(const Process& from, const Process& to, Nanos most) { ways_[{from.number, to.number}].most = most; }
  // Returns the delay of a message from one process to another that is sent now.
  [[nodiscard]] Nanos delay(const Process& from, const Process& to) {
    if (&from == &to) return 0;
    return scheduler_.noise().between(50'000, ways_[{from.number, to.number}].most);
  }

 private:
  struct Way {
    Nanos most = 3 * ms;
    std::pair<Nanos, Nanos> cut{0, 0};  // begin and end
  };

  void take_back(Socket& to, std::size_t most) {
    for (; most > 0 && !to.arriving.empty() && to.arriving.back().arrives > scheduler_.now(); --most) {
      to.bytes -= to.arriving.back().bytes.size();
      to.arriving.pop_back();
    }
  }
  [[nodiscard]] Socket& peer(const Socket& s) { return sockets_[static_cast<std::size_t>(s.peer - first_descriptor)]; }
  // Returns when something that would arrive at `at` arrives, with the cut of the way.
  [[nodiscard]] Nanos arrival(const Socket& to, Nanos at) {
    const Way& w = ways_[{peer(to).owner->number, to.owner->number}];
    return at != never && at >= w.cut.first ? std::max(at, w.cut.second) : at;
  }

  inline static Network* current_ = nullptr;

  Scheduler& scheduler_;
  std::deque<Socket> sockets_;
  std::map<std::pair<int, int>, Way> ways_;
};

}  // namespace tutti::simulation
