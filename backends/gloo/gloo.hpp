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

// Ranks that meet through a store and speak over Gloo. Making and destroying it are collective calls, unless something
// failed or the flag was raised. A group is cheap: processes form one, leave it when their members change, and form the
// next under another prefix. Gloo authenticates nobody and encrypts nothing; a process that uses it ignores SIGPIPE.
//
// interrupt() raises the flag, which wakes who waits, in the middle of a message and while the group is formed. A
// peer's death may go unnoticed until the deadline; who hears of it, such as over a ControlChannel, raises the flag
// with the name of the dead.
class GlooCommunicator : public QueuedCommunicator<GlooEngine> {
 public:
  // store and flag outlive it.
  GlooCommunicator(const GlooOptions& options, KeyStore& store, InterruptFlag& flag)
      : QueuedCommunicator(options.deadline, options, store, flag) {}
};

static_assert(Communicator<GlooCommunicator>);

}  // namespace tutti
