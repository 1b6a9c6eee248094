// SPDX-License-Identifier: MIT
// Reads any bytes as a program's answer to the launcher. The name of a strategy has plain characters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>

namespace fuzz::launch_info {

int run(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> exact(data, data + size);
  const auto info = tutti::parse_launch_info(std::string_view(exact.data(), exact.size()));
  if (!info) return 0;
  const auto plain = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (info->strategy.empty() || !std::all_of(info->strategy.begin(), info->strategy.end(), plain)) std::abort();
  return 0;
}

}  // namespace fuzz::launch_info
