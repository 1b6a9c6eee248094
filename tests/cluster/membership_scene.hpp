// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/job_facts.hpp>

// An arbiter for tests of its rules. Each test plays one scene.
namespace tutti::control {

[[nodiscard]] inline std::string facts(const std::string& model) {
  JobFacts f;
  f.add("tutti", "1");
  f.add("model", model);
  return f.text();
}

// An arbiter and the messages that it sends. The test chooses the numbers of connections.
class Scene {
 public:
  explicit Scene(const ArbiterOptions& o) : arbiter(o) {}

  void enrol(ConnectionId connection, Role role, int place, const std::string& model = "a") {
    tell(connection, Enrol{role, place, "h" + std::to_string(connection), facts(model)});
  }
  void workers(int count) {
    for (int i = 0; i < count; ++i) enrol(static_cast<ConnectionId>(i), Role::worker, i);
  }
  void tell(ConnectionId connection, const Message& m) {
    arbiter.receive(connection, m, now);
    take();
  }
  void ended(ConnectionId connection) {
    arbiter.ended(connection, "SIGKILL");
    take();
  }
  void pass(Time time) {
    now += time;
    arbiter.tick(now);
    take();
  }
  void send_heartbeat(ConnectionId connection) { tell(connection, Heartbeat{++beats}); }
  // All workers in the list report their steps, and then that their new group is ready.
  void change_over(const std::vector<std::pair<ConnectionId, std::uint64_t>>& reports) {
    const std::uint64_t left = arbiter.generation();
    for (const auto& [connection, step] : reports) tell(connection, Report{left, step});
  }

  // Returns the last message of type M to a connection.
  template <class M>
  [[nodiscard]] std::optional<M> last(ConnectionId connection) const {
    std::optional<M> found;
    for (const Outgoing& o : said)
      if (const auto* m = std::get_if<M>(&o.message); o.connection == connection && m != nullptr) found = *m;
    return found;
  }
  [[nodiscard]] int count(Decision::Kind kind) const {
    int n = 0;
    for (const Decision& d : decisions) n += d.kind == kind ? 1 : 0;
    return n;
  }
  [[nodiscard]] std::string ids() const {
    std::string text;
    for (const Member& m : arbiter.members()) text += (text.empty() ? "" : " ") + std::to_string(m.id);
    return text;
  }

  Arbiter arbiter;
  Time now = std::chrono::seconds(100);
  std::vector<Outgoing> said;
  std::vector<Decision> decisions;
  std::uint64_t beats = 0;

 private:
  void take() {
    for (auto& m : arbiter.take_messages()) said.push_back(std::move(m));
    for (auto& d : arbiter.take_decisions()) decisions.push_back(std::move(d));
  }
};

[[nodiscard]] inline ArbiterOptions options(int workers, int servers = 0, bool elastic = false) {
  ArbiterOptions o;
  o.workers = workers;
  o.servers = servers;
  o.elastic = elastic;
  return o;
}

// Returns a job with the workers and servers of `o`, whose group is ready.
[[nodiscard]] inline Scene standing(const ArbiterOptions& o) {
  Scene s(o);
  s.workers(o.workers);
  for (int i = 0; i < o.servers; ++i) s.enrol(static_cast<ConnectionId>(100 + i), Role::server, i);
  for (int i = 0; i < o.workers; ++i) s.tell(static_cast<ConnectionId>(i), GroupReady{1});
  for (int i = 0; i < o.servers; ++i) s.tell(static_cast<ConnectionId>(100 + i), GroupReady{1});
  return s;
}
// Returns how many messages of type M the arbiter sent to a connection.
template <class M>
[[nodiscard]] int times(const Scene& s, ConnectionId connection) {
  int n = 0;
  for (const Outgoing& o : s.said) n += o.connection == connection && std::holds_alternative<M>(o.message) ? 1 : 0;
  return n;
}

}  // namespace tutti::control
