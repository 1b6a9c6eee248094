// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/core/span.hpp>
#include <tutti/strategy/parameter_server/server/imported_windows.hpp>
#include <tutti/strategy/parameter_server/server/owned_operations.hpp>
#include <tutti/strategy/parameter_server/server/round_answer.hpp>
#include <tutti/strategy/parameter_server/server/round_table.hpp>
#include <tutti/strategy/parameter_server/server/server_members.hpp>
#include <tutti/strategy/parameter_server/server/server_options.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/wire/window_offer.hpp>

namespace tutti::ps {

// Sums the workers' pushes in the order of their ranks and answers all workers: every server has its part of each
// piece. If a worker is lost, or its part does not arrive in time, the job ends, and all workers get its name.
// With ServerOptions::store the server owns its part of the weights instead. It updates them at each push and answers
// only the worker that pushed; the other workers continue without a lost worker.
template <Transport T>
class Server {
 public:
  Server(std::unique_ptr<T> transport, ServerOptions options)
      : o_(std::move(options)),
        members_(static_cast<std::size_t>(o_.workers), o_.ended),
        table_(o_.workers),
        windows_(o_.windows, members_.size()),
        transport_(std::move(transport)),
        t_(*transport_) {
    if (o_.store != nullptr) own_weights();
  }

  // Serves until all workers have said goodbye. Throws CommunicationError that names a worker that is missing or lost.
  void run() {
    until_ = std::chrono::steady_clock::now() + o_.patience;
    welcomed_ = owned_.has_value();
    const auto begun = [this] { return owned_ ? !members_.nobody_is_there() : welcomed_; };
    while (!over_ && !stopped_ && (begun() || !o_.stop_requested || !o_.stop_requested())) {
      if (o_.released && o_.released()) break;
      Moment next = std::chrono::steady_clock::now() + PauseMeter::longest_round / (o_.members ? 5 : 1);
      follow_members();
      if (!welcomed_) next = std::min(next, until_);
      if (const auto due = table_.next_due()) next = std::min(next, *due);
      Event<Message> e = t_.receive(next);
      const auto pause = rounds_.end_round();
      until_ += pause;
      table_.put_off(pause);
      if (e.what == Event<Message>::What::lost)
        lost(e);
      else if (e.what == Event<Message>::What::message)
        take(e);
      look_at_the_clock();
    }
  }
  // Makes run() return; may be called from any thread.
  void stop() noexcept {
    stopped_ = true;
    t_.wake();
  }
  [[nodiscard]] const ServerCounts& counts() const noexcept { return counts_; }
  // Tells all workers the reason if this server ends before they do. Call after run().
  void give_up(const std::string& expected, const std::string& got) {
    tell(FrameKind::give_up, (expected + '\0' + got).substr(0, 1000));
  }
  // Returns the workers that were lost and have not connected again, if the other workers continue without them;
  // otherwise an empty text.
  [[nodiscard]] std::string lost_workers() const {
    return members_.list([](const Member& m, std::uint32_t) { return m.was_lost; });
  }

 private:
  using Message = typename T::Message;
  using Member = ServerMembers::Member;

  void take(Event<Message>& e) {
    std::string_view why;
    const auto f = decode(e.message.head(), e.message.data().size(), why);
    if (!f) return malformed(e.peer, std::string(why));
    if (!members_.knows(f->worker) || (!e.identity.empty() && e.identity != "worker " + std::to_string(f->worker))) {
      ++counts_.strangers;
      return refuse(e.peer, *f, "this worker does not belong to the job");
    }
    if (f->kind == FrameKind::hello) return hello(e, *f);
    Member& m = members_[f->worker];
    if (m.peer != e.peer || m.session != f->session || f->generation != o_.generation || m.gone) {
      ++counts_.stale;
      return note(e.peer, "an outdated frame: generation " + std::to_string(f->generation) + ", " + name_of(*f));
    }
    m.done = std::max(m.done, f->done);
    switch (f->kind) {
      case FrameKind::push:
        return push(e, *f);
      case FrameKind::goodbye:
        return goodbye(m, *f);
      case FrameKind::give_up:
        return give_up(*f, e.message.data());
      default:
        malformed(e.peer, "a frame that only servers send");
    }
  }

