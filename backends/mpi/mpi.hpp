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

// The ranks that mpirun started. Making and destroying it are collective calls. A rank that cannot go on calls abort,
// or destroys it while its exception is on the way; then nothing waits for the other ranks. MPI cannot withdraw what is
// pending: after interrupt() the data of operations that were under way must stay where it is, and the process ends
// without MPI_Finalize, as after a failure.
class MpiCommunicator : public QueuedCommunicator<MpiEngine> {
 public:
  explicit MpiCommunicator(const MpiOptions& options = {}, std::shared_ptr<MpiSession> session = MpiSession::open())
      : QueuedCommunicator(options.deadline, options, std::move(session)) {}
};

static_assert(Communicator<MpiCommunicator>);

}  // namespace tutti
