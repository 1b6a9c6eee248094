// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/error.hpp>

// The messages between the processes of a job and its arbiter (arbiter.hpp). control_link.hpp carries them as bytes:
// the fields in order, numbers little-endian, and the length of a text or list before its contents.
namespace tutti::control {

inline constexpr const char* over = "a generation that has ended";  // why its keys are refused

using ProcessId = std::uint64_t;  // larger for each later process of a job

enum class Role : std::uint8_t { worker = 0, server = 1 };  // of a process

[[nodiscard]] constexpr const char* name_of(Role r) noexcept { return r == Role::server ? "server" : "worker"; }

// A process as other processes see it. place: its number among the processes of its role, from the launcher.
struct Member {
  ProcessId id = 0;
  Role role = Role::worker;
  std::int32_t place = 0;
  std::string host{};

  [[nodiscard]] bool operator==(const Member&) const = default;
  [[nodiscard]] std::string name() const {
    return std::string(name_of(role)) + " " + std::to_string(place) + (host.empty() ? "" : " on " + host);
  }
};

// ---- a process to the arbiter ----

// A process asks for admission. facts: JobFacts::text().
struct Enrol {
  Role role = Role::worker;
  std::int32_t place = 0;
  std::string host{}, facts{};
};
struct Heartbeat {  // shows that the process lives
  std::uint64_t number = 0;
};
// A process has left the work of a generation after `step` steps. broken: its next step failed, so the other members
// would wait for it forever; epoch_end: the last of these steps was the last of an epoch; preparing: it has no state
// yet that a joining process could take, and prepares it together with the other members that are preparing.
struct Report {
  std::uint64_t generation = 0, step = 0;
  bool broken = false, epoch_end = false, preparing = false;
};
// A process has formed the group of a generation.
struct GroupReady {
  std::uint64_t generation = 0;
};
// A process leaves now, because its work is complete (`done`), or asks to leave with the next generation.
struct Leave {
  bool done = true;
};
// Sets a key for all processes. The answer is a Value.
struct Publish {
  std::uint64_t request = 0;
  std::string key{}, value{};
};
// Asks for the value of a key; `wait`: the answer comes when the key is set. The answer is a Value.
struct Lookup {
  std::uint64_t request = 0;
  std::string key{};
  bool wait = false;
};
// The process does not want the answer to this request any more.
struct Forget {
  std::uint64_t request = 0;
};
// Rank 0 of a generation begins an epoch.
struct EpochStart {
  std::uint64_t generation = 0, epoch = 0;
};

// Takes the next number of a key: 0, 1, ... The answer is a Value.
struct NextNumber {
  std::uint64_t request = 0;
  std::string key{};
};

// A process has waited in an operation of its generation for longer than the rank time-out, and cannot reach these
// members. An empty list: the operation has ended. All members of a generation count operations alike.
struct UnreachablePeers {
  std::uint64_t generation = 0, operation = 0;
  std::vector<ProcessId> members{};
};

// ---- the arbiter to a process ----

// The processes that are still missing before the first generation.
struct Waiting {
  std::string missing{};
};
// A generation with its members: workers by id, then servers by place. The rank of a process is its position among the
// processes of its role.
struct NewGeneration {
  std::uint64_t generation = 0;
  ProcessId you = 0;
  ProcessId authority = 0;  // the process that sends its state to all others
  std::uint32_t rank_timeout_ms = 0;
  std::vector<Member> members{};
};
struct HeartbeatAck {        // the answer to a heartbeat
  std::uint64_t number = 0;  // number of the heartbeat
};
// The arbiter has refused the process, or removed it from the job. code: an ExitCode.
struct Rejection {
  std::int32_t code = 0;
  std::string reason{};
};
// The members of a generation change. broken: the members leave at once and interrupt waiting operations, because a
// member was lost or its step failed. If false, they leave after a step on which all agree; at_epoch: after the last
// step of an epoch. lost: all members that this generation has lost so far.
struct MembershipChange {
  std::uint64_t generation = 0;
  std::vector<Member> lost{};
  std::uint32_t joining = 0, leaving = 0;
  bool broken = false, at_epoch = false;
};
// Returns why a group ends at once, such as "the loss of worker 2 on b", or an empty text if the group works on.
[[nodiscard]] inline std::string reason_of_end(const MembershipChange& c) {
  if (!c.broken) return "";
  std::string names;
  for (const Member& m : c.lost) names += (names.empty() ? "" : ", ") + m.name();
  return names.empty() ? "a step that failed in another process" : "the loss of " + names;
}

// All members have formed their group: the generation begins to train.
struct Start {
  std::uint64_t generation = 0;
};
// The process is released, and is not in the next generation.
struct LeaveGranted {};
// The job is to stop, as after SIGTERM for a program that runs alone.
struct Stop {};
struct Value {  // the answer to Publish, Lookup and NextNumber
  std::uint64_t request = 0;
  bool found = false;
  std::string value{};  // if not found: the reason, which may be empty
};

using Message = std::variant<Enrol, Heartbeat, Report, GroupReady, Leave, Publish, Lookup, Forget, EpochStart, Waiting,
                             NewGeneration, HeartbeatAck, Rejection, MembershipChange, Start, LeaveGranted, Stop, Value,
                             NextNumber, UnreachablePeers>;

// ---- bytes ----

inline constexpr std::size_t longest_message = std::size_t{1} << 20;
inline constexpr std::size_t longest_key = 256, longest_value = std::size_t{64} << 10, longest_host = 255;

// Lists the fields of each message, for writing and for reading.
template <class C, class M>
void visit_fields(C& c, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, Member>) {
    c(m.id), c(m.role), c(m.place), c(m.host, longest_host);
  } else if constexpr (std::is_same_v<T, Enrol>) {
    c(m.role), c(m.place), c(m.host, longest_host), c(m.facts, longest_message);
  } else if constexpr (std::is_same_v<T, Heartbeat> || std::is_same_v<T, HeartbeatAck>) {
    c(m.number);
  } else if constexpr (std::is_same_v<T, Report>) {
    c(m.generation), c(m.step), c(m.broken), c(m.epoch_end), c(m.preparing);
  } else if constexpr (std::is_same_v<T, GroupReady> || std::is_same_v<T, Start>) {
    c(m.generation);
  } else if constexpr (std::is_same_v<T, Leave>) {
    c(m.done);
  } else if constexpr (std::is_same_v<T, Publish>) {
    c(m.request), c(m.key, longest_key), c(m.value, longest_value);
  } else if constexpr (std::is_same_v<T, Lookup>) {
    c(m.request), c(m.key, longest_key), c(m.wait);
  } else if constexpr (std::is_same_v<T, Forget>) {
    c(m.request);
  } else if constexpr (std::is_same_v<T, EpochStart>) {
    c(m.generation), c(m.epoch);
  } else if constexpr (std::is_same_v<T, NextNumber>) {
    c(m.request), c(m.key, longest_key);
  } else if constexpr (std::is_same_v<T, Waiting>) {
    c(m.missing, longest_value);
  } else if constexpr (std::is_same_v<T, NewGeneration>) {
    c(m.generation), c(m.you), c(m.authority), c(m.rank_timeout_ms), c(m.members);
  } else if constexpr (std::is_same_v<T, Rejection>) {
    c(m.code), c(m.reason, longest_value);
  } else if constexpr (std::is_same_v<T, MembershipChange>) {
    c(m.generation), c(m.lost), c(m.joining), c(m.leaving), c(m.broken), c(m.at_epoch);
  } else if constexpr (std::is_same_v<T, UnreachablePeers>) {
    c(m.generation), c(m.operation), c(m.members);
  } else if constexpr (std::is_same_v<T, Value>) {
    c(m.request), c(m.found), c(m.value, longest_value);
  } else {
    static_assert(std::is_same_v<T, LeaveGranted> || std::is_same_v<T, Stop>);
  }
}

