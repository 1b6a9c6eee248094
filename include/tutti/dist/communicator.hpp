// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>

#include <tutti/dist/combine.hpp>
#include <tutti/dist/work.hpp>

namespace tutti {

// The ranks of a job and their collective operations: MPI, NCCL, Gloo, or the threads of one process. Every rank makes
// the same calls in the same order. An operation may run while the caller goes on; its data belongs to it until its
// Work is done. `after`: an event of the backend's stream that the data must wait for; null where the data is the
// host's. Errors are CommunicationErrors, thrown by the call or by waiting for its Work.
template <class C>
concept Communicator = requires(C& c, const C& cc, DType t, std::span<std::byte> data, std::span<const std::byte> mine,
                                Combine op, void* after, int root, const std::string& name,
                                std::chrono::milliseconds deadline, std::size_t bytes, ExitCode code) {
  { cc.rank() } -> std::same_as<int>;
  { cc.size() } -> std::same_as<int>;
  { cc.name() } -> std::convertible_to<std::string>;
  // What to call a rank in a message: its number and its host.
  { cc.rank_name(root) } -> std::convertible_to<std::string>;
  // In place.
  { c.all_reduce(t, data, op, after, name) } -> std::same_as<Work>;
  { c.broadcast(data, root, after, name) } -> std::same_as<Work>;
  // data: size() times mine.size() bytes, in the order of the ranks.
  { c.all_gather(mine, data, after, name) } -> std::same_as<Work>;
  // In place: afterwards share_of(count, element size, size(), rank()) holds the combined values; what the rest
  // holds is not said.
  { c.reduce_scatter(t, data, op, after, name) } -> std::same_as<Work>;
  c.barrier(deadline);
  // Ends all ranks with this reason and, where they are processes, this exit code, as far as they can be reached. Does
  // not throw; may not return.
  c.abort(name, code);
  // Memory that the operations work on without copying it, zero at first, alive as long as the communicator; or an
  // empty span: there is none. A collective call.
  { c.allocate(bytes) } -> std::same_as<std::span<std::byte>>;
};

}  // namespace tutti