  // Admits new workers, and ignores workers that the arbiter has removed from the job.
  void follow_members() {
    const auto now = o_.members ? o_.members() : std::nullopt;
    if (!now) return;
    members_.set(*now, [this](Member& m) {
      if (m.there() && !m.gone && !m.was_lost) leave(m, "it has left the job");
      m.peer = -1;
    });
    owned_->grow(members_.size());
    windows_.grow(members_.size());
  }

  void hello(const Event<Message>& e, const Frame& f) {
    const auto g = decode_greeting(e.message.data());
    if (!g) return malformed(e.peer, "an invalid greeting");
    Member& m = members_[f.worker];
    if (m.peer == e.peer && m.session == f.session) {
      ++counts_.repeated;
      return;
    }
    std::string why = members_.difference(o_, f, *g);
    // A restarted worker that proves the same identity replaces the old one.
    const bool again = owned_ && m.there() && !e.identity.empty() && !m.gone;
    if (why.empty() && m.there() && !again) why = "rank " + std::to_string(f.worker) + " has joined already";
    if (!why.empty()) {
      ++counts_.strangers;
      return refuse(e.peer, f, why);
    }
    if (owned_) begin_again(m, f.session);
    m.peer = e.peer;
    m.session = f.session;
    m.big_array = g->big_array;
    m.name = "rank " + std::to_string(f.worker) + (g->name.empty() ? "" : " on " + printable(g->name));
    if (owned_) return welcome(m);
    if (!members_.complete()) return;
    welcomed_ = true;
    std::string names;
    for (const Member& each : members_) names.append(each.name).append(1, '\0');
    names.resize(std::min(names.size(), max_data));
    tell(FrameKind::welcome, names);
  }

  void push(Event<Message>& e, const Frame& f) {
    if (!welcomed_) {
      ++counts_.stale;
      return note(e.peer, "data before the welcome");
    }
    if (f.operation == Operation::take && f.root >= members_.size()) return malformed(e.peer, "an unknown root");
    if (f.packed && !two_bit::is_packed(e.message.data(), f.bytes / sizeof(float)))
      return malformed(e.peer, "two-bit values without a valid threshold");
    if (f.operation == Operation::offer_window) return import_window(e, f);
    const std::span<std::byte> mapped = windows_.find(f);
    if (f.window != 0 && mapped.empty()) {
      ++counts_.malformed;
      return refuse(e.peer, f, "an address outside of the shared windows");
    }
    if (concerns_one_worker(f.operation)) return alone(e, f, mapped);
    if (owned_) return malformed(e.peer, "a sum, although workers do not wait for each other");
    ++counts_.pushes;
    using Cell = typename RoundTable<Message>::Cell;
    const std::uint64_t floor = members_.floor();
    table_.forget_below(floor);
    Cell* c = table_.find(f.round, f.offset);
    if (c == nullptr) {
      if (f.round < floor) {
        ++counts_.stale;
        return note(e.peer, "a completed round: " + name_of(f));
      }
      for (const Member& m : members_)
        if (m.gone) return end("step", m.name + " has left", f.round);
    } else if (c->answered) {
      ++counts_.repeated;
      if (!c->forgotten) answer(*c, f.worker);
      return;
    } else if (table_.has(*c, f.worker)) {
      ++counts_.repeated;
      return;
    } else if (!same_operation(c->frame, f)) {
      return end("the same operation on all ranks",
                 size_text(c->frame) + " on " + members_[c->frame.worker].name + " and " + size_text(f) + " on " +
                     members_[f.worker].name,
                 f.round);
    }
    if (table_.pending(f.worker) + f.bytes > o_.in_flight) {
      ++counts_.too_much;
      return refuse(e.peer, f, "more than " + std::to_string(o_.in_flight) + " unanswered bytes");
    }
    if (c == nullptr) c = &table_.open(f);
    if (table_.add(*c, f, std::move(e.message), mapped)) finish(*c);
  }

