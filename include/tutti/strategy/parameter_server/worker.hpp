// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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

#include <tutti/comm/communicator.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/strategy/parameter_server/away_servers.hpp>
#include <tutti/strategy/parameter_server/frames.hpp>
#include <tutti/strategy/parameter_server/lent_windows.hpp>
#include <tutti/strategy/parameter_server/loan.hpp>
#include <tutti/strategy/parameter_server/operations.hpp>
#include <tutti/strategy/parameter_server/parts.hpp>
#include <tutti/strategy/parameter_server/placement.hpp>
#include <tutti/strategy/parameter_server/round_table.hpp>
#include <tutti/strategy/parameter_server/transport.hpp>
#include <tutti/strategy/parameter_server/two_bit.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::ps {

struct WorkerOptions {
  int rank = 0, workers = 1, servers = 1;
  std::uint64_t generation = 1;
  std::chrono::milliseconds deadline = usual_deadline;             // of every operation
  std::chrono::milliseconds patience = std::chrono::seconds(125);  // until all servers have said welcome
  std::uint64_t big_array = usual_big_array;                       // see placement.hpp
  std::size_t in_flight = usual_in_flight;                         // not more than the servers'
  bool bf16_wire = false;                                          // sums of f32 travel as bf16, added up in f32
  // Above 0: gradients of f32 travel to the servers in two bits, see two_bit.hpp; not beside bf16_wire.
  float threshold = 0;
  std::string host{};  // for messages
  // Of this process, for servers of this host, to which data then need not travel; outlives the communicator. Null:
  // none. neighbours: of each server, whether it is on this host.
  ProcessWindows* windows = nullptr;
  std::vector<bool> neighbours{};
  bool one_host = true;      // nobody of the job is elsewhere
  std::string no_windows{};  // why there are none, where that is to be said
  // A server that is lost is started again: until `deadline` it is waited for. Servers that own weights alone.
  bool servers_return = false;
  bool late = false;  // others have begun before it
  // Ends it, while it is made too; outlives it. Null: nothing does.
  InterruptFlag* flag = nullptr;
};

// A worker's communicator whose operations the servers carry out: it pushes its data and pulls the sums over all
// workers, part by part, on a thread of its own. Several operations are under way at once.
template <Transport T>
class ServerCommunicator {
 public:
  static constexpr CommunicatorTraits traits{};

  // Waits until all workers and servers are there; CommunicationError says who is not, or which server is of another
  // kind.
  ServerCommunicator(std::unique_ptr<T> transport, WorkerOptions options)
      : o_(std::move(options)),
        lent_(o_.windows, o_.neighbours),
        operations_(grace),
        transport_(std::move(transport)),
        t_(*transport_) {
    if (o_.workers < 1 || o_.rank < 0 || o_.rank >= o_.workers || o_.servers < 1)
      fail<UsageError>("parameter server", "a rank of a job with servers",
                       "rank " + std::to_string(o_.rank) + " of " + std::to_string(o_.workers) + ", " +
                           std::to_string(o_.servers) + " servers");
    two_bit::require_threshold(o_.threshold);
    if (o_.threshold > 0 && o_.bf16_wire) fail<UsageError>("gradient compression", "two bits or bf16", "both");
    std::random_device device;
    session_ = (std::uint64_t{device()} << 32) | device();
    unanswered_.resize(static_cast<std::size_t>(o_.servers));
    away_ = AwayServers(o_.servers);
    if (o_.flag != nullptr) watch_.emplace(*o_.flag, [this] { interrupt(); });
    meet();
    thread_ = start_thread("communication", [this] { serve(); });
    try {
      lent_.begin(lending());
    } catch (...) {
      end(true);
      throw;
    }
  }
  // Destroyed while an exception is on the way, it waits for nobody.
  ~ServerCommunicator() { end(std::uncaught_exceptions() > exceptions_); }
  ServerCommunicator(const ServerCommunicator&) = delete;
  ServerCommunicator& operator=(const ServerCommunicator&) = delete;

