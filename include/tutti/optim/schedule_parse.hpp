// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/optim/schedule_compose.hpp>
#include <tutti/optim/schedule_decay.hpp>
#include <tutti/optim/schedule_steps.hpp>

namespace tutti::schedule {

// Parses a list of numbers, such as "30,60,80" or "0.1, 0.01". An empty text gives an empty list. `where` names the
// option in the error.
[[nodiscard]] TUTTI_CORE_FUNCTION std::vector<double> parse_numbers(std::string_view where, std::string_view text);

// Returns the schedule of --lr-step-epochs. "200,250" multiplies the rate by `factor` at the start of those epochs
// (counted from 0), "pow2" is a polynomial of that power down to 0 over the whole run, and an empty text keeps the rate
// constant.
[[nodiscard]] TUTTI_CORE_FUNCTION Schedule parse_lr_step_epochs(std::string_view text, double base, double factor);

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::vector<double> parse_numbers(std::string_view where, std::string_view text) {
  std::vector<double> numbers;
  if (text.find_first_not_of(' ') == std::string_view::npos) return numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t end = text.find(',', begin);
    if (end == std::string_view::npos) end = text.size();
    std::string_view item = text.substr(begin, end - begin);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    double value = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (item.empty() || error != std::errc{} || stop != item.data() + item.size()) {
      fail<UsageError>(where, "numbers separated by commas", {"'", text, "'"});
    }
    numbers.push_back(value);
    begin = end + 1;
  }
  return numbers;
}
TUTTI_CORE_FUNCTION Schedule parse_lr_step_epochs(std::string_view text, double base, double factor) {
  constexpr std::string_view where = "--lr-step-epochs";
  if (text.starts_with("pow")) {
    std::string_view power = text.substr(3);
    while (!power.empty() && (power.front() == '-' || power.front() == ' ')) power.remove_prefix(1);
    const std::vector<double> values = parse_numbers(where, power);
    if (values.size() != 1) fail<UsageError>(where, "a power after 'pow', e.g. pow2", {"'", text, "'"});
    return Poly(base, {.power = values[0], .end = 0.0});
  }
  std::vector<double> epochs = parse_numbers(where, text);
  if (epochs.empty()) return Constant(base);
  return Steps(base, std::move(epochs), factor);
}
#endif

}  // namespace tutti::schedule
