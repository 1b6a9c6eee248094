// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>

// The groups of an elastic job whose members and servers are threads of this process.
namespace tutti::testing {

// Gives the members of a generation, which are threads of this process, their common group.
class ThreadRendezvous {
 public:
  [[nodiscard]] std::shared_ptr<ThreadGroup> group(std::uint64_t generation, std::size_t size) {
    const std::lock_guard lock(mutex_);
    auto& g = groups_[generation];
    if (!g) g = std::make_shared<ThreadGroup>(static_cast<int>(size));
    return g;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<ThreadGroup>> groups_;
};

struct HeldThreadGroup {
  std::shared_ptr<ThreadGroup> held_group;
};
class ThreadMember : private HeldThreadGroup, public OwningAllReduce<ThreadCommunicator> {
 public:
  using Base = OwningAllReduce<ThreadCommunicator>;
  // Called before each piece of each step, after the sum of each piece, and after each other sum.
  struct Calls {
    std::function<void()> before_piece, after_piece, after_sum;
  };
  ThreadMember(std::shared_ptr<ThreadGroup> group, int rank, InterruptFlag& flag, Calls calls)
      : HeldThreadGroup{std::move(group)}, Base(*held_group, rank), flag_(flag), calls_(std::move(calls)) {
    flag_.watch([this] { communicator().interrupt(); });
  }
  ~ThreadMember() { flag_.watch({}); }
  ThreadMember(const ThreadMember&) = delete;
  ThreadMember& operator=(const ThreadMember&) = delete;
  Work reduce(const Piece& piece) {
    try {
      calls_.before_piece();
    } catch (...) {
      flag_.raise("this rank ends");
      throw;
    }
    return Work(std::make_shared<Piecework>(Base::reduce(piece), calls_.after_piece));
  }
  void sum(std::span<double> values) {
    Base::sum(values);
    calls_.after_sum();
  }

 private:
  // The sum of a piece, with a call after it.
  class Piecework final : public Work::State {
   public:
    Piecework(Work work, std::function<void()> after) : work_(std::move(work)), after_(std::move(after)) {}
    [[nodiscard]] std::string name() const override { return work_.name(); }
    [[nodiscard]] bool done() const override { return work_.done(); }
    void wait_device() override { wait(); }
    void wait() override {
      work_.wait();
      if (const auto after = std::exchange(after_, nullptr)) after();
    }

   private:
    Work work_;
    std::function<void()> after_;
  };

  InterruptFlag& flag_;
  Calls calls_;
};
static_assert(DistributedStrategy<ThreadMember>);

struct ThreadGroupFactory {
  ThreadRendezvous* meeting;
  ThreadMember::Calls calls;
  [[nodiscard]] std::unique_ptr<ThreadMember> operator()(const Assignment& a, ControlChannel&,
                                                         InterruptFlag& flag) const {
    return std::make_unique<ThreadMember>(meeting->group(a.generation, a.workers.size()), a.rank, flag, calls);
  }
};
using ElasticThreads = Elastic<ThreadGroupFactory>;
static_assert(DistributedStrategy<ElasticThreads>);

// A member throws it to end as by a signal, without a message to the other members.
struct Killed : std::exception {};

// Gives the members and servers of a generation, which are threads of this process, their common network.
class ServerNetworks {
 public:
  [[nodiscard]] ps::ThreadNetwork& network(const Assignment& a) {
    const std::lock_guard lock(mutex_);
    auto& n = networks_[a.generation];
    if (!n) n = std::make_unique<ps::ThreadNetwork>(static_cast<int>(a.servers.size()));
    return *n;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<ps::ThreadNetwork>> networks_;
};
class ServedMember : public ParameterServer<ps::ThreadWorkerEnd> {
 public:
  using Base = ParameterServer<ps::ThreadWorkerEnd>;
  ServedMember(ps::ThreadNetwork& network, const ps::WorkerOptions& o, std::function<void()> before_piece)
      : Base(std::make_unique<ps::ThreadWorkerEnd>(network), o), before_piece_(std::move(before_piece)) {}
  Work reduce(const Piece& piece) {
    before_piece_();
    return Base::reduce(piece);
  }

 private:
  std::function<void()> before_piece_;
};
struct ServedGroupFactory {
  ServerNetworks* meeting;
  std::function<void()> before_piece;
  [[nodiscard]] std::unique_ptr<ServedMember> operator()(const Assignment& a, ControlChannel&,
                                                         InterruptFlag& flag) const {
    ps::WorkerOptions o;
    o.rank = a.rank;
    o.workers = static_cast<int>(a.workers.size());
    o.servers = static_cast<int>(a.servers.size());
    o.generation = a.generation;
    o.big_array = 64;
    o.flag = &flag;
    return std::make_unique<ServedMember>(meeting->network(a), o, before_piece);
  }
  // Members hand their state over in these windows.
  [[nodiscard]] static ProcessWindows* windows() { return &ProcessWindows::of_process(); }
  [[nodiscard]] static const std::vector<control::Member>& writers(const Assignment& a) { return a.servers; }
};
// The connections of a server that dies on request, whatever the server does at that time.
class MortalServerEnd : public ps::ThreadServerEnd {
 public:
  MortalServerEnd(ps::ThreadNetwork& network, int server, const std::atomic<bool>& dies)
      : ps::ThreadServerEnd(network, server), dies_(dies) {}
  ps::Event<Message> receive(ps::Moment deadline) {
    auto e = ps::ThreadServerEnd::receive(deadline);
    if (dies_) throw Killed{};
    return e;
  }

 private:
  const std::atomic<bool>& dies_;
};

}  // namespace tutti::testing
