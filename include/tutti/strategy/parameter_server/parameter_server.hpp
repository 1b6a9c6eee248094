// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/strategy/parameter_server/worker/worker.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Synchronous training by parameter servers: like AllReduce, but separate processes compute the sums. Every worker has
// the optimizer, momentum and schedule itself, so all optimizers and precisions work; the servers only know spans and
// types. A step waits for all workers. The sums have the bits of an all-reduce over threads.
template <ps::Transport T>
class ParameterServer : private ps::two_bit::Residuals,  // outlives the communicator: its thread changes it
                        private detail::CommunicatorHolder<ps::ServerCommunicator<T>>,
                        public AllReduce<ps::ServerCommunicator<T>> {
  using Communicator = ps::ServerCommunicator<T>;
  using Holder = detail::CommunicatorHolder<Communicator>;
  using Base = AllReduce<Communicator>;

 public:
  ParameterServer(std::unique_ptr<T> transport, const ps::WorkerOptions& options)
      : Holder(std::move(transport), options),
        Base(this->held),
        generation_(options.generation),
        two_bits_(options.threshold > 0) {}

  [[nodiscard]] Membership membership() const { return {Base::rank(), Base::size(), generation_}; }

  void attach(const ArenaLayout& layout, const JobFacts& facts) {
    Base::attach(layout, facts);
    ps::two_bit::Residuals::forget();  // the values are of the previous generation
  }

  Work reduce(const Piece& piece) {
    const bool gradients = piece.kind == Piece::Kind::gradients;
    const std::string& name = Base::begin(piece);
    // The keys of statistics are larger than those of all buckets.
    const std::uint64_t key = gradients ? piece.index + 1 : (std::uint64_t{1} << 32) + piece.index;
    return this->held.reduce(piece.dtype, piece.bytes, key, static_cast<std::uint64_t>(Base::coming_step()),
                             gradients ? static_cast<std::uint32_t>(piece.index) : ps::Frame::no_bucket, name,
                             gradients && two_bits_ ? residuals_of(piece) : std::span<float>(), piece.flags);
  }

 private:
  [[nodiscard]] std::span<float> residuals_of(const Piece& p) {
    return ps::two_bit::Residuals::of(p.index, (p.bytes.size() - p.flags) / sizeof(float));
  }

  std::uint64_t generation_;
  bool two_bits_;
};

}  // namespace tutti
