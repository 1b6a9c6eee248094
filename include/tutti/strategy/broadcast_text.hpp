// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Returns rank 0's text on every rank; all ranks call it. Throws UsageError, with `where`, for 4096 bytes or more.
template <DistributedStrategy S>
[[nodiscard]] std::string broadcast_text(S& strategy, const std::string& where, const std::string& text) {
  const Membership m = strategy.membership();
  if (m.size == 1) return text;
  std::vector<std::byte> bytes(4096);
  if (m.rank == 0) {
    if (text.size() >= bytes.size()) fail<UsageError>(where, "fewer than 4096 bytes", text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
  }
  std::vector<StateSpan> state{{where, DType::u8, {static_cast<std::int64_t>(bytes.size())}, bytes}};
  strategy.synchronise(state);
  return reinterpret_cast<const char*>(bytes.data());
}

}  // namespace tutti
