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
#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti::ps {

namespace detail {

// Returns the next generation; no value if the server is released, or asked to stop before its first generation.
inline std::optional<Assignment> next_generation(ControlChannel& channel, const ElasticOptions& o, bool first,
                                                 const std::function<bool()>& stop_requested) {
  PauseTolerantTimer patience(o.rendezvous_timeout);
  while (!channel.await_assignment(PauseTolerantTimer::slice)) {
    if (!first) continue;
    if (stop_requested && stop_requested()) return {};
    if (patience.is_over()) break;  // the next line names the missing processes in an error
  }
  return channel.next_assignment_unless_released(std::chrono::milliseconds(0));
}

// Ends a server when its channel ends. If `changes` is true, ends it also when a process is lost.
class ServerFlag {
 public:
  explicit ServerFlag(ControlChannel& channel, bool changes = false) : channel_(channel) {
    if (changes)
      channel.on_change(
          [flags = flags_](const control::MembershipChange& c) { flags->raise(control::reason_of_end(c)); });
    channel.on_end([flags = flags_](const std::string& why) { flags->end(why); });
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

// A server of a synchronous elastic job: serves one generation after the other until the workers are done. It has no
// state, so each generation has a new server, made by
//     std::unique_ptr<Server<T>> form(const Assignment&, ControlChannel&, InterruptFlag&)
// and ended by the flag. stop_requested: called before the first generation. Throws CommunicationError if the arbiter
// has removed this process from the job.
template <class Form>
void serve_generations(ControlChannel& channel, const ElasticOptions& o, Form&& form,
                       const std::function<bool()>& stop_requested = {}) {
  const detail::ServerFlag flags(channel, true);
  channel.ask_to_enrol(control::Role::server, o.start.rank, o.start.host, o.facts);
  for (bool first = true; auto a = detail::next_generation(channel, o, first, stop_requested); first = false) {
    const std::shared_ptr<InterruptFlag> flag = flags.renew();
    // The change may have been announced before the flag existed.
    if (const auto c = channel.change()) flags.raise(control::reason_of_end(*c));
    try {
      const auto server = form(*a, channel, *flag);
      const InterruptWatch watch(*flag, [&server] { server->stop(); });
      channel.report_group_ready();
      server->run();
    } catch (const CommunicationError&) {
      // The arbiter names the lost process, and the workers request the next generation.
    }
  }
}

}  // namespace tutti::ps
