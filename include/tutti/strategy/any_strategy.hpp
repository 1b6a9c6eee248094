// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Any strategy as a value, chosen at run time: the training code is compiled once for all of them.
class AnyStrategy {
 public:
  // Refers to a strategy, which must outlive it.
  template <DistributedStrategy S>
  [[nodiscard]] static AnyStrategy refer(S& strategy) {
    AnyStrategy any;
    any.held_ = std::make_unique<Held<S&>>(strategy);
    return any;
  }
  // Owns an S constructed from these arguments.
  template <DistributedStrategy S, class... A>
  [[nodiscard]] static AnyStrategy make(A&&... arguments) {
    AnyStrategy any;
    any.held_ = std::make_unique<Held<S>>(std::forward<A>(arguments)...);
    return any;
  }

  // The union of all strategies' traits. A function that the held strategy lacks has no effect.
  static constexpr StrategyTraits traits{.reads_device_memory = true,
                                         .follows_steps = true,
                                         .watches_ranks = true,
                                         .owns_weights = true,
                                         .changes_members = true};

  [[nodiscard]] Membership membership() const { return held_->membership(); }
  [[nodiscard]] int rank() const { return membership().rank; }
  [[nodiscard]] int size() const { return membership().size; }
  [[nodiscard]] std::string name() const { return held_->name(); }
  // Returns the traits of the held strategy.
  [[nodiscard]] StrategyTraits held_traits() const { return held_->traits(); }
  [[nodiscard]] bool reads_device_memory() const { return held_traits().reads_device_memory; }
  [[nodiscard]] bool owns_weights() const { return held_traits().owns_weights; }
  std::span<std::byte> allocate(std::size_t bytes) { return held_->allocate(bytes); }
  void attach(const ArenaLayout& layout, const JobFacts& f) { held_->attach(layout, f); }
  void synchronise(std::span<StateSpan> state) { held_->synchronise(state); }
  Work reduce(const Piece& piece) { return held_->reduce(piece); }
  // If the strategy does not watch ranks: the usual deadline, and a wait that only checks the time.
  [[nodiscard]] std::chrono::milliseconds deadline() const { return held_->deadline(); }
  void wait_until(const std::function<bool()>& done, const std::string& what) { held_->wait_until(done, what); }
  void begin_step(std::int64_t step, bool runs_ahead) { held_->begin_step(step, runs_ahead); }
  void settled() { held_->settled(); }
  // These functions are for a strategy that owns the weights. They throw UsageError for other strategies.
  Work exchange(const Push& push) { return held_->exchange(push); }
  void pull(std::span<StateSpan> state) { held_->pull(state); }
  [[nodiscard]] std::int64_t progress() const { return held_->progress(); }
  [[nodiscard]] std::int64_t others_at_work() { return held_->others_at_work(); }
  [[nodiscard]] bool came_late() const { return held_->came_late(); }
  // Returns null if the members do not change.
  [[nodiscard]] ElasticMembership* members() { return held_->members(); }
  void finish() { held_->finish(); }
  void sum(std::span<double> values) { held_->sum(values); }
  void abort(const std::string& reason, ExitCode code) noexcept { held_->abort(reason, code); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    [[nodiscard]] virtual Membership membership() const = 0;
    [[nodiscard]] virtual std::string name() const = 0;
    [[nodiscard]] virtual StrategyTraits traits() const = 0;
    virtual std::span<std::byte> allocate(std::size_t bytes) = 0;
    virtual void attach(const ArenaLayout& layout, const JobFacts& f) = 0;
    virtual void synchronise(std::span<StateSpan> state) = 0;
    virtual Work reduce(const Piece& piece) = 0;
    [[nodiscard]] virtual std::chrono::milliseconds deadline() const = 0;
    virtual void wait_until(const std::function<bool()>& done, const std::string& what) = 0;
    virtual void begin_step(std::int64_t step, bool runs_ahead) = 0;
    virtual void settled() = 0;
    virtual Work exchange(const Push& push) = 0;
    virtual void pull(std::span<StateSpan> state) = 0;
    [[nodiscard]] virtual std::int64_t progress() const = 0;
    [[nodiscard]] virtual std::int64_t others_at_work() = 0;
    [[nodiscard]] virtual bool came_late() const = 0;
    [[nodiscard]] virtual ElasticMembership* members() = 0;
    virtual void finish() = 0;
    virtual void sum(std::span<double> values) = 0;
    virtual void abort(const std::string& reason, ExitCode code) noexcept = 0;
  };
  template <class S>  // S or S&
  struct Held final : Interface {
    template <class... A>
    explicit Held(A&&... arguments) : s(std::forward<A>(arguments)...) {}
    using Strategy = std::remove_reference_t<S>;
    [[nodiscard]] Membership membership() const override { return s.membership(); }
    [[nodiscard]] std::string name() const override { return s.name(); }
    [[nodiscard]] StrategyTraits traits() const override {
      if constexpr (std::is_same_v<Strategy, AnyStrategy>)
        return s.held_traits();
      else
        return Strategy::traits;
    }
    std::span<std::byte> allocate(std::size_t bytes) override { return s.allocate(bytes); }
    void attach(const ArenaLayout& layout, const JobFacts& f) override { s.attach(layout, f); }
    void synchronise(std::span<StateSpan> state) override { s.synchronise(state); }
    Work reduce(const Piece& piece) override { return s.reduce(piece); }
    [[nodiscard]] std::chrono::milliseconds deadline() const override {
      if constexpr (Strategy::traits.watches_ranks)
        return s.deadline();
      else
        return usual_deadline;
    }
    void wait_until(const std::function<bool()>& done, const std::string& what) override {
      if constexpr (Strategy::traits.watches_ranks)
        s.wait_until(done, what);
      else
        poll(done, usual_deadline, what);
    }
    void begin_step(std::int64_t step, bool runs_ahead) override {
      if constexpr (Strategy::traits.follows_steps) s.begin_step(step, runs_ahead);
    }
    void settled() override {
      if constexpr (Strategy::traits.follows_steps) s.settled();
    }
    Work exchange(const Push& push) override {
      if constexpr (Strategy::traits.owns_weights)
        return s.exchange(push);
      else
        refuse(s.name());
    }
    void pull(std::span<StateSpan> state) override {
      if constexpr (Strategy::traits.owns_weights)
        s.pull(state);
      else
        refuse(s.name());
    }
    [[nodiscard]] std::int64_t others_at_work() override {
      if constexpr (Strategy::traits.owns_weights)
        return s.others_at_work();
      else
        refuse(s.name());
    }
    [[nodiscard]] bool came_late() const override {
      if constexpr (Strategy::traits.owns_weights)
        return s.came_late();
      else
        refuse(s.name());
    }
    [[nodiscard]] std::int64_t progress() const override {
      if constexpr (Strategy::traits.owns_weights)
        return s.progress();
      else
        refuse(s.name());
    }
    [[nodiscard]] ElasticMembership* members() override {
      if constexpr (Strategy::traits.changes_members)
        return s.members();
      else
        return nullptr;
    }
    void finish() override { s.finish(); }
    void sum(std::span<double> values) override { s.sum(values); }
    void abort(const std::string& reason, ExitCode code) noexcept override { s.abort(reason, code); }
    S s;
  };

  [[noreturn]] static void refuse(const std::string& name) {
    fail<UsageError>("strategy", "a strategy that owns the weights", {"'", name, "'"});
  }
  AnyStrategy() = default;
  std::unique_ptr<Interface> held_;
};

static_assert(DistributedStrategy<AnyStrategy>);

}  // namespace tutti
