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

// Says what a communicator offers beyond its operations. What is named here it has, and the other way round.
struct CommunicatorTraits {
  // Takes data that lies in a device's memory, behind what the device's stream was given before, and has
  // on_host(data, room): what the host can read, the data itself or a copy in `room`.
  bool reads_device_memory = false;
  // Notices ranks that are gone while a device works, and has wait_until(done, what): returns when done()
  // says so.
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
// the same calls in the same order. An operation may run while the caller goes on; its data belongs to it until its
// Work is done. Errors are CommunicationErrors, thrown by the call or by waiting for its Work.
template <class C>
concept Communicator = requires(C& c, const C& cc, DType t, std::span<std::byte> data, std::span<const std::byte> mine,
                                ReduceOp op, int root, const std::string& name, std::chrono::milliseconds deadline,
                                std::size_t bytes, ExitCode code) {
  { cc.rank() } -> std::same_as<int>;
  { cc.size() } -> std::same_as<int>;
  { cc.name() } -> std::convertible_to<std::string>;
  // Every wait's, but a barrier's of its own.
  { cc.deadline() } -> std::same_as<std::chrono::milliseconds>;
  // What to call a rank in a message: its number and its host.
  { cc.rank_name(root) } -> std::convertible_to<std::string>;
  // In place.
  { c.all_reduce(t, data, op, name) } -> std::same_as<Work>;
  { c.broadcast(data, root, name) } -> std::same_as<Work>;
  // data: size() times mine.size() bytes, in the order of the ranks.
  { c.all_gather(mine, data, name) } -> std::same_as<Work>;
  c.barrier(deadline);
  // Makes what waits, and what comes later, throw CommunicationError; ranks that it can tell hear of it. From any
  // thread, as often as one likes; nothing is freed.
  { c.interrupt() }
  noexcept;
  // Ends all ranks with this reason and, where they are processes, this exit code, as far as they can be reached.
  // Does not throw; may not return.
  c.abort(name, code);
  // Memory that the operations work on without copying it, zero at first, alive as long as the communicator; or an
  // empty span: there is none. A collective call.
  { c.allocate(bytes) } -> std::same_as<std::span<std::byte>>;
  // static constexpr CommunicatorTraits traits, and the members that it promises.
  requires detail::KeepsTraits<C>;
};

}  // namespace tutti
