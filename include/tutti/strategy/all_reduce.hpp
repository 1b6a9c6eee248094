// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/windows/host_window.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/state_replica.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Every rank has the whole model. Gradients are summed over all ranks, bucket by bucket, while the backward pass
// continues. Works over any communicator, which must outlive it.
template <Communicator C>
class AllReduce {
 public:
  explicit AllReduce(C& communicator) : c_(communicator) {}

  static constexpr StrategyTraits traits{
      .reads_device_memory = C::traits.reads_device_memory, .follows_steps = true, .watches_ranks = true};

  [[nodiscard]] Membership membership() const { return {rank(), size(), 0}; }
  [[nodiscard]] int rank() const { return c_.rank(); }
  [[nodiscard]] int size() const { return c_.size(); }
  [[nodiscard]] std::string name() const { return c_.name(); }
  [[nodiscard]] C& communicator() noexcept { return c_; }

  // Returns memory that the communicator sums without copying it, if it has such memory.
  std::span<std::byte> allocate(std::size_t bytes) { return c_.allocate(bytes); }

  // Shares memory of this process that outlives the communicator, for the same use as memory from allocate(). A null
  // window shares no memory.
  void share(const std::shared_ptr<HostWindow>& window) requires requires(C& c) { c.share(window); }
  { c_.share(window); }

  void attach(const ArenaLayout&, const JobFacts& facts) { require_agreement(c_, facts); }

