// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/comm/comm_queue.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/windows/host_window.hpp>
#include <tutti/core/span.hpp>

namespace tutti {

// Makes a Communicator from an engine with blocking operations: a queue and one thread. The engine has rank(), size(),
// name(), rank_name(r), abort(reason), allocate(bytes, deadline), barrier(deadline, what), and all_reduce, broadcast,
// all_gather as in HostGroup. Its operations run in one thread at a time, which may change.
// give_up(), which any thread may call, ends the engine's current and later waits and frees no resources. grace() is
// the time after an operation's deadline in which the engine may still find out which rank is missing. If the
// communicator is destroyed while an exception propagates, it does not wait for other ranks.
template <class Engine>
class QueuedCommunicator {
 public:
  static constexpr CommunicatorTraits traits{};

  template <class... A>
  explicit QueuedCommunicator(std::chrono::milliseconds deadline, A&&... of_engine)
      : engine_(std::forward<A>(of_engine)...),
        deadline_(deadline),
        runner_{engine_},
        queue_(runner_, deadline, engine_.grace()) {}
  ~QueuedCommunicator() {
    if (std::uncaught_exceptions() > exceptions_) interrupt();
  }
  QueuedCommunicator(const QueuedCommunicator&) = delete;
  QueuedCommunicator& operator=(const QueuedCommunicator&) = delete;

  [[nodiscard]] int rank() const { return engine_.rank(); }
  [[nodiscard]] int size() const { return engine_.size(); }
  [[nodiscard]] std::string name() const { return engine_.name(); }
  [[nodiscard]] std::string rank_name(int r) const { return engine_.rank_name(r); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  // Returns the type in which the engine sends sums between hosts, if it has a choice.
  [[nodiscard]] auto wire() const noexcept requires requires(const Engine& e) { e.wire(); }
  { return engine_.wire(); }
  [[nodiscard]] Engine& engine() noexcept { return engine_; }

  Work all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const std::string& name) {
    return queue_.post({Kind::all_reduce, t, op, 0, data, {}, 0}, name);
  }
  Work broadcast(std::span<std::byte> data, int root, const std::string& name) {
    return queue_.post({Kind::broadcast, DType::u8, ReduceOp::sum, root, data, {}, 0}, name);
  }
  Work all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const std::string& name) {
    if (all.size() != mine.size() * static_cast<std::size_t>(size()))
      fail<UsageError>(name, {"room for ", size(), " times ", mine.size(), " bytes"}, all.size());
    return queue_.post({Kind::all_gather, DType::u8, ReduceOp::sum, 0, all, mine, 0}, name);
  }
  void barrier(std::chrono::milliseconds deadline) {
    queue_.post({Kind::barrier, DType::u8, ReduceOp::sum, 0, {}, {}, 0}, "barrier", deadline).wait();
  }
  void interrupt() noexcept {
    queue_.give_up();
    engine_.give_up();
  }
  void abort(const std::string& reason, ExitCode code) noexcept { engine_.abort(reason, code); }
  std::span<std::byte> allocate(std::size_t bytes) {
    // In the queue, because it is a collective call that must keep the order of all calls.
    queue_.post({Kind::allocate, DType::u8, ReduceOp::sum, 0, {}, {}, bytes}, "allocate").wait();
    return runner_.allocated;
  }
  // Shares a window of this process that outlives the group, as in GlooEngine. Returns whether all ranks have such
  // windows.
  bool share(const std::shared_ptr<HostWindow>& window) requires
      requires(Engine& e, const std::shared_ptr<HostWindow>& w, const Deadline& d) {
    e.share(w, d);
  }
  {
    queue_.post({Kind::share, DType::u8, ReduceOp::sum, 0, {}, {}, 0, &window}, "windows").wait();
    return runner_.shared;
  }

 private:
  enum class Kind : std::uint8_t { all_reduce, broadcast, all_gather, barrier, allocate, share };
  struct Request {
    Kind kind = Kind::barrier;
    DType dtype = DType::u8;
    ReduceOp op = ReduceOp::sum;
    int root = 0;
    std::span<std::byte> data;
    std::span<const std::byte> mine;
    std::size_t bytes = 0;
    const std::shared_ptr<HostWindow>* window = nullptr;
  };
  struct Runner {
    Engine& engine;
    std::span<std::byte> allocated{};
    bool shared = false;
    void run(const Request& r, const std::string& what, const Deadline& deadline) {
      static constexpr const char* names[] = {"all_reduce", "broadcast", "all_gather", "barrier", "allocate", "share"};
      const Span span(Lane::communication, names[static_cast<std::size_t>(r.kind)], what,
                      static_cast<std::int64_t>(r.data.size()));
      switch (r.kind) {
        case Kind::all_reduce:
          return engine.all_reduce(r.dtype, r.data, r.op, deadline, what);
        case Kind::broadcast:
          return engine.broadcast(r.data, r.root, deadline, what);
        case Kind::all_gather:
          return engine.all_gather(r.mine, r.data, deadline, what);
        case Kind::barrier:
          return engine.barrier(deadline, what);
        case Kind::allocate:
          allocated = engine.allocate(r.bytes, deadline);
          return;
        case Kind::share:
          if constexpr (requires { engine.share(*r.window, deadline); }) shared = engine.share(*r.window, deadline);
      }
    }
  };

  int exceptions_ = std::uncaught_exceptions();
  Engine engine_;
  std::chrono::milliseconds deadline_;
  Runner runner_;
  CommQueue<Runner, Request> queue_;
};

}  // namespace tutti
