// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include <tutti/comm/net/secure_stream.hpp>

namespace tutti {

// Counts refused connections by their kind, and logs the first, the tenth, the hundredth and so on of each kind. Any
// thread may call it.
class RefusalCounts {
 public:
  using Log = std::function<void(const std::string&)>;

  explicit RefusalCounts(Log log = [](const std::string& line) { std::fprintf(stderr, "tutti: %s\n", line.c_str()); })
      : log_(std::move(log)) {}

  // self: the name of this process, such as "rank 1 on b". from: the address of the peer.
  void count(Refusal kind, const std::string& self, const std::string& from) {
    const std::lock_guard lock(mutex_);
    Count& c = counts_[static_cast<std::size_t>(kind)];
    if (++c.number != c.next_line) return;
    c.next_line *= 10;
    log_(self + " refused " + (c.number == 1 ? "a connection" : std::to_string(c.number) + " connections, the last") +
         " from " + from + ": " + refusal_text(kind));
  }
  [[nodiscard]] std::uint64_t of(Refusal kind) const {
    const std::lock_guard lock(mutex_);
    return counts_[static_cast<std::size_t>(kind)].number;
  }

 private:
  struct Count {
    std::uint64_t number = 0, next_line = 1;
  };

  Log log_;
  mutable std::mutex mutex_;
  std::array<Count, 4> counts_{};
};

}  // namespace tutti
