// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/core/error.hpp>

namespace tutti::ps {

namespace detail {

// The next generation; nothing where the server is let go, or asked to stop before there was one.
inline std::optional<Assignment> next_generation(ControlChannel& channel, const ElasticOptions& o, bool first,
                                                 const std::function<bool()>& stop_requested) {
  const auto until = std::chrono::steady_clock::now() + o.rendezvous_timeout;
  while (!channel.await_assignment(std::chrono::milliseconds(200))) {
    if (!first) continue;
    if (stop_requested && stop_requested()) return {};
    if (std::chrono::steady_clock::now() > until) break;  // the next line says who lacks
  }
  return channel.next_assignment_unless_released(std::chrono::milliseconds(0));
}

// What ends a server, as its channel tells: the end of that, and losses too where `changes`.
class ServerFlag {
 public:
  explicit ServerFlag(ControlChannel& channel, bool changes = false) : channel_(channel) {
    if (changes)
      channel.on_change(
          [flags = flags_](const control::MembershipChange& c) { flags->raise(control::reason_of_end(c)); });
    channel.on_end([flags = flags_](const std::string& why) { flags->raise(why); });
  }
  ~ServerFlag() {
    channel_.on_change({});
    channel_.on_end({});
  }
  ServerFlag(const ServerFlag&) = delete;
  ServerFlag& operator=(const ServerFlag&) = delete;
  [[nodiscard]] std::shared_ptr<InterruptFlag> renew() const { return flags_->renew(); }
  void raise(const std::string& why) const { flags_->raise(why); }

 private:
  ControlChannel& channel_;
  std::shared_ptr<tutti::detail::GroupFlag> flags_ = std::make_shared<tutti::detail::GroupFlag>();
};

}  // namespace detail

// A server of a synchronous job whose members come and go: serves one generation behind the other, until the workers
// are done. It holds nothing, so each begins anew.
//     std::unique_ptr<Server<T>> form(const Assignment&, ControlChannel&, InterruptFlag&)
// makes that of one, which the flag ends. stop_requested: asked before the first one.
// CommunicationError where this process was given up.
template <class Form>
void serve_generations(ControlChannel& channel, const ElasticOptions& o, Form&& form,
                       const std::function<bool()>& stop_requested = {}) {
  const detail::ServerFlag flags(channel, true);
  channel.ask_to_enrol(control::Role::server, o.start.rank, o.start.host, o.facts);
  for (bool first = true; auto a = detail::next_generation(channel, o, first, stop_requested); first = false) {
    const std::shared_ptr<InterruptFlag> flag = flags.renew();
    // What was heard before there was a flag.
    if (const auto c = channel.change()) flags.raise(control::reason_of_end(*c));
    try {
      const auto server = form(*a, channel, *flag);
      const InterruptWatch watch(*flag, [&server] { server->stop(); });
      channel.say_stands();
      server->run();
    } catch (const CommunicationError&) {
      // Whoever is lost is named by the arbiter, and its workers call for the next one.
    }
  }
}

}  // namespace tutti::ps
