// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

// Checks names, addresses and ports of hosts, and names of users.
namespace tutti {

inline constexpr std::size_t max_host_name = 253;  // RFC 1035

// Returns whether the name has only letters, digits, '.', '_' and '-', and begins with a letter or a digit. So no
// program can interpret it as an option.
[[nodiscard]] inline bool is_host_name(std::string_view name) noexcept {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (name.empty() || name.size() > max_host_name || !alphanumeric(name.front())) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

// Returns whether this is an IPv6 address without brackets, e.g. "fe80::1%eth0".
[[nodiscard]] inline bool is_ipv6_address(std::string_view address) {
  const std::size_t percent = address.find('%');
  if (percent != std::string_view::npos && !is_host_name(address.substr(percent + 1))) return false;
  const std::string number(address.substr(0, percent));
  in6_addr ignored{};
  return number.size() < INET6_ADDRSTRLEN && number.find('\0') == std::string::npos &&
         ::inet_pton(AF_INET6, number.c_str(), &ignored) == 1;
}

// Returns whether the name has only letters, digits, '.', '_' and '-', and begins with a letter, a digit or '_'.
[[nodiscard]] inline bool is_user_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 64 && (name.front() == '_' || is_host_name(name.substr(0, 1))) &&
         is_host_name("u" + std::string(name));
}

// Returns "name:port", with brackets around an IPv6 address.
[[nodiscard]] inline std::string host_and_port(const std::string& name, int port) {
  const bool brackets = name.find(':') != std::string::npos;
  return (brackets ? "[" + name + "]" : name) + ":" + std::to_string(port);
}

namespace detail {

[[nodiscard]] inline std::optional<int> number_between(std::string_view text, int low, int high) noexcept {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.front() == '-' || error != std::errc{} || end != text.data() + text.size()) return {};
  if (value < low || value > high) return {};
  return value;
}

}  // namespace detail

}  // namespace tutti
