// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::test {

// Returns whether every index from 0 to n - 1 occurs exactly once.
inline bool exactly_once(std::vector<std::int64_t> seen, std::int64_t n) {
  std::sort(seen.begin(), seen.end());
  if (static_cast<std::int64_t>(seen.size()) != n) return false;
  for (std::int64_t i = 0; i < n; ++i)
    if (seen[static_cast<std::size_t>(i)] != i) return false;
  return true;
}

}  // namespace tutti::test
