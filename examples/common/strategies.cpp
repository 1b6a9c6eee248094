// SPDX-License-Identifier: MIT
#include "strategies.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include <tutti/dist/solo.hpp>

#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/dist/all_reduce.hpp>
#endif
#ifdef TUTTI_HAS_NCCL
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/dist/all_reduce.hpp>
#include <tutti/dist/rendezvous.hpp>
#endif

namespace tutti::examples {

namespace {

[[maybe_unused]] std::chrono::milliseconds deadline_of(const RunOptions& o) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(o.comm_deadline * 1000));
}

#ifdef TUTTI_HAS_NCCL
#ifdef TUTTI_HAS_MPI
// Ranks that mpirun started meet over MPI, which also ends them all where one fails.
struct MpiAndNccl {
  MpiAndNccl(const cuda::Device& device, const MpiOptions& options)
      : mpi(options),
        nccl(device, {.rank = mpi.rank(), .size = mpi.size(), .deadline = options.deadline}, rendezvous_through(mpi)) {}
  MpiCommunicator mpi;
  NcclCommunicator nccl;
};
class NcclUnderMpi : private MpiAndNccl, public AllReduce<NcclCommunicator> {
 public:
  NcclUnderMpi(const cuda::Device& device, const MpiOptions& options)
      : MpiAndNccl(device, options), AllReduce<NcclCommunicator>(MpiAndNccl::nccl) {}
  void abort(const std::string& reason, ExitCode code) noexcept { mpi.abort(reason, code); }
};
#endif

AnyStrategy make_nccl(const RunOptions& o, const LaunchEnvironment& start, const cuda::Device& device) {
#ifdef TUTTI_HAS_MPI
  if (start.mpi) {
    MpiOptions m;
    m.shared_memory = false;  // MPI carries a few bytes, once
    m.deadline = deadline_of(o);
    return AnyStrategy::make<NcclUnderMpi>(device, m);
  }
#endif
  RendezvousOptions meeting = rendezvous_of(start);
  meeting.deadline = std::min(meeting.deadline, deadline_of(o));
  meeting.warn = [](const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); };
  TcpRendezvous meet(meeting);
  return AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
      device, NcclOptions{meeting.rank, meeting.size, deadline_of(o)}, Rendezvous(std::ref(meet)));
}
#endif

}  // namespace

LaunchEnvironment launched() {
  LaunchEnvironment e = read_launch_environment();
  require_worker(e);
  return e;
}

std::vector<std::string> built_strategies() {
  return {
      "solo",
#ifdef TUTTI_HAS_MPI
      "mpi",
#endif
#ifdef TUTTI_HAS_NCCL
      "nccl",
#endif
  };
}

namespace {

AnyStrategy make(const RunOptions& o, [[maybe_unused]] const LaunchEnvironment& start,
                 [[maybe_unused]] const cuda::Device* device) {
#ifdef TUTTI_HAS_NCCL
  if (o.strategy == "nccl") {
    if (device == nullptr)
      fail<UsageError>("--backend", "cuda, because strategy nccl sums what lies in GPUs", o.backend);
    return make_nccl(o, start, *device);
  }
#endif
#ifdef TUTTI_HAS_MPI
  if (o.strategy == "mpi") {
    // MPI would take each for a job of its own.
    if (!start.mpi) require_launched_size(start, o.strategy, 1);
    MpiOptions m;
    m.shared_memory = o.shared_memory;
    m.hierarchical = o.hierarchical;
    m.wire = o.comm_wire == "bf16" ? MpiOptions::Wire::bf16 : MpiOptions::Wire::same;
    m.deadline = deadline_of(o);
    return AnyStrategy::make<OwningAllReduce<MpiCommunicator>>(m);
  }
#endif
  (void)o;
  return AnyStrategy::make<Solo>();
}

}  // namespace

AnyStrategy make_strategy(const RunOptions& o, const LaunchEnvironment& start, const cuda::Device* device) {
  AnyStrategy strategy = make(o, start, device);
  require_launched_size(start, o.strategy, strategy.size());
  return strategy;
}

}  // namespace tutti::examples
