// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include <tutti/backends/make/elastic.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>
#if defined(TUTTI_HAS_NCCL) && defined(TUTTI_HAS_CUDA)
#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/backends/nccl/elastic.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/launch/launched_rendezvous.hpp>
#include <tutti/cluster/rendezvous/rendezvous.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/strategy/all_reduce.hpp>

namespace tutti::detail {

#ifdef TUTTI_HAS_MPI
// NCCL for ranks that mpirun started: they rendezvous over MPI, which also ends all of them if one fails.
struct MpiAndNccl {
  MpiAndNccl(const cuda::Device& device, const MpiOptions& options)
      : mpi(options),
        nccl(device, {.rank = mpi.rank(), .size = mpi.size(), .deadline = options.deadline},
             rendezvous_through(mpi, "NCCL's identity")) {}
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

// Returns the GPU on which NCCL sums.
inline const cuda::Device& device_of(const StrategyOptions& o) {
  auto* const backend = dynamic_cast<CudaBackend*>(o.backend);
  if (backend == nullptr)
    fail<UsageError>(o.where, "the cuda backend, because strategy nccl sums data in GPU memory",
                     o.backend == nullptr ? "no backend" : o.backend->name(),
                     "set StrategyOptions::backend to the result of make_backend(\"cuda\")");
  return backend->device();
}
inline AnyStrategy make_nccl(const StrategyOptions& o, const LaunchEnvironment& start) {
  const cuda::Device& device = device_of(o);
#ifdef TUTTI_HAS_MPI
  if (start.mpi) {
    MpiOptions m;
    m.shared_memory = false;  // MPI transfers only a few bytes, and only once
    m.deadline = o.deadline;
    return AnyStrategy::make<NcclUnderMpi>(device, m);
  }
#endif
  RendezvousOptions rendezvous = rendezvous_of(start);
  rendezvous.deadline = std::min(rendezvous.deadline, o.deadline);
  rendezvous.warn = o.warn;
  TcpRendezvous tcp(rendezvous);
  return AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
      device, NcclOptions{.rank = rendezvous.rank, .size = rendezvous.size, .deadline = o.deadline},
      Rendezvous(std::ref(tcp)));
}
inline AnyStrategy make_elastic_nccl(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<ElasticNccl>(channel_of(o), elastic_options(o, start),
                                        NcclGroupFactory{&device_of(o), {o.deadline}});
}

}  // namespace tutti::detail

#endif
