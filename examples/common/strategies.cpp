// SPDX-License-Identifier: MIT
#include "strategies.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
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

// The first of these variables that holds a number of at least `least`, else that.
int number_of(std::initializer_list<const char*> names, int least = 1) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) >= least) return std::atoi(value);
  return least;
}

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

bool started_by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr;
}
#endif

AnyStrategy make_nccl(const RunOptions& o, const cuda::Device& device) {
#ifdef TUTTI_HAS_MPI
  if (started_by_mpirun()) {
    MpiOptions m;
    m.shared_memory = false;  // MPI carries a few bytes, once
    m.deadline = deadline_of(o);
    return AnyStrategy::make<NcclUnderMpi>(device, m);
  }
#endif
  RendezvousOptions meeting = rendezvous_of(read_launch_environment());
  meeting.deadline = std::min(meeting.deadline, deadline_of(o));
  TcpRendezvous meet(meeting);
  return AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
      device, NcclOptions{meeting.rank, meeting.size, deadline_of(o)}, Rendezvous(std::ref(meet)));
}
#endif

}  // namespace

Launched launched() {
  return {number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "TUTTI_SIZE", "DMLC_NUM_WORKER"}),
          number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "TUTTI_LOCAL_SIZE"}),
          number_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "TUTTI_LOCAL_RANK"}, 0)};
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

AnyStrategy make_strategy(const RunOptions& o, [[maybe_unused]] const cuda::Device* device) {
#ifdef TUTTI_HAS_NCCL
  if (o.strategy == "nccl") {
    if (device == nullptr)
      fail<UsageError>("--backend", "cuda, because strategy nccl sums what lies in GPUs", o.backend);
    return make_nccl(o, *device);
  }
#endif
#ifdef TUTTI_HAS_MPI
  if (o.strategy == "mpi") {
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

}  // namespace tutti::examples