  // Sets the rank that has the authoritative state; the default is 0.
  void set_authority(int rank) noexcept { authority_ = rank; }
  void synchronise(std::span<StateSpan> state) { (void)take_state(state, {}); }
  // As synchronise(), but returns whether this rank received any state. Ranks first exchange hashes, and then only the
  // bytes of pieces that differ on some rank. On one host no bytes are sent if the second copies are in windows. Each
  // of these copies must not change until this returns on all ranks.
  bool take_state(std::span<StateSpan> state, const StateReplica& own) {
    const auto n = static_cast<std::size_t>(size()), from = static_cast<std::size_t>(authority_);
    detail::StateRecords said(n, state.size());
    said.describe(own);
    std::vector<std::byte> room;
    for (std::size_t i = 0; i < state.size() && !own.lacks; ++i) {
      std::span<const std::byte> bytes = state[i].bytes;
      if constexpr (C::traits.reads_device_memory) bytes = c_.on_host(bytes, room);
      said.add_hash(i, JobFacts::hash_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    c_.all_gather(std::as_bytes(said.mine()), std::as_writable_bytes(said.all()), "state hashes").wait();
    // The pieces that some rank must receive: near: they are in windows; far: they are sent.
    std::vector<std::size_t> near, far, mine;
    bool takes = false;
    for (std::size_t i = 0; i < state.size(); ++i) {
      bool differs = false;
      for (std::size_t r = 0; r < n; ++r) differs = differs || said.differs(r, from, i);
      if (!differs) continue;
      const bool in_window = said.in_windows() && detail::place_in(own, state[i]) != detail::elsewhere;
      (in_window ? near : far).push_back(i);
      if (!said.differs(static_cast<std::size_t>(rank()), from, i)) continue;
      takes = true;
      if (in_window) mine.push_back(i);
    }
    bool has_mine = true;
    if (!near.empty()) {
      has_mine = mine.empty() || detail::take_from_window(said.name_of(from), own, state, mine);
      // Each rank reports that it has read its pieces. No rank continues before all have.
      std::int32_t lacking = has_mine ? 0 : 1;
      c_.all_reduce(DType::i32, std::as_writable_bytes(std::span(&lacking, 1)), ReduceOp::max, "state in windows")
          .wait();
      if (lacking != 0) far.insert(far.begin(), near.begin(), near.end());
    }
    hand_out(state, far, [&](std::size_t i) {
      const bool read = has_mine && std::find(mine.begin(), mine.end(), i) != mine.end();
      return !read && said.differs(static_cast<std::size_t>(rank()), from, i);
    });
    return takes;
  }

  Work reduce(const Piece& piece) { return c_.all_reduce(piece.dtype, piece.bytes, ReduceOp::sum, begin(piece)); }
  // Call before the job's next step; steps count from 1, for messages and for the launcher. runs_ahead: a device runs
  // the step; finish() is called when the step has been started, and settled() when it has ended.
  void begin_step(std::int64_t step, bool runs_ahead) {
    step_ = step - 1;
    runs_ahead_ = runs_ahead;
  }
  void finish() {
    ++step_;
    if (runs_ahead_)
      report_.begin(static_cast<std::uint64_t>(step_), last_bucket_);
    else
      report_.end(static_cast<std::uint64_t>(step_), last_bucket_);
  }
  void settled() {
    if (runs_ahead_ && step_ > 0) report_.end(static_cast<std::uint64_t>(step_), last_bucket_);
  }

  void sum(std::span<double> values) {
    // An evaluation or a checkpoint may follow these metrics; it has no steps.
    report_.idle();
    c_.all_reduce(DType::f64, std::as_writable_bytes(values), ReduceOp::sum, "sum").wait();
  }

  // The communicator's deadline is also the strategy's.
  [[nodiscard]] std::chrono::milliseconds deadline() const { return c_.deadline(); }
  // Waits until done() returns true. Throws if the communicator watches ranks and a rank is lost.
  void wait_until(const std::function<bool()>& done, const std::string& what) {
    if constexpr (C::traits.watches_ranks)
      c_.wait_until(done, what);
    else
      poll(done, deadline(), what);
  }

  void abort(const std::string& reason, ExitCode code) noexcept { c_.abort(reason, code); }

 protected:
  // Tells the launcher which piece is about to be reduced; returns its name for messages.
  const std::string& begin(const Piece& piece) {
    // Integers would be sent unchanged, but a job that asks for fewer bytes expects to get them.
    if constexpr (requires { c_.wire(); })
      if (piece.dtype == DType::i32 && c_.wire() == WireType::bf16)
        fail<UsageError>("logical ranks", "sums that are sent as they are", "a strategy that sends them as bf16",
                         "leave out --comm-wire bf16");
    if (piece.kind == Piece::Kind::gradients) {
      last_bucket_ = static_cast<int>(piece.index);
      report_.begin(static_cast<std::uint64_t>(step_ + 1), last_bucket_);
    }
    return label(piece);
  }
  [[nodiscard]] std::int64_t coming_step() const noexcept { return step_ + 1; }

 private:
  // Starts to send the authority's pieces to the ranks that need them, all at once, and waits for the end.
  template <class Wants>
  void hand_out(std::span<StateSpan> state, std::span<const std::size_t> pieces, Wants&& wants) {
    std::vector<Work> under_way;
    under_way.reserve(pieces.size());
    std::exception_ptr error;
    for (const std::size_t i : pieces) {
      if constexpr (requires { c_.broadcast(state[i].bytes, authority_, state[i].name, true); })
        under_way.push_back(c_.broadcast(state[i].bytes, authority_, state[i].name, wants(i)));
      else
        under_way.push_back(c_.broadcast(state[i].bytes, authority_, state[i].name));
    }
    // After an error no operation may still write into the caller's memory.
    for (Work& w : under_way) {
      try {
        w.wait();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
  // Returns a piece's name for messages. The string is reused, so that a repeated step allocates no memory.
  const std::string& label(const Piece& p) {
    name_.assign("step ").append(std::to_string(step_ + 1));
    if (p.kind == Piece::Kind::gradients)
      name_.append(" bucket ").append(std::to_string(p.index));
    else
      name_.append(" statistics");
    return name_;
  }

  C& c_;
  int authority_ = 0;
  std::int64_t step_ = 0;  // the last finished step
  bool runs_ahead_ = false;
  int last_bucket_ = 0;
  ProgressReporter report_;  // tells the launcher this rank's progress
  std::string name_;
};

namespace detail {
template <class C>
struct CommunicatorHolder {
  template <class... A>
  explicit CommunicatorHolder(A&&... arguments) : held(std::forward<A>(arguments)...) {}
  C held;
};
}  // namespace detail

// AllReduce that owns its communicator, which is constructed from these arguments.
template <Communicator C>
class OwningAllReduce : private detail::CommunicatorHolder<C>, public AllReduce<C> {
 public:
  template <class... A>
  explicit OwningAllReduce(A&&... arguments)
      : detail::CommunicatorHolder<C>(std::forward<A>(arguments)...), AllReduce<C>(this->held) {}
};

}  // namespace tutti
