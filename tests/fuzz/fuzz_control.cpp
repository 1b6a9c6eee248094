// SPDX-License-Identifier: MIT
// Sends any bytes as frames of several processes to the arbiter, while time advances. The program must not crash, the
// arbiter's messages must be valid, no two members may have the same number, and generations may only grow. Also reads
// any bytes as one message: the result is either CommunicationError or a message that encode() writes as the same
// bytes.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/core/error.hpp>

namespace fuzz::control {

void check_message(std::string_view bytes) {
  using namespace tutti::control;
  try {
    const Message m = decode(bytes);
    if (encode(m) != bytes) std::abort();
  } catch (const tutti::CommunicationError&) {
  }
}

void check_members(const tutti::control::Arbiter& a, std::uint64_t& last) {
  if (a.generation() < last) std::abort();
  last = a.generation();
  std::set<tutti::control::ProcessId> ids;
  std::set<std::pair<tutti::control::Role, int>> places;
  for (const auto& m : a.members())
    if (!ids.insert(m.id).second || !places.emplace(m.role, m.place).second) std::abort();
}

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::control;
  using namespace std::chrono_literals;
  if (size < 1) return 0;
  {
    const std::vector<char> exact(data + 1, data + size);
    check_message(std::string_view(exact.data(), exact.size()));
  }
  ArbiterOptions options;
  options.workers = 1 + (data[0] & 3);
  options.servers = data[0] >> 2 & 1;
  options.elastic = (data[0] & 8) != 0;
  options.reports = (data[0] & 16) != 0;
  options.servers_restart = (data[0] & 32) != 0;
  options.at_epoch = (data[0] & 64) != 0;
  options.min_workers = (data[0] & 128) != 0 ? 2 : 1;
  ArbiterService service(options);
  Time now = 0s;
  std::uint64_t last = 0;
  std::map<ConnectionId, MessageAssembler> assemblers;
  // In the rest of the input, one byte selects a connection and an action, one byte is a length, and the bytes follow.
  for (std::size_t at = 1; at + 1 < size;) {
    const ConnectionId connection = data[at] & 7U;
    const unsigned what = data[at] >> 3U;
    const std::size_t length = std::min<std::size_t>(data[at + 1], size - at - 2);
    const std::vector<char> frame(data + at + 2, data + at + 2 + length);
    at += 2 + length;
    if (what == 1) {
      service.ended(connection, "fuzz");
    } else if (what == 2) {
      now += 3s;
      service.tick(now);
    } else if (what == 3) {
      service.arbiter().ask_to_leave(connection);
    } else if (what == 5) {
      service.arbiter().stop_all();
    } else {
      service.receive(connection, std::string_view(frame.data(), frame.size()), now);
    }
    service.send([&](ConnectionId to, std::string_view f) {
      if (const auto bytes = assemblers[to].take(f, longest_message))
        if (decode(*bytes).index() <= Message(EpochStart{}).index())
          std::abort();  // only processes send these messages
    });
    check_members(service.arbiter(), last);
    (void)service.arbiter().take_decisions();
  }
  return 0;
}

}  // namespace fuzz::control
