// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/mpi/hosts.hpp>
#include <tutti/backends/mpi/options.hpp>
#include <tutti/backends/mpi/session.hpp>
#include <tutti/backends/mpi/waiter.hpp>
#include <tutti/backends/mpi/wire.hpp>
#include <tutti/comm/host/host_group.hpp>
#include <tutti/comm/host/host_routes.hpp>
#include <tutti/comm/host/host_topology.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/windows/group_windows.hpp>

namespace tutti {

// The blocking operations of MpiCommunicator. Only one thread at a time may call them. Ranks of one host exchange data
// through shared memory and sum there in the order of the ranks. Between hosts, one rank of each host communicates
// through MPI, after all ranks of its host have arrived. Without shared memory, or if `hierarchical` is false, all
// ranks communicate through MPI.
class MpiEngine {
 public:
  // A collective call of all ranks.
  explicit MpiEngine(const MpiOptions& options, std::shared_ptr<MpiSession> session = MpiSession::open())
      : session_(std::move(session)),
        hosts_(MPI_COMM_WORLD, options.ranks_per_host),
        world_waiter_(hosts_.world, topology_.all_names(), *session_),
        world_(hosts_.world, options, world_waiter_),
        deadline_(options.deadline) {
    if (topology_.is_leader() && topology_.hosts() > 1) {
      leaders_waiter_.emplace(hosts_.leaders, topology_.leader_names(), *session_);
      leaders_.emplace(hosts_.leaders, options, *leaders_waiter_);
    }
    const bool shared = options.shared_memory && share_memory();
    routes_.emplace(topology_, Routes::choose(topology_, shared, options.hierarchical), group_ ? &*group_ : nullptr,
                    &world_, leaders_ ? &*leaders_ : nullptr);
  }
  // A collective call, unless an operation failed: the destructor then does not wait for other ranks.
  ~MpiEngine() {
    if (!session_->failed()) close();
    if (session_->failed())
      for (const GroupWindows& w : windows_) w.abandon();
  }
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  [[nodiscard]] int rank() const noexcept { return topology_.rank(); }
  [[nodiscard]] int size() const noexcept { return topology_.size(); }
  [[nodiscard]] std::string rank_name(int r) const { return topology_.name(r); }
  // Returns how the ranks communicate, for the output at the start.
  [[nodiscard]] std::string name() const { return routes_->name("mpi"); }
  [[nodiscard]] WireType wire() const noexcept { return world_.type(); }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    routes_->all_reduce(t, data, op, deadline, what);
  }
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    routes_->broadcast(data, root, deadline, what);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    routes_->all_gather(mine, all, deadline, what);
  }
  void barrier(const Deadline& deadline, std::string_view what) { routes_->barrier(deadline, what); }

  // Returns memory of this rank that all ranks of its host can access, initially zero. Returns an empty span if such
  // memory would be useless or does not fit. Collective: all ranks must call it with the same size.
  std::span<std::byte> allocate(std::size_t bytes, const Deadline& deadline) {
    if (!routes_->in_shared_memory() || bytes == 0) return {};
    // MPI's own waits keep a core busy and have no deadline, so all ranks arrive here before a rank calls MPI.
    barrier(deadline, "allocate");
    const GroupWindows w = make_windows(bytes, "allocate");
    if (!w.fits()) say_once(w, "gradients are copied into shared memory piece by piece");
    // Keeps the windows only if all ranks have them.
    if (!everyone(w.fits())) return {};
    windows_.push_back(w);
    if (group_) group_->map(w.bases(), w.bytes());
    return w.mine().first(bytes);
  }

  // Ends all ranks with this exit code. The first rank of each host that calls it prints its reason.
  void abort(const std::string& reason, ExitCode code) noexcept {
    if (size() == 1 || gave_up_.exchange(true)) return;
    const int first = group_ ? group_->aborted_by() : -1;
    give_up();
    if (first < 0 || first == topology_.local_rank()) {
      std::fprintf(stderr, "tutti: %s ends the job: %s\n", topology_.name(rank()).c_str(), reason.c_str());
      std::fflush(nullptr);
    } else {
      // Gives the rank that called it first time to end, so that the job gets that rank's exit code.
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }

  // Returns for how long after its deadline an operation may still look for missing ranks.
  [[nodiscard]] static std::chrono::milliseconds grace() noexcept {
    return Routes::after_leader + MpiWaiter::roll_call + std::chrono::seconds(4);
  }

  // Ends the waits of this rank and of the ranks of its host. Ranks of other hosts notice it at their deadline, or when
  // this process ends.
  void give_up() noexcept {
    session_->mark_failed();
    world_waiter_.stop();
    if (leaders_waiter_) leaders_waiter_->stop();
    if (group_) group_->abort();
  }

 private:
  using Routes = HostRoutes<MpiWire>;

  [[nodiscard]] bool everyone(bool mine) const {
    int all = mine ? 1 : 0;
    mpi_check(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, hosts_.world), "MPI_Allreduce");
    return all == 1;
  }

  // Returns true if the ranks of each host share memory. A rank that is alone on its host forms no group.
  bool share_memory() {
    const bool few = topology_.local_size() <= HostBarrierState::max_ranks;
    constexpr std::size_t line = 64, control = (sizeof(HostControl) + line - 1) / line * line;
    if (!everyone(few)) return false;
    const GroupWindows w = make_windows(control + HostGroup::scratch_bytes, "shared memory");
    if (!w.fits()) say_once(w, "this job runs without shared memory");
    if (!everyone(w.fits())) return false;
    if (topology_.local_size() == 1) return true;
    windows_.push_back(w);
    std::vector<std::byte*> scratch;
    for (std::byte* base : w.bases()) scratch.push_back(base + control);
    if (topology_.is_leader()) new (w.bases()[0]) HostControl;
    // The HostControl object must exist before a rank enters its barrier.
    mpi_check(MPI_Barrier(hosts_.host), "MPI_Barrier");
    auto* const shared = std::launder(reinterpret_cast<HostControl*>(w.bases()[0]));
    group_.emplace(*shared, std::move(scratch), topology_.local_rank(), false, topology_.local_names());
    return true;
  }

  // Creates the windows of the ranks of this host. Collective.
  [[nodiscard]] GroupWindows make_windows(std::size_t bytes, std::string_view what) const {
    return GroupWindows::make(ProcessWindows::of_process(), topology_.local_rank(), topology_.local_size(), bytes,
                              [&](std::span<const std::byte> mine, std::span<std::byte> all) {
                                const auto n = static_cast<int>(mine.size());
                                mpi_check(MPI_Allgather(mine.data(), n, MPI_BYTE, all.data(), n, MPI_BYTE, hosts_.host),
                                          "MPI_Allgather", what);
                              });
  }

  void say_once(const GroupWindows& w, const char* instead) const {
    if (topology_.is_leader())
      std::fprintf(stderr, "tutti: %s: %s; %s\n", topology_.host_name(rank()).c_str(), w.reason().c_str(), instead);
  }

  void close() noexcept {
    try {
      const Deadline deadline(deadline_);
      if (group_) group_->barrier(deadline, "end");
      world_.barrier(hosts_.closing, deadline, "end");
    } catch (const std::exception& e) {
      std::fprintf(stderr, "tutti: %s: %s\n", topology_.name(rank()).c_str(), e.what());
      session_->mark_failed();
      return;
    }
    group_.reset();
    if (leaders_) leaders_->release();
    if (leaders_waiter_) leaders_waiter_->release();
    world_.release();
    world_waiter_.release();
    hosts_.release();
  }

  std::shared_ptr<MpiSession> session_;
  MpiHosts hosts_;
  const HostTopology& topology_ = hosts_.topology;
  MpiWaiter world_waiter_;
  MpiWire world_;
  std::optional<MpiWaiter> leaders_waiter_;
  std::optional<MpiWire> leaders_;
  std::vector<GroupWindows> windows_;
  std::optional<HostGroup> group_;
  std::optional<Routes> routes_;
  std::chrono::milliseconds deadline_;
  std::atomic<bool> gave_up_{false};
};

}  // namespace tutti