  template <class Cell>
  void finish(Cell& c) {
    const Span span(Lane::communication, "add up", {}, c.frame.bytes);
    table_.combine(c);
    for (std::uint32_t w = 0; w < members_.size(); ++w) answer(c, w);
    table_.keep_within(o_.in_flight);
  }
  template <class Cell>
  void answer(Cell& c, std::uint32_t worker) {
    ++counts_.answers;
    const RoundAnswer a = round_answer(c, worker, members_[worker].session);
    (void)t_.send(members_[worker].peer, encode(a.frame), a.data, a.data.empty() ? nullptr : &c.under_way);
  }
  void import_window(const Event<Message>& e, Frame f) {
    const auto offer = decode_window_offer(e.message.data());
    if (!offer) {
      ++counts_.malformed;
      return refuse(e.peer, f, "an invalid window");
    }
    const WindowOffer::Record said = verdict(windows_.take(f.worker, *offer));
    f.kind = FrameKind::answer;
    f.bytes = WindowOffer::record;
    f.done = 0;  // a worker has no information about the servers' steps
    (void)t_.send(e.peer, encode(f), said, nullptr);
  }

  // ---- a worker's operations on data that this server owns ----
  void alone(const Event<Message>& e, const Frame& f, std::span<const std::byte> mapped) {
    const std::string_view why = owned_ ? owned_->refusal(f) : "an operation for a server that owns weights";
    if (!why.empty()) {
      ++counts_.malformed;
      return refuse(e.peer, f, std::string(why));
    }
    const Member& m = members_[f.worker];
    const Span span(Lane::communication, "serve", m.name, f.bytes);
    ++counts_.pushes;
    counts_.repeated +=
        owned_->take(f, f.window != 0 && !f.packed ? mapped : e.message.data(), m.done, members_.at_work_beside(m)) ? 1
                                                                                                                    : 0;
  }
  void own_weights() {
    OwnedOperations::Replies replies;
    // Sends a copy, because the next push changes the weights. If the push was in a window, writes the answer there.
    replies.answer = [this](const Frame& f, std::span<const std::byte> data) {
      ++counts_.answers;
      if (const std::span<std::byte> mapped = windows_.find(f); !mapped.empty()) {
        std::memcpy(mapped.data(), data.data(), std::min(data.size(), mapped.size()));
        data = {};
      }
      (void)t_.send(members_[f.worker].peer, encode(f), data, nullptr);
    };
    replies.refuse = [this](const Frame& f, const std::string& why) { refuse(members_[f.worker].peer, f, why); };
    replies.lost = [this](std::uint32_t worker, std::uint64_t steps) {
      counts_.lost_steps += steps;
      if (o_.log)
        o_.log("server " + std::to_string(o_.index) + " has lost " + std::to_string(steps) +
               (steps == 1 ? " step of " : " steps of ") + members_[worker].name +
               ", which were done after its state was last saved");
    };
    owned_.emplace(*o_.store, o_.staleness, members_.size(), std::move(replies));
    if (o_.from == nullptr) return;
    owned_->restore(*o_.from);
    keep_at_ = std::chrono::steady_clock::now() + o_.keep_every;
  }
  void keep_state(Moment now) {
    if (!o_.keep || !o_.store->sealed() || now < keep_at_) return;
    keep_at_ = now + o_.keep_every;
    ServerState state;
    owned_->save(state);
    o_.keep(std::move(state));
  }
  void begin_again(Member& m, std::uint64_t session) {
    if (m.was_lost && o_.log) o_.log(m.name + " is back");
    m.done = 0;
    m.gone = m.was_lost = false;
    windows_.forget(number_of(m));
    owned_->begin(number_of(m), session);
  }
  [[nodiscard]] std::uint32_t number_of(const Member& m) const { return members_.number_of(m); }
  [[nodiscard]] Frame frame_to(const Member& m, FrameKind kind) const {
    Frame f;
    f.kind = kind;
    f.worker = number_of(m);
    f.generation = o_.generation;
    f.session = m.session;
    return f;
  }
  void welcome(const Member& m) { (void)t_.send(m.peer, encode(frame_to(m, FrameKind::welcome)), {}, nullptr); }
  // The other workers continue without it, and it may connect again.
  void leave(Member& m, const std::string& why) {
    m.was_lost = true;
    m.peer = -1;
    if (o_.log) o_.log(m.name + " is gone: " + why + "; the other workers continue");
    until_ = std::chrono::steady_clock::now() + o_.patience;
    owned_->leave(number_of(m));
    windows_.forget(number_of(m));
    over_ = !o_.members && members_.done_or_lost();
  }

