// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/job/control_messages.hpp>

namespace tutti::control {

using Seat = std::uint64_t;  // a connection to the arbiter, as whoever carries the frames numbers it
struct Outgoing {
  Seat seat = 0;
  Message message;
};

// Where the processes of a job meet: texts by key, which the arbiter keeps for them. Any process sets any key, the last
// one holds; who waits for a key is answered once it is set. What one job may keep and one process wait for is bounded.
class ControlStore {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 20, most_waiting = 256, most_drawn = 256;

  void publish(Seat seat, const Publish& p, std::vector<Outgoing>& out) {
    const auto at = values_.find(p.key);
    const std::size_t old = at == values_.end() ? 0 : size_of(p.key, at->second);
    if (p.key.empty() || bytes_ - old + size_of(p.key, p.value) > most_bytes) {
      out.push_back({seat, Value{p.request, false, p.key.empty() ? "a key without a name" : "no room left"}});
      return;
    }
    bytes_ += size_of(p.key, p.value) - old;
    values_[p.key] = p.value;
    out.push_back({seat, Value{p.request, true, ""}});
    std::erase_if(waiting_, [&](const Waiter& w) {
      if (w.key == p.key) out.push_back({w.seat, Value{w.request, true, p.value}});
      return w.key == p.key;
    });
  }
  void lookup(Seat seat, const Lookup& l, std::vector<Outgoing>& out) {
    const auto at = values_.find(l.key);
    if (at != values_.end()) {
      out.push_back({seat, Value{l.request, true, at->second}});
    } else if (!l.wait) {
      out.push_back({seat, Value{l.request, false, ""}});
    } else if (std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiter& w) { return w.seat == seat; }) >=
               std::ptrdiff_t{most_waiting}) {
      out.push_back({seat, Value{l.request, false, "too many keys waited for"}});
    } else {
      waiting_.push_back({seat, l.request, l.key});
    }
  }
  void draw(Seat seat, const Draw& d, std::vector<Outgoing>& out) {
    const auto at = drawn_.find(d.key);
    if (at == drawn_.end() && drawn_.size() == most_drawn) {
      out.push_back({seat, Value{d.request, false, "no room left"}});
      return;
    }
    out.push_back({seat, Value{d.request, true, std::to_string(drawn_[d.key]++)}});
  }
  void forget(Seat seat, std::uint64_t request) {
    std::erase_if(waiting_, [&](const Waiter& w) { return w.seat == seat && w.request == request; });
  }
  void forget(Seat seat) {
    std::erase_if(waiting_, [&](const Waiter& w) { return w.seat == seat; });
  }

 private:
  struct Waiter {
    Seat seat;
    std::uint64_t request;
    std::string key;
  };
  // With what the map itself takes.
  [[nodiscard]] static std::size_t size_of(const std::string& key, const std::string& value) noexcept {
    return key.size() + value.size() + 128;
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, std::uint64_t> drawn_;  // the next number
  std::vector<Waiter> waiting_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::control
