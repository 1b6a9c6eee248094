// SPDX-License-Identifier: MIT
// Tests the bytes of the messages between a process and the arbiter, and how the arbiter's service reacts to invalid
// bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

namespace {

constexpr auto most = std::numeric_limits<std::uint64_t>::max();

// Returns one message of each kind, and messages with extreme values.
[[nodiscard]] std::vector<Message> samples() {
  const Member m{most, Role::server, -1, std::string(255, 'h')};
  return {Enrol{Role::server, 7, "host", std::string("model\0a\0", 8)},
          Enrol{Role::worker, -1, "", std::string(500000, '\xff')},
          Heartbeat{most},
          Report{1, most, true, false},
          Report{1, most, false, true},
          Report{1, 0, true, false, true},
          GroupReady{3},
          Leave{true},
          Leave{false},
          Publish{9, std::string(256, 'k'), std::string(65536, '\0')},
          Lookup{most, "key", true},
          Forget{2},
          EpochStart{1, most},
          Waiting{"worker 1"},
          NewGeneration{1, 2, 3, 4, {m, Member{}, m}},
          NewGeneration{},
          HeartbeatAck{5},
          Rejection{-2, "why"},
          MembershipChange{8, {m}, 1, 2, true, false},
          MembershipChange{8, {}, 1, 2, false, true},
          Start{1},
          LeaveGranted{},
          Stop{},
          Value{1, true, "text"},
          NextNumber{most, "key"},
          UnreachablePeers{3, most, {}},
          UnreachablePeers{most, 1, {0, most}}};
}

[[nodiscard]] bool is_refused(std::string_view bytes) {
  try {
    (void)decode(bytes);
    return false;
  } catch (const CommunicationError&) {
    return true;
  }
}

[[nodiscard]] std::vector<std::string> frames_of(std::string_view bytes) {
  std::vector<std::string> frames;
  split_message(bytes, [&](std::string_view frame) { frames.emplace_back(frame); });
  return frames;
}

}  // namespace

TEST_CASE("control messages are decoded as they were encoded") {
  std::size_t last = 0;
  for (const Message& m : samples()) {
    const std::string bytes = encode(m);
    const Message again = decode(bytes);
    CHECK(again.index() == m.index());
    CHECK(encode(again) == bytes);
    CHECK(m.index() >= last);
    last = m.index();
  }
  CHECK(last + 1 == std::variant_size_v<Message>);  // samples() has every kind
  const auto issued = std::get<NewGeneration>(decode(encode(NewGeneration{1, 2, 3, 4, {{5, Role::server, 6, "h"}}})));
  CHECK((issued.generation == 1 && issued.you == 2 && issued.authority == 3 && issued.rank_timeout_ms == 4));
  CHECK(issued.members.at(0) == Member{5, Role::server, 6, "h"});
  // The layout of a message: its kind, then its fields, least significant byte first.
  CHECK(encode(Report{0x0102, 3, false, true}) == std::string("\2\2\1\0\0\0\0\0\0\3\0\0\0\0\0\0\0\0\1\0", 20));
}

TEST_CASE("messages that are truncated, too long or of an unknown kind are refused") {
  for (const Message& m : samples()) {
    const std::string bytes = encode(m);
    const std::size_t step = bytes.size() > 2000 ? 997 : 1;
    for (std::size_t n = 0; n < bytes.size(); n += step) CHECK(is_refused(std::string_view(bytes).substr(0, n)));
    CHECK(is_refused(bytes + '\0'));
  }
  CHECK(is_refused(std::string(1, static_cast<char>(std::variant_size_v<Message>))));
  CHECK(is_refused(std::string(1, '\xff')));
  CHECK(is_refused(std::string("\4\2", 2)));  // a flag with the value 2
  // A length beyond the end of the message allocates no memory.
  CHECK(is_refused(std::string("\5") + std::string(8, '\0') + "\xff\xff\xff\xff"));
  CHECK(is_refused(std::string("\x9") + std::string(28, '\0') + "\xff\xff\xff\xff"));
  CHECK(is_refused(std::string("\x13") + std::string(16, '\0') + "\xff\xff\xff\xff"));
  CHECK_THROWS_AS((void)encode(Publish{1, std::string(257, 'k'), ""}), UsageError);
  CHECK_THROWS_AS((void)encode(Publish{1, "k", std::string(65537, 'k')}), UsageError);
  CHECK_THROWS_AS((void)encode(Enrol{Role::worker, 0, "", std::string(std::size_t{1} << 20, 'f')}), UsageError);
}

