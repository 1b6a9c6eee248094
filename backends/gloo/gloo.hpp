// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include <tutti/backends/gloo/engine.hpp>
#include <tutti/backends/gloo/options.hpp>
#include <tutti/comm/communicator.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/queued_communicator.hpp>

namespace tutti {

// A communicator of ranks that rendezvous through a store and communicate over Gloo. Construction and destruction are
// collective calls, unless an operation failed or the flag was raised. A group costs little: when the members change,
// processes leave it and form the next group with another prefix. Gloo has no authentication and no encryption. A
// process that uses it ignores SIGPIPE.
//
// interrupt() raises the flag. This wakes all waiting threads, even in the middle of a message or while the group is
// formed. Gloo may notice the death of a peer only at the deadline. A thread that learns of it earlier, for example
// from a ControlChannel, raises the flag with the name of the dead rank.
class GlooCommunicator : public QueuedCommunicator<GlooEngine> {
 public:
  // store and flag must outlive this object.
  GlooCommunicator(const GlooOptions& options, KeyStore& store, InterruptFlag& flag)
      : QueuedCommunicator(options.deadline, options, store, flag) {}
};

static_assert(Communicator<GlooCommunicator>);

}  // namespace tutti