  void goodbye(Member& m, Frame f) {
    m.gone = true;
    f.bytes = 0;  // a goodbye has no data
    (void)t_.send(m.peer, encode(f), {}, nullptr);
    if (owned_) {
      owned_->leave(number_of(m));
      windows_.forget(number_of(m));
      over_ = !o_.members && members_.done_or_lost();
      return;
    }
    if (table_.next_due()) return end("all ranks", m.name + " has left", 0);
    over_ = members_.done();
  }
  void give_up(const Frame& f, std::span<const std::byte> text) {
    if (owned_) return leave(members_[f.worker], "it has aborted");
    end("all ranks",
        members_[f.worker].name + " has aborted" +
            (text.empty() ? ""
                          : ": " + printable({reinterpret_cast<const char*>(text.data()),
                                              std::min<std::size_t>(text.size(), 400)})),
        f.round, static_cast<int>(f.worker));
  }
  void lost(const Event<Message>& e) {
    Member* const m = members_.of_peer(e.peer);
    if (m == nullptr) return;
    if (owned_) return leave(*m, e.why);
    end("all ranks", m->name + " is gone: " + e.why, 0, static_cast<int>(number_of(*m)));
  }
  void look_at_the_clock() {
    const auto now = std::chrono::steady_clock::now();
    if (owned_) {
      if (!over_ && !o_.members && now >= until_ && members_.nobody_is_there())
        end("a worker within " + std::to_string(o_.patience.count()) + " ms", "no worker", 0);
      return keep_state(now);
    }
    if (!welcomed_ && now >= until_)
      end("all workers within " + std::to_string(o_.patience.count()) + " ms",
          "no message from " + members_.list([](const Member& m, std::uint32_t) { return !m.there(); }), 0);
    if (const auto due = table_.next_due(); due && now >= *due) {
      const auto& c = table_.most_overdue();
      const std::string missing = members_.list([&](const Member&, std::uint32_t w) { return !table_.has(c, w); });
      end("all ranks within " + std::to_string(c.frame.patience) + " ms", "no message from " + missing, c.frame.round);
    }
  }

  // Tells all workers except `without`, and ends this server.
  [[noreturn]] void end(const std::string& expected, const std::string& got, std::uint64_t round, int without = -1) {
    tell(FrameKind::give_up, expected + '\0' + got, round, without);
    fail<CommunicationError>({"server ", o_.index}, expected, got);
  }
  void tell(FrameKind kind, std::string_view text, std::uint64_t round = 0, int without = -1) {
    for (std::size_t w = 0; w < members_.size(); ++w) {
      const Member& m = members_[w];
      if (!m.there() || m.gone || static_cast<int>(w) == without) continue;
      Frame f = frame_to(m, kind);
      f.round = round;
      f.bytes = static_cast<std::uint32_t>(text.size());
      (void)t_.send(m.peer, encode(f), std::as_bytes(std::span(text)), nullptr);
    }
  }
  void refuse(std::int64_t peer, Frame f, const std::string& why) {
    note(peer, why);
    f.kind = FrameKind::refuse;
    f.packed = f.has = false;
    f.window = 0;  // the text follows the head
    f.bytes = static_cast<std::uint32_t>(why.size());
    (void)t_.send(peer, encode(f), std::as_bytes(std::span(why)), nullptr);
  }
  void malformed(std::int64_t peer, const std::string& why) {
    ++counts_.malformed;
    note(peer, why);
  }
  void note(std::int64_t peer, const std::string& why) { refusals_.note(o_, t_.peer_name(peer), why); }

  ServerOptions o_;
  ServerMembers members_;
  RoundTable<Message> table_;
  ImportedWindows windows_;
  ServerCounts counts_;
  RefusalLog refusals_;
  Moment until_{}, keep_at_{};
  PauseMeter rounds_;
  std::optional<OwnedOperations> owned_;  // set if it owns weights
  bool welcomed_ = false, over_ = false;
  std::atomic<bool> stopped_{false};
  std::unique_ptr<T> transport_;  // destroyed first: it reads the members above
  T& t_;
};

}  // namespace tutti::ps