TEST_CASE("long messages travel in several frames") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, longest_frame - 1, longest_frame, 3 * longest_frame}) {
    std::string bytes(size, 'x');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31);
    const auto frames = frames_of(bytes);
    CHECK(frames.size() == std::max<std::size_t>(1, (size + longest_frame - 2) / (longest_frame - 1)));
    MessageAssembler assembler;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      CHECK(frames[i].size() <= longest_frame);
      const auto whole = assembler.take(frames[i], longest_message);
      CHECK(whole.has_value() == (i + 1 == frames.size()));
      if (whole) CHECK(*whole == bytes);
    }
  }
  MessageAssembler assembler;
  for (const std::string& bad : {std::string(), std::string("\2x"), std::string(longest_frame + 1, '\0')})
    CHECK_THROWS_AS((void)assembler.take(bad, longest_message), CommunicationError);
  // The receiver never stores more bytes than the longest message has.
  const std::string part = "\1" + std::string(longest_frame - 1, 'x');
  bool refused = false;
  for (int i = 0; i < 40 && !refused; ++i) {
    try {
      const bool whole = assembler.take(part, longest_message).has_value();
      CHECK_FALSE(whole);
    } catch (const CommunicationError&) {
      refused = true;
      CHECK(i == 32);
    }
  }
  CHECK(refused);
}

TEST_CASE("the store removes only the entries of past generations") {
  ControlStore store;
  std::vector<Outgoing> out;
  const auto value = [&](const std::string& key) {
    out.clear();
    store.lookup(1, Lookup{1, key, false}, out);
    return std::get<Value>(out.at(0).message);
  };
  const std::vector<std::string> kept = {"run", "@/a", "@x/a", "@1", "@1x/a", "1/a"};
  for (const auto& key : kept) store.publish(1, Publish{1, key, "v"}, out);
  for (std::uint64_t g = 1; g <= 3; ++g) store.publish(1, Publish{1, generation_key(g, "a"), "v"}, out);
  store.forget_before(3);
  for (const auto& key : kept) CHECK(value(key).found);
  CHECK_FALSE(value("@1/a").found);
  CHECK_FALSE(value("@2/a").found);
  CHECK(value("@3/a").found);
  out.clear();
  store.publish(1, Publish{1, "@2/b", "v"}, out);
  CHECK_FALSE(std::get<Value>(out.at(0).message).found);
  // The store accepts entries after any number of generations.
  for (std::uint64_t g = 4; g < 3000; ++g) {
    out.clear();
    store.publish(1, Publish{1, generation_key(g, "a"), std::string(100000, 'v')}, out);
    REQUIRE(std::get<Value>(out.at(0).message).found);
    store.forget_before(g);
  }
}

TEST_CASE("the key-value service stores values, answers waiting processes, and refuses invalid requests") {
  ArbiterOptions options;
  ArbiterService service(options);
  std::vector<std::pair<ConnectionId, Message>> said;
  const auto tell = [&](ConnectionId connection, const Message& m) {
    said.clear();
    for (const auto& frame : frames_of(encode(m))) service.receive(connection, frame, 1s);
    MessageAssembler assembler;
    service.send([&](ConnectionId to, std::string_view frame) {
      if (const auto bytes = assembler.take(frame, longest_message)) said.emplace_back(to, decode(*bytes));
    });
  };
  const auto value = [&](std::size_t i) {
    REQUIRE(said.size() > i);
    return std::get<Value>(said[i].second);
  };
  tell(1, Lookup{7, "k", false});
  CHECK((!value(0).found && value(0).request == 7));
  tell(1, Lookup{8, "k", true});
  tell(2, Lookup{3, "k", true});
  tell(2, Lookup{4, "k", true});
  CHECK(said.empty());
  tell(2, Forget{3});
  tell(3, Publish{1, "k", "v"});
  REQUIRE(said.size() == 3);
  CHECK((said[0].first == 3 && value(0).found && value(0).value.empty()));
  CHECK((said[1].first == 1 && value(1).request == 8 && value(1).value == "v"));
  CHECK((said[2].first == 2 && value(2).request == 4));
  tell(3, Publish{2, "k", "w"});
  CHECK(said.size() == 1);
  tell(2, Lookup{5, "k", true});
  CHECK(value(0).value == "w");
  tell(2, Publish{6, "", "w"});
  CHECK_FALSE(value(0).found);

  // The number of one process's pending lookups, and of the entries of all processes, is limited.
  for (std::uint64_t i = 0; i < ControlStore::most_waiting; ++i) tell(4, Lookup{i, "none", true});
  CHECK(said.empty());
  tell(4, Lookup{999, "none", true});
  CHECK((!value(0).found && value(0).value == "too many pending lookups"));
  service.ended(4, "");
  tell(4, Lookup{1, "none", true});
  CHECK(said.empty());
  int kept = 0;
  for (bool room = true; room && kept < 2000; ++kept) {
    tell(5, Publish{1, "big" + std::to_string(kept), std::string(65536, 'x')});
    room = value(0).found;
  }
  CHECK(value(0).value == "a full key store");
  CHECK(kept == 1022);
  tell(5, Publish{1, "big0", "small"});  // replaces a larger entry
  CHECK(value(0).found);
  tell(5, Lookup{1, "big1", false});
  CHECK(value(0).value.size() == 65536);

  CHECK_FALSE(service.receive(6, "\3nonsense", 1s));
  CHECK(service.receive(6, "\3nonsense", 1s));  // the service complains once
  tell(6, Lookup{1, "k", false});
  CHECK(said.empty());
  tell(7, Lookup{1, "k", false});
  CHECK(said.size() == 1);
}
