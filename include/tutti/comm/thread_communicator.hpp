// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/comm/host/host_group.hpp>
#include <tutti/comm/queued_communicator.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

// The shared state of a job's ranks that are threads of one process: for tests, and for programs that embed tutti. It
// must outlive their communicators.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : control_(std::make_unique<HostControl>()), size_(size) {
    if (size < 1 || size > HostBarrierState::max_ranks) fail<UsageError>("ThreadGroup", "1 to 256 ranks", size);
    scratch_.resize(static_cast<std::size_t>(size));
  }
  [[nodiscard]] int size() const noexcept { return size_; }

 private:
  friend class ThreadEngine;
  struct alignas(64) Scratch {
    std::byte bytes[HostGroup::scratch_bytes];
  };
  std::byte* scratch(std::size_t rank) { return scratch_[rank].bytes; }
  std::unique_ptr<HostControl> control_;
  std::vector<Scratch> scratch_;
  int size_;
};

// The blocking operations of ThreadCommunicator.
class ThreadEngine {
 public:
  ThreadEngine(ThreadGroup& group, int rank) : group_(*group.control_, scratch_of(group), rank, true) {}

  [[nodiscard]] int rank() const noexcept { return group_.rank(); }
  [[nodiscard]] int size() const noexcept { return group_.size(); }
  [[nodiscard]] std::string name() const { return "threads"; }
  [[nodiscard]] std::string rank_name(int r) const { return "rank " + std::to_string(r); }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    group_.all_reduce(t, data, op, deadline, what);
  }
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    group_.broadcast(data, root, deadline, what);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    group_.all_gather(mine, all, deadline, what);
  }
  void barrier(const Deadline& deadline, std::string_view what) { group_.barrier(deadline, what); }
  void abort(const std::string&, ExitCode) noexcept { group_.abort(); }
  void give_up() noexcept { group_.abort(); }
  // A barrier names the missing ranks at once. The grace is for a machine under load.
  [[nodiscard]] static std::chrono::milliseconds grace() noexcept { return std::chrono::seconds(5); }
  // Threads can access all memory, so no special memory is needed.
  std::span<std::byte> allocate(std::size_t, const Deadline&) { return {}; }

 private:
  static std::vector<std::byte*> scratch_of(ThreadGroup& group) {
    std::vector<std::byte*> list;
    for (std::size_t r = 0; r < static_cast<std::size_t>(group.size()); ++r) list.push_back(group.scratch(r));
    return list;
  }

  HostGroup group_;
};

// A rank that is a thread of this process.
class ThreadCommunicator : public QueuedCommunicator<ThreadEngine> {
 public:
  ThreadCommunicator(ThreadGroup& group, int rank, std::chrono::milliseconds deadline = usual_deadline)
      : QueuedCommunicator(deadline, group, rank) {}
};

static_assert(Communicator<ThreadCommunicator>);

}  // namespace tutti
