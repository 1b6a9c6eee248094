// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/backends/mpi/options.hpp>
#include <tutti/backends/mpi/types.hpp>
#include <tutti/backends/mpi/waiter.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti {

// Collective operations of one communicator through MPI's non-blocking calls, in pieces that MPI can count and in the
// type that was chosen for the wire.
class MpiWire {
 public:
  MpiWire(const MpiOptions& options, MpiWaiter& waiter)
      : wire_(options.wire), piece_(std::max<std::size_t>(options.piece_bytes / 64 * 64, 64)), waiter_(waiter) {}
  void release() noexcept { operations_.release(); }

  void all_reduce(MPI_Comm comm, DType t, std::span<std::byte> data, ReduceOp op, Deadline deadline,
                  std::string_view what) {
    const DType w = on_wire(t, op);
    meet(comm, data.size(), deadline, what);
    for (std::size_t at = 0; at < data.size(); at += w == t ? piece_ : converted_piece()) {
      const auto piece = data.subspan(at, std::min(w == t ? piece_ : converted_piece(), data.size() - at));
      const std::size_t n = piece.size() / size_of(t);
      if (w == t) {
        reduce(comm, t, piece.data(), n, op, deadline, what);
      } else if (w == DType::bf16) {
        converted<float, bf16>(comm, w, piece, n, op, deadline, what);
      } else {
        converted<bf16, float>(comm, w, piece, n, op, deadline, what);
      }
    }
  }

  void broadcast(MPI_Comm comm, std::span<std::byte> data, int root, Deadline deadline, std::string_view what) {
    meet(comm, data.size(), deadline, what);
    for (std::size_t at = 0; at < data.size(); at += piece_) {
      const std::size_t n = std::min(piece_, data.size() - at);
      MPI_Request r = MPI_REQUEST_NULL;
      mpi_check(MPI_Ibcast(data.data() + at, static_cast<int>(n), MPI_BYTE, root, comm, &r), "MPI_Ibcast", what);
      waiter_.wait(r, waits_for(n), deadline, what);
    }
  }

  void all_gather(MPI_Comm comm, std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline,
                  std::string_view what) {
    const std::size_t n = mine.size();
    if (n <= piece_) {
      meet(comm, n, deadline, what);
      MPI_Request r = MPI_REQUEST_NULL;
      const int count = static_cast<int>(n);
      mpi_check(MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm, &r), "MPI_Iallgather",
                what);
      waiter_.wait(r, waits_for(n), deadline, what);
      return;
    }
    int rank = 0;
    mpi_check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank", what);
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * n));
    for (std::size_t root = 0; root < all.size() / n; ++root)
      broadcast(comm, all.subspan(root * n, n), static_cast<int>(root), deadline, what);
  }

  void barrier(MPI_Comm comm, Deadline deadline, std::string_view what) {
    MPI_Request r = MPI_REQUEST_NULL;
    mpi_check(MPI_Ibarrier(comm, &r), "MPI_Ibarrier", what);
    waiter_.wait(r, MpiWaiter::For::ranks, deadline, what);
  }

 private:
  static constexpr std::size_t large = 64 << 10;

  // Ranks meet before a large message, so that waiting for a late one and moving bytes are two things: the one may be
  // looked at now and then, the other may not.
  void meet(MPI_Comm comm, std::size_t bytes, Deadline deadline, std::string_view what) {
    if (bytes > large) barrier(comm, deadline, what);
  }
  [[nodiscard]] static MpiWaiter::For waits_for(std::size_t bytes) noexcept {
    return bytes > large ? MpiWaiter::For::transfer : MpiWaiter::For::ranks;
  }

  // A converted message needs a buffer; this keeps it small.
  [[nodiscard]] std::size_t converted_piece() const noexcept { return std::min(piece_, std::size_t{32} << 20); }

  [[nodiscard]] DType on_wire(DType t, ReduceOp op) const noexcept {
    if (op == ReduceOp::sum && t == DType::f32 && wire_ == MpiOptions::Wire::bf16) return DType::bf16;
    if (op == ReduceOp::sum && t == DType::bf16 && wire_ == MpiOptions::Wire::f32) return DType::f32;
    return t;
  }

  void reduce(MPI_Comm comm, DType t, void* data, std::size_t n, ReduceOp op, Deadline deadline,
              std::string_view what) {
    MPI_Request r = MPI_REQUEST_NULL;
    mpi_check(MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(n), mpi_type(t), operations_(t, op), comm, &r),
              "MPI_Iallreduce", what);
    waiter_.wait(r, waits_for(n * size_of(t)), deadline, what);
  }

  template <class Mine, class Theirs>
  void converted(MPI_Comm comm, DType w, std::span<std::byte> data, std::size_t n, ReduceOp op, Deadline deadline,
                 std::string_view what) {
    if (buffer_.size() < n * sizeof(Theirs)) buffer_.resize(n * sizeof(Theirs));
    auto* const mine = reinterpret_cast<Mine*>(data.data());
    auto* const theirs = reinterpret_cast<Theirs*>(buffer_.data());
    for (std::size_t i = 0; i < n; ++i) theirs[i] = static_cast<Theirs>(static_cast<float>(mine[i]));
    reduce(comm, w, theirs, n, op, deadline, what);
    for (std::size_t i = 0; i < n; ++i) mine[i] = static_cast<Mine>(static_cast<float>(theirs[i]));
  }

  MpiOptions::Wire wire_;
  std::size_t piece_;
  MpiWaiter& waiter_;
  MpiOperations operations_;
  std::vector<std::byte> buffer_;
};

}  // namespace tutti
