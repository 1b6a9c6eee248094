// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include <tutti/backends/mpi/engine.hpp>
#include <tutti/backends/mpi/options.hpp>
#include <tutti/backends/mpi/session.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/queued_communicator.hpp>

namespace tutti {

// The communicator of the ranks that mpirun started. Construction and destruction are collective calls. A rank that
// cannot continue calls abort(), or destroys the communicator while its exception propagates: then the destructor does
// not wait for other ranks. MPI cannot cancel pending operations. Therefore, after interrupt(), the data of operations
// in progress must stay valid, and the process ends without MPI_Finalize, as after a failure.
class MpiCommunicator : public QueuedCommunicator<MpiEngine> {
 public:
  explicit MpiCommunicator(const MpiOptions& options = {}, std::shared_ptr<MpiSession> session = MpiSession::open())
      : QueuedCommunicator(options.deadline, options, std::move(session)) {}
};

static_assert(Communicator<MpiCommunicator>);

}  // namespace tutti
