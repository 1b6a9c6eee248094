// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include <tutti/backends/mpi/options.hpp>
#include <tutti/backends/mpi/ring.hpp>
#include <tutti/backends/mpi/types.hpp>
#include <tutti/backends/mpi/waiter.hpp>
#include <tutti/comm/wire_type.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti {

// Collective operations on a communicator, through MPI's non-blocking calls. Divides data into pieces that MPI can
// count, and converts it to the type for the wire. Large sums use a ring of messages in place of MPI's own operation.
class MpiWire {
 public:
  // comm: the communicator on which the waiter waits. The waiter must outlive this object.
  MpiWire(MPI_Comm comm, const MpiOptions& options, MpiWaiter& waiter)
      : comm_(comm),
        conversion_(options.wire),
        piece_(std::max<std::size_t>(options.piece_bytes / 64 * 64, 64)),
        waiter_(waiter),
        ring_(comm, options.ring_message_bytes, waiter) {}
  [[nodiscard]] WireType type() const noexcept { return conversion_.type(); }
  void release() noexcept { operations_.release(); }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    synchronise_if_large(data.size(), deadline, what);
    conversion_.run(t, op, data, piece_,
                    [&](DType w, std::span<std::byte> piece) { reduce(w, piece, op, deadline, what); });
  }

  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    synchronise_if_large(data.size(), deadline, what);
    for (std::size_t at = 0; at < data.size(); at += piece_) {
      const std::size_t n = std::min(piece_, data.size() - at);
      MPI_Request r = MPI_REQUEST_NULL;
      mpi_check(MPI_Ibcast(data.data() + at, static_cast<int>(n), MPI_BYTE, root, comm_, &r), "MPI_Ibcast", what);
      waiter_.wait(r, waits_for(n), deadline, what);
    }
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    const std::size_t n = mine.size();
    if (n <= piece_) {
      synchronise_if_large(n, deadline, what);
      MPI_Request r = MPI_REQUEST_NULL;
      const int count = static_cast<int>(n);
      mpi_check(MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_, &r), "MPI_Iallgather",
                what);
      waiter_.wait(r, waits_for(n), deadline, what);
      return;
    }
    int rank = 0;
    mpi_check(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank", what);
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * n));
    for (std::size_t root = 0; root < all.size() / n; ++root)
      broadcast(all.subspan(root * n, n), static_cast<int>(root), deadline, what);
  }

  void barrier(const Deadline& deadline, std::string_view what) { barrier(comm_, deadline, what); }
  // The same on another communicator with the same ranks.
  void barrier(MPI_Comm comm, const Deadline& deadline, std::string_view what) {
    MPI_Request r = MPI_REQUEST_NULL;
    mpi_check(MPI_Ibarrier(comm, &r), "MPI_Ibarrier", what);
    waiter_.wait(r, MpiWaiter::For::ranks, deadline, what);
  }

 private:
  static constexpr std::size_t large = 64 << 10;

  // Ranks synchronise before a large message. So a rank polls rarely while it waits for a late rank, and often only
  // during the transfer of bytes.
  void synchronise_if_large(std::size_t bytes, const Deadline& deadline, std::string_view what) {
    if (bytes > large) barrier(deadline, what);
  }
  [[nodiscard]] static MpiWaiter::For waits_for(std::size_t bytes) noexcept {
    return bytes > large ? MpiWaiter::For::transfer : MpiWaiter::For::ranks;
  }

  void reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    if (ring_.serves(data.size())) return ring_.all_reduce(t, data, op, deadline, what);
    MPI_Request r = MPI_REQUEST_NULL;
    mpi_check(MPI_Iallreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size() / size_of(t)), mpi_type(t),
                             operations_(t, op), comm_, &r),
              "MPI_Iallreduce", what);
    waiter_.wait(r, waits_for(data.size()), deadline, what);
  }

  MPI_Comm comm_;
  WireConversion conversion_;
  std::size_t piece_;
  MpiWaiter& waiter_;
  MpiOperations operations_;
  MpiRing ring_;
};

}  // namespace tutti
