// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/zeromq/security.hpp>
#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/core/threads/threads.hpp>

// The channel to the arbiter of a job that scripts started. It sends the frames of control_link.hpp over ZeroMQ: each
// is the header of a message without payload. It admits a process that knows the job's secret.
namespace tutti::zeromq {

namespace detail {

inline constexpr const char* terms_key = "job/terms";

// Returns the options of both ends of the channel.
[[nodiscard]] inline Options channel_options(const ScriptedJob& job, bool arbiter) {
  Options o;
  o.lost_after = job.rank_timeout;
  if (!job.secret.empty()) {
    o.security.kind = Security::Kind::curve;
    const KeyPair member = KeyPair::of(job.secret, "member"), arbiter_keys = KeyPair::of(job.secret, "arbiter");
    o.security.own = arbiter ? arbiter_keys : member;
    o.security.server_key = arbiter_keys.open;
    o.security.workers = {member.open};
    return o;
  }
  // Without a secret any process may connect. The terms detect a process of another job.
  o.security.kind = Security::Kind::password;
  o.security.password = "tutti";
  return o;
}

}  // namespace detail

// A process's connection to the arbiter. The receiving thread sends the frames that wait; the destructor sends the
// rest.
class ControlLink final : public control::FrameLink {
 public:
  // Waits until the arbiter has admitted this process and has sent the same terms. Throws UsageError if the arbiter's
  // terms differ, and CommunicationError if the arbiter does not answer within `patience`. stop_requested: ends the
  // wait when it returns true.
  ControlLink(const ScriptedJob& job, const std::string& terms, std::chrono::milliseconds patience,
              const std::function<bool()>& stop_requested)
      : job_(job) {
    const auto until = std::chrono::steady_clock::now() + patience;
    const Options o = detail::channel_options(job, false);
    for (bool there = false; !there;) {
      end_ = std::make_unique<WorkerEnd>(0, std::vector<ServerEndpoint>{{job.arbiter, o.security.server_key}}, o);
      control::split_message(control::encode(control::Lookup{0, detail::terms_key, true}),
                             [&](std::string_view f) { (void)end_->send(0, bytes(f), {}, nullptr); });
      there = ask(terms, until, patience, stop_requested);
    }
  }
  ~ControlLink() override { flush(); }

  void send(std::string_view frame) override {
    if (gone_) gone();
    {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(frame);
    }
    end_->wake();
  }
  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds wait) override {
    flush();
    const auto e = end_->receive(std::chrono::steady_clock::now() + wait);
    using What = ps::Event<WorkerEnd::Message>::What;
    if (e.what == What::lost) {
      gone_ = true;
      gone();
    }
    flush();
    if (e.what != What::message) return {};
    return text(e.message.head());
  }
  void wake() override { end_->wake(); }
  // Nothing else watches the arbiter's process.
  void unanswered() override {
    gone_ = true;
    fail<CommunicationError>(
        "control channel",
        {job_.arbiter_name(), ", the arbiter of the job, to answer within ", job_.rank_timeout.count(), " ms"},
        "no answer", "check whether its process runs and its host is connected");
  }

