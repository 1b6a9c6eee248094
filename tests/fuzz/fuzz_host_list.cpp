// SPDX-License-Identifier: MIT
// Reads any bytes as --ps_hosts. The result is either unambiguous addresses or UsageError in plain characters.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>

namespace fuzz::host_list {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  const std::vector<char> exact(data, data + size);
  try {
    const auto list = parse_host_list(std::string_view(exact.data(), exact.size()), "--fuzz");
    if (list.empty()) std::abort();
    std::string written;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const HostPort& h = list[i];
      if (!is_host_name(h.host) && !is_ipv6_address(h.host)) std::abort();
      if (h.host.front() == '-' || h.port < 1 || h.port > 65535) std::abort();
      if (h.host.find_first_of(std::string_view(" \t\r\n'\"`$;&|<>()@/\\,\0", 19)) != h.host.npos) std::abort();
      if (i > 0 && list[i - 1] == h) std::abort();
      written += (i == 0 ? "" : ",") + h.text();
    }
    if (parse_host_list(written, "again") != list) std::abort();
  } catch (const UsageError& e) {
    if (std::string_view(e.what()).find("[--fuzz]") != 0) std::abort();
    for (const char* c = e.what(); *c != '\0'; ++c)
      if (static_cast<unsigned char>(*c) < 0x20 || static_cast<unsigned char>(*c) >= 0x7f) std::abort();
  }
  return 0;
}

}  // namespace fuzz::host_list