namespace detail {

struct Writer {
  std::string bytes;

  template <class T>
  void operator()(T number) requires std::is_arithmetic_v<T> || std::is_enum_v<T> {
    auto rest = static_cast<std::uint64_t>(number);
    for (std::size_t i = 0; i < sizeof number; ++i, rest >>= 8U) bytes += static_cast<char>(rest & 0xffU);
  }
  void operator()(const std::string& text, std::size_t most) {
    if (text.size() > most) fail<UsageError>("control channel", {"at most ", most, " bytes"}, text.size());
    (*this)(static_cast<std::uint32_t>(text.size()));
    bytes += text;
  }
  void operator()(const std::vector<Member>& members) {
    (*this)(static_cast<std::uint32_t>(members.size()));
    for (const Member& m : members) visit_fields(*this, m);
  }
  void operator()(const std::vector<ProcessId>& ids) {
    (*this)(static_cast<std::uint32_t>(ids.size()));
    for (const ProcessId id : ids) (*this)(id);
  }
};

struct Reader {
  std::string_view rest;

  template <class T>
  void operator()(T& number) requires std::is_arithmetic_v<T> || std::is_enum_v<T> {
    if (rest.size() < sizeof number) broken();
    std::uint64_t value = 0;
    for (std::size_t i = sizeof number; i-- > 0;) value = value << 8U | static_cast<unsigned char>(rest[i]);
    // Flags and roles are 0 or 1.
    if ((std::is_same_v<T, bool> || std::is_same_v<T, Role>)&&value > 1) broken();
    rest.remove_prefix(sizeof number);
    number = static_cast<T>(value);
  }
  void operator()(std::string& text, std::size_t most) {
    std::uint32_t size = 0;
    (*this)(size);
    if (size > most || size > rest.size()) broken();
    text = rest.substr(0, size);
    rest.remove_prefix(size);
  }
  void operator()(std::vector<Member>& members) {
    std::uint32_t count = 0;
    (*this)(count);
    constexpr std::size_t least = 17;  // bytes of a member with an empty name
    if (count > rest.size() / least) broken();
    members.resize(count);
    for (Member& m : members) visit_fields(*this, m);
  }
  void operator()(std::vector<ProcessId>& ids) {
    std::uint32_t count = 0;
    (*this)(count);
    if (count > rest.size() / sizeof(ProcessId)) broken();
    ids.resize(count);
    for (ProcessId& id : ids) (*this)(id);
  }
  [[noreturn]] static void broken() {
    fail<CommunicationError>("control channel", "a message", "invalid bytes",
                             "use the same version of all programs of a job");
  }
};

template <std::size_t I = 0>
[[nodiscard]] Message read_message(std::size_t kind, Reader& r) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (kind != I) return read_message<I + 1>(kind, r);
    std::variant_alternative_t<I, Message> m;
    visit_fields(r, m);
    if (!r.rest.empty()) Reader::broken();
    return m;
  } else {
    Reader::broken();
  }
}

}  // namespace detail

// Returns the bytes of a message. Throws UsageError if a text is too long, or the message longer than longest_message.
[[nodiscard]] inline std::string encode(const Message& message) {
  detail::Writer w;
  w(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& m) { visit_fields(w, m); }, message);
  if (w.bytes.size() > longest_message)
    fail<UsageError>("control channel", {"a message of at most ", longest_message, " bytes"}, w.bytes.size());
  return std::move(w.bytes);
}

// Returns the message of the bytes. Throws CommunicationError for bytes that encode() does not write.
[[nodiscard]] inline Message decode(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > longest_message) detail::Reader::broken();
  detail::Reader r{bytes.substr(1)};
  return detail::read_message(static_cast<unsigned char>(bytes.front()), r);
}

}  // namespace tutti::control
