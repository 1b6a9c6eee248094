// SPDX-License-Identifier: MIT
// Reads any bytes as a hosts file. The result is either DataError that names a line, or unambiguous hosts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/comm/net/host_name.hpp>

namespace fuzz::hosts_file {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  const std::vector<char> exact(data, data + size);
  try {
    const auto hosts = parse_hosts(std::string_view(exact.data(), exact.size()), "fuzz");
    if (hosts.empty()) std::abort();
    std::string written;
    for (const Host& h : hosts) {
      if (!is_host_name(h.name) && !is_ipv6_address(h.name)) std::abort();
      if (h.name.front() == '-' ||
          h.name.find_first_of(std::string_view(" \t\r\n'\"`$;&|<>()@/\\\0", 18)) != h.name.npos)
        std::abort();
      if (h.slots < 1 || h.slots > max_slots || h.port < 0 || h.port > 65535) std::abort();
      if (!h.user.empty() && (h.user.front() == '-' || !is_user_name(h.user) ||
                              h.user.find_first_of(std::string_view(" \t\r\n'\"`$;&|<>()@/\\\0", 18)) != h.user.npos))
        std::abort();
      if (!h.user.empty()) written += h.user + "@";
      const bool brackets = h.name.find(':') != std::string::npos;
      written += h.port != 0 ? host_and_port(h.name, h.port) : brackets ? "[" + h.name + "]" : h.name;
      written += " slots=" + std::to_string(h.slots) + "\n";
    }
    if (parse_hosts(written, "again") != hosts) std::abort();
    if (place_processes(hosts, 100).size() != 100) std::abort();
  } catch (const DataError& e) {
    if (std::string_view(e.what()).find("[fuzz") != 0) std::abort();
    for (const char* c = e.what(); *c != '\0'; ++c)
      if (static_cast<unsigned char>(*c) < 0x20 || static_cast<unsigned char>(*c) >= 0x7f) std::abort();
  }
  return 0;
}

}  // namespace fuzz::hosts_file