  [[nodiscard]] int rank() const noexcept { return o_.rank; }
  [[nodiscard]] int size() const noexcept { return o_.workers; }
  [[nodiscard]] std::string name() const {
    const auto all = static_cast<std::size_t>(o_.servers);
    const std::string servers = std::to_string(all) + (all == 1 ? " server" : " servers");
    if (lent_.servers() == all && o_.one_host) return "parameter server over windows, " + servers;
    const std::string over = "parameter server over " + t_.name() + ", " + servers;
    const std::string& reason = lent_.why().empty() ? o_.no_windows : lent_.why();
    const std::string why = reason.empty() ? "" : " (no windows: " + reason + ")";
    return over + (lent_.servers() > 0 ? ", windows to " + std::to_string(lent_.servers()) + " on this host" : "") +
           why;
  }
  [[nodiscard]] std::string rank_name(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < names_.size() ? names_[i] : "rank " + std::to_string(r);
  }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return o_.deadline; }

  Work all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const std::string& name) {
    return post({data, t, op == ReduceOp::max ? Operation::max : Operation::sum}, name, o_.deadline);
  }
  Work broadcast(std::span<std::byte> data, int root, const std::string& name) {
    return post({data, DType::u8, Operation::take, static_cast<std::uint32_t>(root)}, name, o_.deadline);
  }
  // As a sum in which each worker brings zeros for the others: what is gathered is small.
  Work all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const std::string& name) {
    if (all.size() != mine.size() * static_cast<std::size_t>(size()))
      fail<UsageError>(name, "room for " + std::to_string(size()) + " times " + std::to_string(mine.size()) + " bytes",
                       std::to_string(all.size()));
    if (!mine.empty()) {
      const std::size_t at = mine.size() * static_cast<std::size_t>(rank());
      std::memmove(all.data() + at, mine.data(), mine.size());
      std::memset(all.data(), 0, at);
      std::memset(all.data() + at + mine.size(), 0, all.size() - at - mine.size());
    }
    return post({all, DType::u8, Operation::sum}, name, o_.deadline);
  }
  void barrier(std::chrono::milliseconds deadline) {
    std::byte one{1};
    post({std::span(&one, 1), DType::u8, Operation::max}, "barrier", deadline).wait();
  }
  // Sums a piece of a step, which frames and the servers' messages name. kept: what two_bit::pack() keeps back of all
  // but the first `plain` bytes, where gradients travel in two bits; empty: they do not.
  Work reduce(DType t, std::span<std::byte> data, std::uint64_t key, std::uint64_t step, std::uint32_t bucket,
              const std::string& name, std::span<float> kept = {}, std::size_t plain = 0) {
    Request r{data, t, Operation::sum, 0, key, step, bucket};
    compress(r, kept, plain);
    return post(r, name, o_.deadline);
  }

  // ---- of servers that own weights ----
  // What is at `base`, in bytes, of an arena (frames.hpp): gradients are applied to the weights there, which come back;
  // or it is fetched; or stored. `where` says who has what, and outlives the work.
  Work apply(DType t, std::span<const std::byte> gradients, std::span<std::byte> weights_there, std::uint64_t base,
             std::span<const ServerRange> where, std::uint64_t step, std::uint32_t bucket, const std::string& name,
             std::span<float> kept = {}) {
    Request r;
    r.data = unsafe_writable(gradients);
    r.answer = weights_there;
    r.dtype = t;
    r.operation = Operation::apply;
    r.root = arena::weights;
    r.step = step;
    r.bucket = bucket;
    r.base = base;
    r.where = where;
    compress(r, kept, 0);
    return post(r, name, o_.deadline);
  }
  Work fetch(DType t, std::span<std::byte> to, std::uint32_t from, std::span<const ServerRange> where,
             const std::string& name) {
    Request r;
    r.data = to;
    r.dtype = t;
    r.operation = Operation::fetch;
    r.root = from;
    r.where = where;
    return post(r, name, o_.deadline);
  }
  Work store(DType t, std::span<const std::byte> data, std::uint32_t to, std::span<const ServerRange> where,
             const std::string& name) {
    Request r;
    r.data = unsafe_writable(data);
    r.dtype = t;
    r.operation = Operation::store;
    r.root = to;
    r.where = where;
    return post(r, name, o_.deadline);
  }
  // Steps of all workers that the servers have applied, as far as they have said.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_acquire); }

  void interrupt() noexcept {
    gave_up_ = true;
    t_.wake();
  }
  void abort(const std::string& reason, ExitCode) noexcept {
    try {
      const std::lock_guard lock(reason_mutex_);
      if (reason_.empty()) reason_ = reason;
    } catch (...) {  // without its reason, then
    }
    interrupt();
    // So that it is on its way before the process ends.
    for (int i = 0; i < 1000 && !told_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Read where it lies by servers of this host, and sent without a copy to others.
  std::span<std::byte> allocate(std::size_t bytes) {
    const std::size_t before = lent_.servers();
    const LentWindow* const w = lent_.lend(bytes, lending());
    if (lent_.servers() < before)
      std::fprintf(stderr, "tutti: rank %d: gradients travel over sockets: %s\n", o_.rank, lent_.why().c_str());
    if (w != nullptr) {
      const LentWindow* const narrow = o_.bf16_wire ? lent_.lend((bytes + 1) / 2, lending()) : nullptr;
      if (narrow != nullptr) lent_.pair(*w, *narrow);
      return w->memory->bytes().first(bytes);
    }
    own_.emplace_back(host_memory_, bytes);
    return {static_cast<std::byte*>(own_.back().data()), bytes};
  }

 private:
  using Message = typename T::Message;
  using Job = Operations::Job;
  static constexpr std::chrono::seconds grace{5};
  static constexpr std::chrono::milliseconds longest_wait{1000};

  // Nothing is written to it.
  static std::span<std::byte> unsafe_writable(std::span<const std::byte> s) {
    return {const_cast<std::byte*>(s.data()), s.size()};
  }
  void compress(Request& r, std::span<float> kept, std::size_t plain) const {
    if (kept.empty()) return;
    if (r.dtype != DType::f32 || kept.size() * sizeof(float) + plain != r.data.size())
      fail<UsageError>("gradient compression", "gradients of f32, and room for what is kept back of them",
                       std::string(name_of(r.dtype)));
    r.threshold = o_.threshold;
    r.kept = kept;
    r.plain = plain;
  }
  Work post(Request r, const std::string& name, std::chrono::milliseconds deadline) {
    if (r.data.empty()) return {};
    r.lent = may_lie_in_window(r.operation) ? lent_.find(r.data, r.place) : nullptr;
    r.stays = r.lent != nullptr;
    for (const Buffer& b : own_) {
      const auto* begin = static_cast<const std::byte*>(b.data());
      r.stays = r.stays || (r.data.data() >= begin && r.data.data() + r.data.size() <= begin + b.bytes());
    }
    return operations_.post(r, name, deadline, [this] { t_.wake(); });
  }

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
  [[nodiscard]] static std::string text_of(std::span<const std::byte> data) {
    return printable({reinterpret_cast<const char*>(data.data()), data.size()});
  }

  void end(bool failed) noexcept {
    if (failed)
      interrupt();
    else
      leaving_ = true;
    t_.wake();
    thread_.join();
    if (operations_.failed()) lent_.abandon();
  }
  // Brings each server its part, and waits until their answers lie in its place.
  auto lending() {
    return [this](std::span<std::byte> records, std::span<const ServerRange> where) {
      Request r;
      r.data = records;
      r.operation = Operation::lend;
      r.where = where;
      post(r, "windows", o_.deadline).wait();
    };
  }

  [[nodiscard]] std::string why_interrupted() const {
    const std::string why = o_.flag != nullptr ? o_.flag->why() : "";
    return why.empty() ? "this rank gave up" : why;
  }

  // ---- before the thread ----
  void meet() {
    const auto until = std::chrono::steady_clock::now() + o_.patience;
    std::vector<bool> there(static_cast<std::size_t>(o_.servers));
    for (int s = 0; s < o_.servers; ++s)
      if (!greet(s)) no_server(s, "it is gone");
    while (std::find(there.begin(), there.end(), false) != there.end()) {
      if (std::chrono::steady_clock::now() >= until) {
        std::string missing;
        for (int s = 0; s < o_.servers; ++s)
          if (!there[static_cast<std::size_t>(s)]) missing += (missing.empty() ? "" : ", ") + server_name(s);
        fail<CommunicationError>("parameter server",
                                 "all servers within " + std::to_string(o_.patience.count()) + " ms",
                                 "no welcome of " + missing, "look at what these do, and whether they are reached");
      }
      const auto e = t_.receive(until);
      if (gave_up_) fail<CommunicationError>("parameter server", "all servers", why_interrupted());
      if (e.what == Event<Message>::What::lost) no_server(e.peer, e.why);
      if (e.what != Event<Message>::What::message) continue;
      std::string_view why;
      const auto f = decode(e.message.head(), e.message.data().size(), why);
      if (!f || f->session != session_ || e.peer < 0 || e.peer >= o_.servers) continue;
      if (f->kind == FrameKind::refuse) no_server(e.peer, "it refuses: " + text_of(e.message.data()));
      if (f->kind == FrameKind::give_up) std::rethrow_exception(given_up(nullptr, e.message.data()));
      if (f->kind != FrameKind::welcome) continue;
      there[static_cast<std::size_t>(e.peer)] = true;
      if (names_.empty()) read_names(e.message.data());
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
    fail<CommunicationError>("parameter server", "to be let in as rank " + std::to_string(o_.rank),
                             server_name(s) + ": " + why);
  }
  void read_names(std::span<const std::byte> data) {
    std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    while (!text.empty() && names_.size() < static_cast<std::size_t>(o_.workers)) {
      const std::size_t end = text.find('\0');
      names_.push_back(printable(text.substr(0, end)));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }

  // ---- the thread ----
  void serve() noexcept {
    std::exception_ptr error;
    try {
      while (!over()) {
        begin_new();
        send_parts();
        const auto e = t_.receive(std::chrono::steady_clock::now() + (away_.any() ? away_.look_every : longest_wait));
        if (gave_up_) continue;
        if (e.what == Event<Message>::What::message) take(e);
        if (e.what == Event<Message>::What::nothing && unreached_ >= 0) lose(unreached_, "");
        if (e.what == Event<Message>::What::lost) lose(e.peer, ": " + e.why);
        look_for_servers();
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (error) operations_.fail_all(running_, error);
    running_.clear();
    try {
      if (error) note_reason(error);
      farewell(error != nullptr);
    } catch (...) {  // the servers learn of it by the connection's end
    }
    told_ = true;
  }
  void lose(std::int64_t s, const std::string& why) {
    unreached_ = -1;
    if (!o_.servers_return) fail<CommunicationError>(first_name(), "all servers", server_name(s) + " is gone" + why);
    away_.lose(s);
  }
  // Greets those that are there again.
  void look_for_servers() {
    if constexpr (Reopening<T>)
      for (int s = 0; s < o_.servers; ++s)
        if (away_.to_be_looked_for(s) && t_.reopen(s) && greet(s)) away_.greeted(s);
    if (const auto late = away_.longer_than(o_.deadline))
      fail<CommunicationError>(
          first_name(),
          server_name(*late) + " to be back within " + std::to_string(o_.deadline.count()) + " ms of its end",
          "nothing from it");
  }
  // It has let this worker in again: what it has not answered is sent once more.
  void resume_with(std::int64_t s) {
    away_.back(s);
    unanswered_[static_cast<std::size_t>(s)] = 0;
    for (const auto& job : running_)
      for (auto& p : job->parts)
        if (p.server == s && !p.answered) p.sent = false;
  }
  // Whether the thread has nothing more to do. Throws where this rank gave up.
  bool over() {
    if (gave_up_) {
      operations_.take(running_);
      fail<CommunicationError>(first_name(), "all ranks", why_interrupted());
    }
    if (!leaving_) return false;
    operations_.take(running_);
    if (running_.empty()) return true;
    start_taken();
    return false;
  }
  [[nodiscard]] std::string first_name() const { return running_.empty() ? "parameter server" : running_[0]->name_; }

  void begin_new() {
    operations_.take(running_);
    start_taken();
  }
  void start_taken() {
    for (; begun_ < running_.size(); ++begun_) {
      Job& job = *running_[begun_];
      job.round = job.request.operation == Operation::lend ? first_loan | loans_++ : rounds_++;
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
  // In the order of the operations, as far as the servers' memory allows.
  void send_parts() {
    for (const auto& job : running_)
      for (std::size_t i = 0; i < job->parts.size(); ++i) {
        auto& p = job->parts[i];
        if (p.sent || away_.is(p.server)) continue;
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
    Frame f = frame(FrameKind::push);
    f.operation = r.operation;
    f.dtype = r.dtype;
    f.root = r.root;
    f.bucket = r.bucket;
    f.bytes = p.bytes;
    f.patience = static_cast<std::uint32_t>(std::min<std::int64_t>(job.deadline.count(), 0xffffffff));
    f.step = r.step;
    f.round = job.round;
    f.done = done();
    f.offset = p.offset;
    if (lies_with(r, p.server)) {
      f.window = r.lent->number;
      f.place = r.place + (p.offset - r.base);
    }
    const bool brings =
        f.window == 0 && (r.operation == Operation::take ? r.root == f.worker : r.operation != Operation::fetch);
    f.packed = p.packed_bytes > 0;
    const auto data = f.packed ? std::span(job.packed).subspan(p.packed_at, p.packed_bytes)
                      : brings ? r.data.subspan(p.offset - r.base, p.bytes)
                               : std::span<std::byte>();
    // Where it is gone, why has come already or comes now.
    const bool stays = f.packed || (brings && r.stays);
    if (!t_.send(p.server, encode(f), data, stays ? &job.under_way[i] : nullptr)) unreached_ = p.server;
  }

  // All rounds below are over here.
  [[nodiscard]] std::uint64_t done() const noexcept {
    for (const auto& job : running_)
      if (job->request.operation != Operation::lend) return job->round;
    return rounds_;
  }
  [[nodiscard]] static bool lies_with(const Request& r, int server) {
    return r.lent != nullptr && r.lent->servers[static_cast<std::size_t>(server)];
  }

  void take(const Event<Message>& e) {
    std::string_view why;
    const auto f = decode(e.message.head(), e.message.data().size(), why);
    // What is not for this process changes nothing.
    if (!f || f->session != session_ || f->generation != o_.generation) return;
    const auto found =
        std::find_if(running_.begin(), running_.end(), [&](const auto& job) { return job->round == f->round; });
    Job* const job = found == running_.end() ? nullptr : found->get();
    if (f->kind == FrameKind::give_up) std::rethrow_exception(given_up(job, e.message.data()));
    if (f->kind == FrameKind::welcome && away_.is(e.peer)) return resume_with(e.peer);
    if (f->kind == FrameKind::refuse && job != nullptr && job->request.root == arena::facts &&
        job->request.operation == Operation::store)
      fail<UsageError>("rank " + std::to_string(o_.rank), "the same program, options and data on all workers",
                       text_of(e.message.data()), "a worker of another kind is let in nowhere");
    if (f->kind == FrameKind::refuse)
      fail<CommunicationError>(job != nullptr ? job->name_ : first_name(), "to be answered",
                               server_name(e.peer) + " refuses: " + text_of(e.message.data()));
    if (f->kind != FrameKind::answer || job == nullptr) return;
    const auto part = std::find_if(job->parts.begin(), job->parts.end(),
                                   [&](const auto& p) { return p.offset == f->offset && p.server == e.peer; });
    if (part == job->parts.end() || part->bytes != f->bytes || !part->sent || part->answered) return;
    // The transport may still be reading what the answer is to lie on.
    const auto i = static_cast<std::size_t>(part - job->parts.begin());
    if (!job->under_way[i].wait(std::chrono::steady_clock::now() + grace))
      fail<CommunicationError>(job->name_, "what was answered to have been sent", "a send that goes on");
    const Request& r = job->request;
    const std::size_t at = f->offset - r.base;
    const bool lies_here = lies_with(r, part->server);
    if (lies_here != (f->window != 0)) return;
    const std::byte* const from = lies_here ? r.data.data() + at : e.message.data().data();
    std::byte* const to = (r.answer.empty() ? r.data : r.answer).data() + at;
    if (r.operation != Operation::store && to != from) std::memcpy(to, from, f->bytes);
    if (concerns_one_worker(r.operation) && f->done > progress_) progress_ = f->done;
    part->answered = true;
    unanswered_[static_cast<std::size_t>(e.peer)] -= f->bytes;
    if (++job->answered < job->parts.size()) return;
    if (!job->wide.empty()) parts::make_wide(*job);
    finish_done();
  }
  // Those at the front and behind it; the order of the list is that of the rounds.
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
  // text: what was expected and what came instead.
  [[nodiscard]] std::exception_ptr given_up(const Job* job, std::span<const std::byte> data) const {
    const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    const std::size_t end = text.find('\0');
    const std::string got = end == text.npos ? "another rank gave up" : std::string(text.substr(end + 1, 600));
    return std::make_exception_ptr(CommunicationError(
        error_message(job != nullptr ? job->name_ : first_name(), printable(text.substr(0, end)), printable_all(got))));
  }
  [[nodiscard]] static std::string printable_all(std::string_view text) {
    std::string out;
    for (; text.size() > 80; text.remove_prefix(80)) out += printable(text.substr(0, 80));
    return out + printable(text);
  }

  // Who hears of this rank's end hears why.
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
    // Until the servers know it, so that the end of the connection surprises nobody.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (int heard = away_.count(); heard < o_.servers && std::chrono::steady_clock::now() < until;) {
      const auto e = t_.receive(until);
      std::string_view why;
      if (e.what == Event<Message>::What::lost) ++heard;
      if (e.what != Event<Message>::What::message) continue;
      const auto f = decode(e.message.head(), e.message.data().size(), why);
      heard += f && f->kind == FrameKind::goodbye && f->session == session_;
    }
  }

  WorkerOptions o_;
  int exceptions_ = std::uncaught_exceptions();
  std::uint64_t session_ = 0;
  std::vector<std::string> names_;
  HostMemory host_memory_;
  std::vector<Buffer> own_;
  LentWindows lent_;
  Operations operations_;
  // Of the thread: what is under way, oldest first; of these so many have their parts.
  std::vector<std::shared_ptr<Job>> running_;
  std::size_t begun_ = 0;
  std::uint64_t rounds_ = 1, loans_ = 0;
  // Loans are this worker's alone, so they count for themselves.
  static constexpr std::uint64_t first_loan = std::uint64_t{1} << 63;
  AwayServers away_;                     // those that are waited for
  std::int64_t unreached_ = -1;          // a server that nothing can be sent to
  std::vector<std::size_t> unanswered_;  // bytes, of each server
  std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<bool> gave_up_{false}, leaving_{false}, told_{false};
  std::unique_ptr<T> transport_;  // the first to go: it reads what lies above
  T& t_;
  std::optional<InterruptWatch> watch_;  // goes before what it wakes
  std::thread thread_;
};

}  // namespace tutti::ps
