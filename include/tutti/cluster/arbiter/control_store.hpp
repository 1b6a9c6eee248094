// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/control_messages.hpp>

namespace tutti::control {

using ConnectionId = std::uint64_t;  // number of a connection, given by the carrier of its frames
struct Outgoing {                    // a message and its destination
  ConnectionId connection = 0;
  Message message;
};

// The store through which the processes of a job find each other: it keeps a text for each key. Any process may set any
// key, and the last value counts. A process that waits for a key gets its value when the key is set. The bytes of a
// job, the keys for which one process waits, and the keys of next_number() are limited. Keys of a generation
// (generation_key() in comm/key_store.hpp) are deleted by forget_before().
class ControlStore {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 20, most_waiting = 256, most_counters = 256;

  void publish(ConnectionId connection, const Publish& p, std::vector<Outgoing>& out) {
    if (const auto g = generation_of(p.key); g && *g < oldest_) {
      out.push_back({connection, Value{p.request, false, over}});
      return;
    }
    const auto at = values_.find(p.key);
    const std::size_t old = at == values_.end() ? 0 : size_of(p.key, at->second);
    if (p.key.empty() || bytes_ - old + size_of(p.key, p.value) > most_bytes) {
      out.push_back({connection, Value{p.request, false, p.key.empty() ? "an empty key" : "a full key store"}});
      return;
    }
    bytes_ += size_of(p.key, p.value) - old;
    values_[p.key] = p.value;
    out.push_back({connection, Value{p.request, true, ""}});
    std::erase_if(waiting_, [&](const PendingLookup& w) {
      if (w.key == p.key) out.push_back({w.connection, Value{w.request, true, p.value}});
      return w.key == p.key;
    });
  }
  void lookup(ConnectionId connection, const Lookup& l, std::vector<Outgoing>& out) {
    const auto at = values_.find(l.key);
    if (at != values_.end()) {
      out.push_back({connection, Value{l.request, true, at->second}});
    } else if (!l.wait) {
      out.push_back({connection, Value{l.request, false, ""}});
    } else if (std::count_if(waiting_.begin(), waiting_.end(), [&](const PendingLookup& w) {
                 return w.connection == connection;
               }) >= std::ptrdiff_t{most_waiting}) {
      out.push_back({connection, Value{l.request, false, "too many pending lookups"}});
    } else {
      waiting_.push_back({connection, l.request, l.key});
    }
  }
  void next_number(ConnectionId connection, const NextNumber& d, std::vector<Outgoing>& out) {
    const auto at = next_numbers_.find(d.key);
    if (at == next_numbers_.end() && next_numbers_.size() == most_counters) {
      out.push_back({connection, Value{d.request, false, "a full key store"}});
      return;
    }
    out.push_back({connection, Value{d.request, true, std::to_string(next_numbers_[d.key]++)}});
  }
  // Deletes the keys of all generations before `generation`.
  void forget_before(std::uint64_t generation) {
    if (generation <= oldest_) return;
    oldest_ = generation;
    std::erase_if(values_, [&](const auto& v) {
      const auto g = generation_of(v.first);
      if (!g || *g >= oldest_) return false;
      bytes_ -= size_of(v.first, v.second);
      return true;
    });
  }
  void forget(ConnectionId connection, std::uint64_t request) {
    std::erase_if(waiting_, [&](const PendingLookup& w) { return w.connection == connection && w.request == request; });
  }
  void forget(ConnectionId connection) {
    std::erase_if(waiting_, [&](const PendingLookup& w) { return w.connection == connection; });
  }

 private:
  struct PendingLookup {
    ConnectionId connection;
    std::uint64_t request;
    std::string key;
  };
  // Returns the generation of a key that generation_key() made, and no value for other keys.
  [[nodiscard]] static std::optional<std::uint64_t> generation_of(std::string_view key) noexcept {
    std::uint64_t g = 0;
    if (!key.starts_with('@')) return {};
    const auto [p, e] = std::from_chars(key.data() + 1, key.data() + key.size(), g);
    if (e != std::errc{} || p == key.data() + key.size() || *p != '/') return {};
    return g;
  }
  // Returns the bytes of an entry, with those that the map itself needs.
  [[nodiscard]] static std::size_t size_of(const std::string& key, const std::string& value) noexcept {
    return key.size() + value.size() + 128;
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, std::uint64_t> next_numbers_;  // by key
  std::vector<PendingLookup> waiting_;
  std::size_t bytes_ = 0;
  std::uint64_t oldest_ = 0;  // keys of this generation and of later ones are kept
};

}  // namespace tutti::control
