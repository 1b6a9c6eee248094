// SPDX-License-Identifier: MIT
#include "tools/launch/cli/gpus_of_command.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/comm/net/host_name.hpp>

namespace tutti::launch::detail {

std::optional<int> gpus_of_command(const std::vector<std::string>& command) {
  std::string_view list;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string_view word = command[i];
    if (word.starts_with("--gpus=")) list = word.substr(7);
    if (word == "--gpus") list = i + 1 < command.size() ? std::string_view(command[i + 1]) : std::string_view();
  }
  std::set<int> numbers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const auto number = tutti::detail::number_between(list.substr(at, end - at), 0, 1023);
    if (!number || !numbers.insert(*number).second) return {};
    at = end + 1;
  }
  return static_cast<int>(numbers.size());
}

}  // namespace tutti::launch::detail
