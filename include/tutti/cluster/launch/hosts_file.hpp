// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/file.hpp>

// The hosts file: one host a line,
//     [USER@]NAME[:PORT] [slots=N]        # comment
// NAME is a host name, an IPv4 address, or an IPv6 address in brackets. PORT is the port of its sshd, USER the login
// name there, N the number of processes for it (1 if it is not given). Blank lines, comments and CRLF are allowed, and
// equal lines count once. Other lines are refused.
namespace tutti {

struct Host {        // a line of a hosts file
  std::string name;  // without brackets
  int port = 0;      // 0: the default of ssh
  int slots = 1;
  int line = 0;        // line number in the file, from 1
  std::string user{};  // empty: the default of ssh

  [[nodiscard]] bool operator==(const Host& other) const {
    return name == other.name && port == other.port && slots == other.slots && user == other.user;
  }
};

// The limits of a hosts file.
inline constexpr std::size_t max_hosts_file_bytes = std::size_t{1} << 20;
inline constexpr int max_slots = 4096;

namespace detail {

// Reads [USER@]NAME[:PORT]. Returns no value for other text.
[[nodiscard]] inline std::optional<Host> parse_host_name(std::string_view text) {
  Host host;
  std::string_view rest;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    if (!is_user_name(text.substr(0, at))) return {};
    host.user = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos || !is_ipv6_address(text.substr(1, close - 1))) return {};
    host.name = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else {
    const std::size_t colon = text.find(':');
    if (!is_host_name(text.substr(0, colon))) return {};
    host.name = text.substr(0, colon);
    if (colon != std::string_view::npos) rest = text.substr(colon);
  }
  if (rest.empty()) return host;
  const auto port = rest.front() == ':' ? number_between(rest.substr(1), 1, 65535) : std::nullopt;
  if (!port) return {};
  host.port = *port;
  return host;
}

[[nodiscard]] inline std::vector<std::string_view> words_before_comment(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0;;) {
    at = line.find_first_not_of(" \t", at);
    if (at == std::string_view::npos || line[at] == '#') return words;
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
}

}  // namespace detail

// Reads the text of a hosts file. where: its name in messages. Throws DataError that names the first wrong line.
[[nodiscard]] inline std::vector<Host> parse_hosts(std::string_view text, const std::string& where) {
  if (text.size() > max_hosts_file_bytes)
    fail<DataError>(where, {"at most ", max_hosts_file_bytes, " bytes"}, text.size());
  std::vector<Host> hosts;
  std::map<std::string, std::size_t, std::less<>> index;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const std::string here = where + " line " + std::to_string(number);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto words = detail::words_before_comment(line);
    if (words.empty()) continue;
    auto host = detail::parse_host_name(words[0]);
    if (!host)
      fail<DataError>(here, "a host as NAME, USER@NAME, NAME:PORT or [IPv6]:PORT", {"'", printable(words[0]), "'"},
                      "a name has letters, digits, '.', '_' and '-', and begins with a letter or a digit");
    host->line = number;
    if (words.size() > 1) {
      const auto slots =
          words[1].starts_with("slots=") ? detail::number_between(words[1].substr(6), 1, max_slots) : std::nullopt;
      if (!slots)
        fail<DataError>(here, {"slots=N after the host, N from 1 to ", max_slots}, {"'", printable(words[1]), "'"});
      host->slots = *slots;
    }
    if (words.size() > 2) fail<DataError>(here, "the end of the line after slots=N", {"'", printable(words[2]), "'"});
    const auto [first, fresh] = index.emplace(host->name, hosts.size());
    if (!fresh && hosts[first->second] == *host) continue;
    if (!fresh)
      fail<DataError>(here, {"the same user, port and slots as in line ", hosts[first->second].line},
                      {host->name, " with others"}, "slots=N sets the number of processes of a host");
    hosts.push_back(std::move(*host));
  }
  if (hosts.empty()) fail<DataError>(where, "at least one host", "no host");
  return hosts;
}

[[nodiscard]] inline std::vector<Host> read_hosts_file(const std::filesystem::path& path) {  // throws UsageError
  return parse_hosts(io::read_text_file(path, max_hosts_file_bytes), path.string());
}

[[nodiscard]] inline std::size_t total_slots(const std::vector<Host>& hosts) noexcept {  // of all hosts together
  std::size_t sum = 0;
  for (const Host& h : hosts) sum += static_cast<std::size_t>(h.slots);
  return sum;
}

// Returns the host of each of n processes, as an index: the first host for all of its slots, then the next host. If
// there are more processes than slots, continues with the first host.
[[nodiscard]] inline std::vector<std::size_t> place_processes(const std::vector<Host>& hosts, std::size_t n) {
  std::vector<std::size_t> place;
  place.reserve(n);
  while (place.size() < n) {
    if (hosts.empty()) fail<UsageError>("place_processes", "at least one host", "no host");
    for (std::size_t h = 0; h < hosts.size(); ++h)
      for (int slot = 0; slot < hosts[h].slots && place.size() < n; ++slot) place.push_back(h);
  }
  return place;
}

}  // namespace tutti
