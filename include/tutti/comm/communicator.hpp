// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Lists what a communicator offers in addition to its operations. If a member is true, the communicator must have the
// function that its comment names. Otherwise it must not have it.
struct CommunicatorTraits {
  // Accepts data in a device's memory, and runs after the work already on the device's stream. The function is
  // on_host(data, room): it returns what the host can read, the data itself or a copy in `room`.
  bool reads_device_memory = false;
  // Notices lost ranks while a device works. The function is wait_until(done, what): it returns once done() is true.
  bool watches_ranks = false;
};

namespace detail {

template <class C>
concept HasOnHost = requires(C& c, std::span<const std::byte> data, std::vector<std::byte>& room) {
  { c.on_host(data, room) } -> std::same_as<std::span<const std::byte>>;
};
template <class C>
concept HasWaitUntil = requires(C& c, const std::function<bool()>& done, const std::string& what) {
  c.wait_until(done, what);
};
template <class C>
concept HasTraits = std::same_as<decltype(C::traits), const CommunicatorTraits>;
template <class C>
concept KeepsTraits = HasTraits<C> &&
    (C::traits.reads_device_memory == HasOnHost<C>)&&(C::traits.watches_ranks == HasWaitUntil<C>);

}  // namespace detail

// The ranks of a job and their collective operations: MPI, NCCL, Gloo, or the threads of one process. Every rank makes
// the same calls in the same order. An operation may run while the caller continues: the caller must not use its data
// until its Work is done. The call, or waiting for its Work, throws CommunicationError.
template <class C>
concept Communicator = requires(C& c, const C& cc, DType t, std::span<std::byte> data, std::span<const std::byte> mine,
                                ReduceOp op, int root, const std::string& name, std::chrono::milliseconds deadline,
                                std::size_t bytes, ExitCode code) {
  { cc.rank() } -> std::same_as<int>;
  { cc.size() } -> std::same_as<int>;
  { cc.name() } -> std::convertible_to<std::string>;
  // Returns the deadline of every wait, except that of a barrier.
  { cc.deadline() } -> std::same_as<std::chrono::milliseconds>;
  // Returns a rank's name for messages: its number and its host.
  { cc.rank_name(root) } -> std::convertible_to<std::string>;
  // Combines `data` of all ranks in place.
  { c.all_reduce(t, data, op, name) } -> std::same_as<Work>;
  { c.broadcast(data, root, name) } -> std::same_as<Work>;
  // data: receives size() times mine.size() bytes, in the order of the ranks.
  { c.all_gather(mine, data, name) } -> std::same_as<Work>;
  c.barrier(deadline);
  // Makes current and later waits throw CommunicationError, and notifies other ranks if possible. May be called from
  // any thread, any number of times. Frees no resources.
  { c.interrupt() }
  noexcept;
  // Ends all ranks that can be reached, with this reason and, if they are processes, this exit code. Does not throw;
  // may not return.
  c.abort(name, code);
  // Returns memory on which the operations work without a copy, or an empty span. The memory is initially zero, and
  // valid as long as the communicator. A collective call.
  { c.allocate(bytes) } -> std::same_as<std::span<std::byte>>;
  // It has a static constexpr CommunicatorTraits traits, and the functions that this promises.
  requires detail::KeepsTraits<C>;
};

}  // namespace tutti