 private:
  [[nodiscard]] static std::span<const std::byte> bytes(std::string_view frame) noexcept {
    return std::as_bytes(std::span(frame));
  }
  [[nodiscard]] static std::string text(std::span<const std::byte> frame) {
    return {reinterpret_cast<const char*>(frame.data()), frame.size()};
  }
  // Returns why the arbiter did not answer, and a hint. ZeroMQ itself reports no error for a name without an address.
  [[nodiscard]] std::pair<std::string, std::string> why_silent() const {
    if (ends_ > 0) return {"connections that ended at once", "it has another --ps-key-file, or is another program"};
    std::string why, host = job_.arbiter.substr(0, job_.arbiter.rfind(':'));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (tcp::addresses_of(host, 0, std::chrono::steady_clock::now() + std::chrono::seconds(1), why).empty())
      return {"no address for " + printable(host) + " (" + why + ")", "check that name in /etc/hosts and in DNS"};
    return {"no answer", "check whether it was started and that port can be reached from this host"};
  }
  // Asks the arbiter for its terms. Returns false if the connection ended: the arbiter may become reachable later.
  bool ask(const std::string& terms, ps::Moment until, std::chrono::milliseconds patience,
           const std::function<bool()>& stop_requested) {
    using What = ps::Event<WorkerEnd::Message>::What;
    control::MessageAssembler assembler;
    for (;;) {
      const auto now = std::chrono::steady_clock::now();
      if (stop_requested && stop_requested())
        fail<CommunicationError>("parameter server", job_.arbiter_name(), "a signal to stop before it was reached");
      if (now >= until) {
        const auto [got, hint] = why_silent();
        fail<CommunicationError>("parameter server", {job_.arbiter_name(), " within ", patience.count(), " ms"}, got,
                                 hint);
      }
      const auto e = end_->receive(std::min(until, now + std::chrono::milliseconds(200)));
      if (e.what == What::lost) {
        if (e.why != WorkerEnd::ended)
          fail<CommunicationError>("parameter server", {job_.arbiter_name(), " to admit this process"}, e.why,
                                   "give all processes the same --ps-key-file");
        ++ends_;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return false;
      }
      if (e.what != What::message) continue;
      const auto whole = assembler.take(text(e.message.head()), control::longest_message);
      if (!whole) continue;
      const control::Message m = control::decode(*whole);
      const auto* value = std::get_if<control::Value>(&m);
      if (value == nullptr) continue;
      if (value->value != terms)
        fail<UsageError>("job", {"the terms of the arbiter, ", long_text(value->value)}, long_text(terms),
                         "give all processes the same lists and counts");
      return true;
    }
  }
  [[nodiscard]] static std::string long_text(std::string_view t) {
    std::string all;
    for (; all.size() < 2000 && !t.empty(); t.remove_prefix(std::min<std::size_t>(t.size(), 80)))
      all += printable(t.substr(0, 80));
    return all;
  }
  void flush() {
    const std::lock_guard lock(mutex_);
    for (; !waiting_.empty() && !gone_; waiting_.pop_front())
      if (!end_->send(0, bytes(waiting_.front()), {}, nullptr)) return;  // receive() reports the loss
  }
  [[noreturn]] void gone() const {
    fail<CommunicationError>("control channel", {job_.arbiter_name(), ", the arbiter of the job"},
                             "the end of the connection to it", "check whether its process still runs");
  }

  ScriptedJob job_;
  int ends_ = 0;  // number of connections that ended before the arbiter admitted one
  std::mutex mutex_;
  std::deque<std::string> waiting_;
  std::atomic<bool> gone_{false};
  std::unique_ptr<WorkerEnd> end_;
};

struct ArbiterServerOptions {
  control::ArbiterOptions arbiter{};
  std::function<void(const std::string&)> log{};
};

// The arbiter of a job that scripts started. It listens on a port and runs in its own thread. A process is lost if its
// connection ends before the process has left.
class ArbiterServer {
 public:
  // Throws CommunicationError if the port is in use.
  ArbiterServer(const ScriptedJob& job, const std::string& terms, ArbiterServerOptions options)
      : o_(std::move(options)), service_(o_.arbiter) {
    const HostPort at = parse_host_list(job.arbiter, "arbiter").at(0);
    end_ = std::make_unique<ServerEnd>((is_loopback(at.host) ? "127.0.0.1:" : "*:") + std::to_string(at.port),
                                       detail::channel_options(job, true));
    end_->log_refusals("the arbiter", o_.log);
    // Publishes the terms for all processes that ask.
    control::split_message(control::encode(control::Publish{0, detail::terms_key, terms}),
                           [&](std::string_view f) { (void)service_.receive(own_connection, f, control::now()); });
    thread_ = start_thread("arbiter", [this] { serve(); });
  }
  ~ArbiterServer() {
    // If a loss ends the job, gives the other processes time to read which loss it was before their connections end.
    if (!fatal().empty()) wait_until_empty(std::chrono::seconds(2));
    stopping_ = true;
    end_->wake();
    thread_.join();
  }
  ArbiterServer(const ArbiterServer&) = delete;
  ArbiterServer& operator=(const ArbiterServer&) = delete;

