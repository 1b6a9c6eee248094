// SPDX-License-Identifier: MIT
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// The texts that workers and servers exchange over the job's channel before they connect.
namespace tutti::zeromq::detail {

inline constexpr const char* word_key = "ps/word";  // the password that workers send if the job uses no keys

[[nodiscard]] inline std::string key(std::string_view what, int number) {
  return "ps/" + std::string(what) + "/" + std::to_string(number);
}
[[nodiscard]] inline std::string random_word() {
  std::random_device device;
  std::string word;
  for (int i = 0; i < 4; ++i) word += std::to_string(device()) + ".";
  return word;
}

// Formats a server's endpoint as "address key start". The key may be empty.
[[nodiscard]] inline std::string text_of(const ServerEndpoint& d) { return d.address + " " + d.key + " " + d.start; }
[[nodiscard]] inline ServerEndpoint endpoint_of(const std::string& text) {
  const std::size_t first = text.find(' '), last = text.rfind(' ');
  if (first == std::string::npos || first == last)
    fail<CommunicationError>("parameter server", "the address of a server", {"'", printable(text), "'"});
  return {text.substr(0, first), text.substr(first + 1, last - first - 1), text.substr(last + 1)};
}
[[nodiscard]] inline std::vector<std::string> addresses_of(const std::vector<ServerEndpoint>& endpoints) {
  std::vector<std::string> list;
  list.reserve(endpoints.size());
  for (const ServerEndpoint& d : endpoints) list.push_back(d.address);
  return list;
}
inline void require_curve(const KeyPair& own) {
  if (own.open.empty())
    fail<DeviceError>("ZeroMQ", "a library with CURVE, because the job has several hosts", "a library without CURVE",
                      "on a trusted network, --ps-plain switches encryption off");
}

}  // namespace tutti::zeromq::detail
