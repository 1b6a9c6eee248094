// SPDX-License-Identifier: MIT
#include "strategies.hpp"

#include <chrono>
#include <cstdlib>

#include <tutti/dist/solo.hpp>

#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/dist/all_reduce.hpp>
#endif

namespace tutti::examples {

namespace {

// The first of these variables that holds a number of at least `least`, else that.
int number_of(std::initializer_list<const char*> names, int least = 1) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && std::atoi(value) >= least) return std::atoi(value);
  return least;
}

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
  };
}

AnyStrategy make_strategy(const RunOptions& o) {
#ifdef TUTTI_HAS_MPI
  if (o.strategy == "mpi") {
    MpiOptions m;
    m.shared_memory = o.shared_memory;
    m.hierarchical = o.hierarchical;
    m.wire = o.comm_wire == "bf16" ? MpiOptions::Wire::bf16 : MpiOptions::Wire::same;
    m.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(o.comm_deadline * 1000));
    return AnyStrategy::make<OwningAllReduce<MpiCommunicator>>(m);
  }
#endif
  (void)o;
  return AnyStrategy::make<Solo>();
}

}  // namespace tutti::examples