  // Returns the message of the first loss that ends the job, or an empty text.
  [[nodiscard]] std::string fatal() const {
    const std::lock_guard lock(mutex_);
    return fatal_;
  }
  // Returns the workers that were lost and have not returned, each with the reason. Returns an empty text if no
  // worker was lost.
  [[nodiscard]] std::string lost_workers() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const auto& [place, said] : lost_) all += (all.empty() ? "" : "; ") + said;
    return all;
  }
  // Returns true if no process is connected.
  [[nodiscard]] bool empty() const { return open_ == 0; }
  // Returns true if all processes with which the job begins have arrived.
  [[nodiscard]] bool founded() const { return founded_; }
  void wait_until_empty(std::chrono::milliseconds most) const {
    const auto until = std::chrono::steady_clock::now() + most;
    while (!empty() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  static constexpr control::ConnectionId own_connection = 0;

  void serve() noexcept {
    using What = ps::Event<ServerEnd::Message>::What;
    control::Time looked = control::now();
    // Checks several times within a short time-out.
    const auto every = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(100), o_.arbiter.rank_timeout / 10);
    while (!stopping_) {
      try {
        const auto e = end_->receive(std::chrono::steady_clock::now() +
                                     std::chrono::duration_cast<std::chrono::milliseconds>(every));
        const control::Time now = control::now();
        if (e.what == What::message) hear(e, now);
        if (e.what == What::lost) {
          connections_.erase(connection(e.peer));
          service_.ended(connection(e.peer), e.why);
        }
        // If this thread itself was paused, it has not received the messages of living processes.
        if (control::is_pause(now - looked, o_.arbiter.rank_timeout)) service_.arbiter().forgive(now, now - looked);
        looked = now;
        service_.tick(now);
        decide();
        service_.send([&](control::ConnectionId s, std::string_view frame) {
          if (s != own_connection)
            (void)end_->send(static_cast<std::int64_t>(s) - 1, std::as_bytes(std::span(frame)), {}, nullptr);
        });
        open_ = static_cast<int>(connections_.size());
      } catch (const std::exception& error) {
        if (o_.log) o_.log(std::string("arbiter: ") + error.what());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
  [[nodiscard]] static control::ConnectionId connection(std::int64_t peer) noexcept {
    return static_cast<control::ConnectionId>(peer) + 1;
  }
  void hear(const ps::Event<ServerEnd::Message>& e, control::Time now) {
    const auto head = e.message.head();
    connections_.insert(connection(e.peer));
    if (service_.receive(connection(e.peer), {reinterpret_cast<const char*>(head.data()), head.size()}, now) || !o_.log)
      return;
    o_.log("invalid message from " + end_->peer_name(e.peer) + ": its further messages are ignored");
  }
  void decide() {
    for (const control::Decision& d : service_.arbiter().take_decisions()) {
      const bool worker = d.member.role == control::Role::worker;
      if (d.kind == control::Decision::Kind::refused) refuse(d);
      if (d.kind == control::Decision::Kind::issued) note_members();
      founded_ = founded_ || d.kind == control::Decision::Kind::issued;
      if (d.kind == control::Decision::Kind::left && worker) gone_.insert(d.member.place);
      if (d.kind == control::Decision::Kind::lost) lose(d, worker);
    }
    workers_done_ = static_cast<int>(gone_.size()) >= o_.arbiter.workers;
  }
  void refuse(const control::Decision& d) {
    if (o_.log) o_.log(d.why);
    const std::lock_guard lock(mutex_);
    if (d.fatal && fatal_.empty()) fatal_ = d.why;
  }
  void lose(const control::Decision& d, bool worker) {
    const bool ends = d.fatal;
    connections_.erase(d.connection);  // ZeroMQ may never report the end of this connection
    const std::string said = error_message(d.member.name(), "a process of the job until its end", d.why, "");
    const std::lock_guard lock(mutex_);
    if (!fatal_.empty()) return;  // later losses follow from the first one
    if (ends) fatal_ = said;
    if (worker) {
      lost_[d.member.place] = said;
      gone_.insert(d.member.place);
    }
    if (o_.log && !workers_done_) o_.log(said + (ends ? "" : " The other processes continue without it."));
  }
  // Forgets the losses of workers that have returned.
  void note_members() {
    const std::lock_guard lock(mutex_);
    for (const control::Member& m : service_.arbiter().members())
      if (m.role == control::Role::worker) {
        lost_.erase(m.place);
        gone_.erase(m.place);
      }
  }

  ArbiterServerOptions o_;
  control::ArbiterService service_;
  std::set<control::ConnectionId> connections_;  // open connections
  std::set<std::int32_t> gone_;                  // workers that have left or were lost
  std::atomic<int> open_{0};
  std::atomic<bool> founded_{false}, stopping_{false};
  bool workers_done_ = false;
  mutable std::mutex mutex_;
  std::map<std::int32_t, std::string> lost_;
  std::string fatal_;
  std::unique_ptr<ServerEnd> end_;
  std::thread thread_;
};

}  // namespace tutti::zeromq
