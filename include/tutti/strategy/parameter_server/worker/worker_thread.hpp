// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/worker/disconnected_servers.hpp>
#include <tutti/strategy/parameter_server/worker/operations.hpp>
#include <tutti/strategy/parameter_server/worker/parts.hpp>
#include <tutti/strategy/parameter_server/worker/worker_messages.hpp>
#include <tutti/strategy/parameter_server/worker/worker_options.hpp>

namespace tutti::ps {

// The thread that owns a worker's connections to the servers. It connects, and runs several operations at once.
template <Transport T>
class WorkerThread {
 public:
  // Waits until all workers and servers have connected. Throws CommunicationError that names the processes that are
  // missing, or a server with other options. options: must outlive this object.
  WorkerThread(std::unique_ptr<T> transport, const WorkerOptions& options)
      : o_(options), operations_(grace), transport_(std::move(transport)), t_(*transport_) {
    std::random_device device;
    session_ = (std::uint64_t{device()} << 32) | device();
    unanswered_.resize(static_cast<std::size_t>(o_.servers));
    disconnected_ = DisconnectedServers(o_.servers, o_.deadline);
    if (o_.flag != nullptr) watch_.emplace(*o_.flag, [this] { interrupt(); });
    {
      const ReachabilityMonitor::Operation waits(o_.reach);
      connect_all();
    }
    thread_ = start_thread("communication", [this] { serve(); });
  }
  // end() must have been called.
  ~WorkerThread() = default;
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  Work post(const Request& r, const std::string& name, std::chrono::milliseconds deadline) {
    return operations_.post(r, name, deadline, [this] { t_.wake(); });
  }
  // failed: does not wait for other processes.
  void end(bool failed) noexcept {
    if (failed)
      interrupt();
    else
      leaving_ = true;
    t_.wake();
    thread_.join();
  }
  void interrupt() noexcept {
    gave_up_ = true;
    t_.wake();
  }
  void abort(const std::string& reason) noexcept {
    try {
      const std::lock_guard lock(reason_mutex_);
      if (reason_.empty()) reason_ = reason;
    } catch (...) {  // continues without the reason
    }
    interrupt();
    // Gives the thread time to send the message before the process ends.
    for (int i = 0; i < 1000 && !told_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  [[nodiscard]] bool failed() const { return operations_.failed(); }
  // Returns the number of steps of all workers that the servers have applied, as far as they have reported it.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_acquire); }
  // Returns the names of the workers by their ranks, from server 0.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  [[nodiscard]] std::string transport() const { return t_.name(); }

 private:
  using Message = typename T::Message;
  using Job = Operations::Job;
  static constexpr std::chrono::seconds grace{5};
  static constexpr std::chrono::milliseconds longest_wait{1000};

  [[nodiscard]] Frame frame(FrameKind kind) const {
    Frame f;
    f.kind = kind;
    f.worker = static_cast<std::uint32_t>(o_.rank);
    f.generation = o_.generation;
    f.session = session_;
    return f;
  }
  [[nodiscard]] std::string server_name(std::int64_t s) const {
    const std::string at = t_.peer_name(s);
    return "server " + std::to_string(s) + (at.empty() ? "" : " at " + at);
  }
  [[nodiscard]] std::string why_interrupted() const {
    const std::string why = o_.flag != nullptr ? o_.flag->why() : "";
    return why.empty() ? "this rank has aborted" : why;
  }

  // ---- before the thread starts ----
  // If servers return, one may be lost before or while this worker connects.
  void connect_all() {
    PauseTolerantTimer patience(o_.patience);
    for (int s = 0; s < o_.servers; ++s) disconnected_.add(s);
    for (int s = 0; s < o_.servers; ++s)
      if (!greet(s) && !o_.servers_return) no_server(s, "cannot send to it");
    while (disconnected_.any()) {
      if (patience.is_over()) {
        std::string missing;
        for (int s = 0; s < o_.servers; ++s)
          if (disconnected_.contains(s)) missing += (missing.empty() ? "" : ", ") + server_name(s);
        fail<CommunicationError>("parameter server", {"all servers within ", o_.patience.count(), " ms"},
                                 {"no welcome from ", missing}, "check whether these servers run and can be reached");
      }
      const auto e = t_.receive(std::chrono::steady_clock::now() + patience.next_wait());
      if (gave_up_) fail<CommunicationError>("parameter server", "all servers", why_interrupted());
      if (e.what == Event<Message>::What::nothing && o_.servers_return) look_for_servers();
      if (e.what == Event<Message>::What::lost && !o_.servers_return) no_server(e.peer, e.why);
      if (e.what == Event<Message>::What::lost) disconnected_.add(e.peer), patience = PauseTolerantTimer(o_.patience);
      if (e.what != Event<Message>::What::message) continue;
      std::string_view why;
      const auto f = decode(e.message.head(), e.message.data().size(), why);
      if (!f || f->session != session_ || e.peer < 0 || e.peer >= o_.servers) continue;
      if (f->kind == FrameKind::refuse) no_server(e.peer, "it refused: " + detail::text_of(e.message.data()));
      if (f->kind == FrameKind::give_up) throw detail::given_up("parameter server", e.message.data());
      if (f->kind != FrameKind::welcome) continue;
      disconnected_.remove(e.peer);
      if (names_.empty()) names_ = detail::names_of(e.message.data(), static_cast<std::size_t>(o_.workers));
    }
  }
  bool greet(int s) {
    const auto greeting = encode(Greeting{static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(o_.workers),
                                          static_cast<std::uint32_t>(o_.servers), o_.big_array, o_.host});
    Frame f = frame(FrameKind::hello);
    f.bytes = static_cast<std::uint32_t>(greeting.size());
    return t_.send(s, encode(f), greeting, nullptr);
  }
  [[noreturn]] void no_server(std::int64_t s, const std::string& why) const {
    fail<CommunicationError>("parameter server", {"to be admitted as rank ", o_.rank}, {server_name(s), ": ", why});
  }
  // ---- the thread ----
  void serve() noexcept {
    std::exception_ptr error;
    try {
      while (!over()) {
        begin_new();
        send_parts();
        note_waiting();
        const auto e = t_.receive(std::chrono::steady_clock::now() +
                                  (disconnected_.any() ? disconnected_.look_every : longest_wait));
        if (gave_up_) continue;
        if (e.what == Event<Message>::What::message) take(e);
        if (e.what == Event<Message>::What::nothing && unreachable_ >= 0) lose(unreachable_, "");
        if (e.what == Event<Message>::What::lost) lose(e.peer, ": " + e.why);
        look_for_servers();
        check_overdue();
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (o_.reach != nullptr) o_.reach->waits_no_more();
    if (error) operations_.fail_all(running_, error);
    running_.clear();
    try {
      if (error) note_reason(error);
      farewell(error != nullptr);
    } catch (...) {  // the servers learn of the end when the connection ends
    }
    told_ = true;
  }
  // Reports that this worker waits for servers while an operation runs.
  void note_waiting() {
    if (o_.reach == nullptr) return;
    if (running_.empty()) return o_.reach->waits_no_more();
    o_.reach->waits(running_.front()->round + 2);
  }
  void lose(std::int64_t s, const std::string& why) {
    unreachable_ = -1;
    if (!o_.servers_return) fail<CommunicationError>(first_name(), "all servers", {server_name(s), " is gone", why});
    disconnected_.add(s);
  }
  // Greets the servers that are reachable again.
  void look_for_servers() {
    if constexpr (Reopening<T>)
      for (int s = 0; s < o_.servers; ++s)
        if (disconnected_.to_be_looked_for(s) && t_.reopen(s) && greet(s)) disconnected_.greeted(s);
  }
  void check_overdue() {
    if (const auto late = disconnected_.overdue())
      fail<CommunicationError>(first_name(),
                               {server_name(*late), " to return within ", o_.deadline.count(), " ms of its end"},
                               "no message from it");
  }
  // The server has admitted this worker again: marks unanswered parts to be sent again.
  void resume_with(std::int64_t s) {
    disconnected_.remove(s);
    unanswered_[static_cast<std::size_t>(s)] = 0;
    for (const auto& job : running_)
      for (auto& p : job->parts)
        if (p.server == s && !p.answered) p.sent = false;
  }
  // Returns whether the thread has no more work. Throws if this rank was aborted or interrupted.
  bool over() {
    if (gave_up_) {
      operations_.take(running_);
      fail<CommunicationError>(first_name(), "all ranks", why_interrupted());
    }
    if (!leaving_) return false;
    begin_new();
    return running_.empty();
  }
  [[nodiscard]] std::string first_name() const { return running_.empty() ? "parameter server" : running_[0]->name_; }

  void begin_new() {
    operations_.take(running_);
    for (; begun_ < running_.size(); ++begun_) {
      Job& job = *running_[begun_];
      job.round = job.request.operation == Operation::offer_window ? first_offer | offers_++ : rounds_++;
      job.parts.clear();
      job.answered = 0;
      job.wide = {};
      if (o_.bf16_wire && job.request.operation == Operation::sum && job.request.dtype == DType::f32)
        parts::make_narrow(job);
      if (concerns_one_worker(job.request.operation))
        parts::cut_alone(job);
      else
        parts::cut_shared(job, o_.servers, o_.big_array);
      parts::make_ready(job);
    }
  }
  // Sends parts in the order of the operations, as far as the servers' memory allows.
  void send_parts() {
    for (const auto& job : running_)
      for (std::size_t i = 0; i < job->parts.size(); ++i) {
        auto& p = job->parts[i];
        if (p.sent || disconnected_.contains(p.server)) continue;
        std::size_t& unanswered = unanswered_[static_cast<std::size_t>(p.server)];
        if (unanswered + p.bytes > o_.in_flight) return;
        send(*job, i);
        unanswered += p.bytes;
        p.sent = true;
      }
  }
  void send(Job& job, std::size_t i) {
    const Operations::Part& p = job.parts[i];
    const Request& r = job.request;
    const Frame f = parts::frame_of(job, p, frame(FrameKind::push), lies_with(r, p.server), done());
    const bool brings = parts::brings_data(r, f);
    const auto data = f.packed ? std::span(job.packed).subspan(p.packed_at, p.packed_bytes)
                      : brings ? r.data.subspan(p.offset - r.base, p.bytes)
                               : std::span<std::byte>();
    // If the server is gone, a message with the reason has arrived or arrives soon.
    const bool stays = f.packed || (brings && r.stays);
    if (!t_.send(p.server, encode(f), data, stays ? &job.under_way[i] : nullptr)) unreachable_ = p.server;
  }

  // Returns the round below which this worker has completed all rounds.
  [[nodiscard]] std::uint64_t done() const noexcept {
    for (const auto& job : running_)
      if (job->request.operation != Operation::offer_window) return job->round;
    return rounds_;
  }
  [[nodiscard]] static bool lies_with(const Request& r, int server) {
    return r.exported != nullptr && r.exported->servers[static_cast<std::size_t>(server)];
  }

  void take(const Event<Message>& e) {
    std::string_view why;
    const auto f = decode(e.message.head(), e.message.data().size(), why);
    // Messages that are not for this process have no effect.
    if (!f || f->session != session_ || f->generation != o_.generation) return;
    const auto found =
        std::find_if(running_.begin(), running_.end(), [&](const auto& job) { return job->round == f->round; });
    Job* const job = found == running_.end() ? nullptr : found->get();
    if (f->kind == FrameKind::give_up)
      throw detail::given_up(job != nullptr ? job->name_ : first_name(), e.message.data());
    if (f->kind == FrameKind::welcome && disconnected_.contains(e.peer)) return resume_with(e.peer);
    if (f->kind == FrameKind::refuse && job != nullptr && job->request.root == arena::facts &&
        job->request.operation == Operation::store)
      fail<UsageError>({"rank ", o_.rank}, "the same program, options and data on all workers",
                       detail::text_of(e.message.data()), "servers admit only workers with the same facts");
    if (f->kind == FrameKind::refuse)
      fail<CommunicationError>(job != nullptr ? job->name_ : first_name(), "an answer",
                               {server_name(e.peer), " refused: ", detail::text_of(e.message.data())});
    if (f->kind != FrameKind::answer || job == nullptr) return;
    const auto part = std::find_if(job->parts.begin(), job->parts.end(),
                                   [&](const auto& p) { return p.offset == f->offset && p.server == e.peer; });
    if (part == job->parts.end() || part->bytes != f->bytes || !part->sent || part->answered) return;
    // The transport may still read the memory that the answer will overwrite.
    const auto i = static_cast<std::size_t>(part - job->parts.begin());
    if (!job->under_way[i].wait(grace))
      fail<CommunicationError>(job->name_, "the answered data to be sent", "a send that has not ended");
    const Request& r = job->request;
    const std::size_t at = f->offset - r.base;
    const bool lies_here = lies_with(r, part->server);
    if (lies_here != (f->window != 0) || r.has != f->has) return;
    const std::byte* const from = lies_here ? r.data.data() + at : e.message.data().data();
    std::byte* const to = (r.answer.empty() ? r.data : r.answer).data() + at;
    if (r.operation != Operation::store && !r.has && to != from) std::memcpy(to, from, f->bytes);
    if (concerns_one_worker(r.operation) && f->done > progress_) progress_ = f->done;
    part->answered = true;
    unanswered_[static_cast<std::size_t>(e.peer)] -= f->bytes;
    if (++job->answered < job->parts.size()) return;
    if (!job->wide.empty()) parts::make_wide(*job);
    finish_done();
  }
  // Removes finished operations, which may be anywhere in the list. The list stays ordered by rounds.
  void finish_done() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      auto& job = running_[i];
      if (i < begun_ && job->answered == job->parts.size()) {
        operations_.finish(*job);
        job.reset();
      } else if (kept++ != i) {
        running_[kept - 1] = std::move(job);
      }
    }
    begun_ -= running_.size() - kept;
    running_.resize(kept);
  }
  // Stores the reason for the messages about this rank's end.
  void note_reason(const std::exception_ptr& error) {
    const std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      reason_ = e.what();
    }
  }
  void farewell(bool failed) {
    std::string reason;
    if (failed) {
      const std::lock_guard lock(reason_mutex_);
      reason = reason_.substr(0, 400);
    }
    for (int s = 0; s < o_.servers; ++s) {
      Frame f = frame(failed ? FrameKind::give_up : FrameKind::goodbye);
      f.bytes = static_cast<std::uint32_t>(reason.size());
      (void)t_.send(s, encode(f), std::as_bytes(std::span(reason)), nullptr);
    }
    if (failed) return;
    // Waits until the servers have received the goodbye, so that they expect the end of the connection.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (int heard = disconnected_.count(); heard < o_.servers && std::chrono::steady_clock::now() < until;) {
      const auto e = t_.receive(until);
      std::string_view why;
      if (e.what == Event<Message>::What::lost) ++heard;
      if (e.what != Event<Message>::What::message) continue;
      const auto f = decode(e.message.head(), e.message.data().size(), why);
      heard += f && f->kind == FrameKind::goodbye && f->session == session_;
    }
  }

  const WorkerOptions& o_;
  std::uint64_t session_ = 0;
  std::vector<std::string> names_;
  Operations operations_;
  // Used by the thread. running_: running operations, oldest first. begun_: the first begun_ of them have their parts.
  std::vector<std::shared_ptr<Job>> running_;
  std::size_t begun_ = 0;
  std::uint64_t rounds_ = 1, offers_ = 0;
  // Window offers belong to this worker alone, so they have a count of their own.
  static constexpr std::uint64_t first_offer = std::uint64_t{1} << 63;
  DisconnectedServers disconnected_;     // servers for which it waits
  std::int64_t unreachable_ = -1;        // a server that cannot be reached
  std::vector<std::size_t> unanswered_;  // unanswered bytes, for each server
  std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<bool> gave_up_{false}, leaving_{false}, told_{false};
  std::unique_ptr<T> transport_;  // destroyed first: it reads the members above
  T& t_;
  std::optional<InterruptWatch> watch_;  // destroyed before the object that it wakes
  std::thread thread_;
};

}  // namespace tutti::ps
