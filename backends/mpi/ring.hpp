// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include <tutti/backends/mpi/session.hpp>
#include <tutti/backends/mpi/waiter.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/ring_chunks.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti {

// All-reduce of large data over a ring of ranks (RingChunks), by messages of a part of a chunk each. MPI_Iallreduce
// sends and receives in turn in Open MPI 4.1, because it chooses a binomial tree for sums in place: each of N ranks
// would wait for 2 log2(N) transfers of all data, here for 2 (N - 1) / N.
class MpiRing {
 public:
  // A collective call. comm: the communicator on which the waiter waits. The waiter must outlive this object.
  MpiRing(MPI_Comm comm, std::size_t message_bytes, MpiWaiter& waiter)
      : comm_(comm), message_bytes_(std::max<std::size_t>(message_bytes / 64 * 64, 64)), waiter_(waiter) {
    mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(comm_, &ranks_), "MPI_Comm_size");
    receives_.fill(MPI_REQUEST_NULL);
    sends_.fill(MPI_REQUEST_NULL);
  }
  // After a failure MPI may still write to the buffers of messages that have not arrived, so they are not freed.
  ~MpiRing() {
    if (busy_) static_cast<void>(room_.release());
  }
  MpiRing(const MpiRing&) = delete;
  MpiRing& operator=(const MpiRing&) = delete;

  // Returns whether a ring is faster for so many bytes than a tree, which needs fewer messages.
  [[nodiscard]] bool serves(std::size_t bytes) const noexcept {
    constexpr std::size_t chunk = 16 << 10, least = 64 << 10;
    return ranks_ > 1 && bytes > std::max(least, chunk * static_cast<std::size_t>(ranks_));
  }

  // Combines in place. A collective call with the same type, size and operation on all ranks; throws a
  // CommunicationError if a neighbour has another size.
  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    data_ = data;
    type_ = t;
    op_ = op;
    unit_ = size_of(t);
    chunks_ = RingChunks(rank_, ranks_, data.size() / unit_, unit_);
    part_ = message_bytes_ / unit_;
    parts_ = (chunks_.largest() + part_ - 1) / part_;
    all_ = chunks_.steps() * parts_;
    awaited_ = received_ = begun_ = sent_ = 0;
    if (!room_) room_ = std::make_unique<std::byte[]>(window * message_bytes_);
    busy_ = true;
    while (received_ < all_ || sent_ < all_)
      waiter_.wait_for([&] { return advance(what); }, MpiWaiter::For::transfer, deadline, what);
    busy_ = false;
  }

 private:
  static constexpr std::size_t window = 4;  // messages in each direction that are under way at once
  static constexpr int tag = 1;
  static constexpr std::string_view same_operation = "the same operation on all ranks";

  // Message m of a rank is a part of the chunk of step m / parts_.
  [[nodiscard]] std::span<std::byte> part_of(const RingChunks::Chunk& c, std::size_t m) const {
    const std::size_t begin = std::min(c.size, m % parts_ * part_), end = std::min(c.size, begin + part_);
    return data_.subspan((c.begin + begin) * unit_, (end - begin) * unit_);
  }
  [[nodiscard]] std::span<std::byte> received(std::size_t m) const { return part_of(chunks_.received(m / parts_), m); }
  [[nodiscard]] bool adds(std::size_t m) const { return m / parts_ < chunks_.adding_steps(); }
  // Returns whether message m can be received: sums replace values that must have been sent before.
  [[nodiscard]] bool free_for(std::size_t m) const { return adds(m) || sent_ > m - chunks_.adding_steps() * parts_; }

  // Begins and ends messages, in order. Returns whether one has ended.
  bool advance(std::string_view what) {
    for (; awaited_ < std::min(all_, received_ + window) && free_for(awaited_); ++awaited_) {
      std::byte* const to =
          adds(awaited_) ? room_.get() + awaited_ % window * message_bytes_ : received(awaited_).data();
      receive(to, received(awaited_).size(), receives_[awaited_ % window], what);
    }
    // What was received in one step is sent in the next one.
    for (; begun_ < std::min({all_, sent_ + window, received_ + parts_}); ++begun_)
      send(part_of(chunks_.sent(begun_ / parts_), begun_), sends_[begun_ % window], what);
    test_receives(what);
    test_sends(what);
    const std::size_t before = received_ + sent_;
    for (; received_ < awaited_ && receives_[received_ % window] == MPI_REQUEST_NULL; ++received_)
      if (adds(received_)) add(received_);
    while (sent_ < begun_ && sends_[sent_ % window] == MPI_REQUEST_NULL) ++sent_;
    return received_ + sent_ > before;
  }
  // An empty part is no message.
  void receive(std::byte* to, std::size_t bytes, MPI_Request& r, std::string_view what) const {
    if (bytes == 0) return;
    const int from = (rank_ + 1) % ranks_;
    mpi_check(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &r), "MPI_Irecv", what);
  }
  void send(std::span<const std::byte> bytes, MPI_Request& r, std::string_view what) const {
    if (bytes.empty()) return;
    const int to = (rank_ + ranks_ - 1) % ranks_;
    mpi_check(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, comm_, &r), "MPI_Isend", what);
  }
  void test_receives(std::string_view what) {
    std::array<int, window> ended{};
    std::array<MPI_Status, window> statuses{};
    const int n = test_some(receives_, ended, statuses, what);
    for (int i = 0; i < n; ++i) {
      // Of the messages under way, the one in this slot.
      const std::size_t slot = static_cast<std::size_t>(ended[static_cast<std::size_t>(i)]);
      const std::size_t m = received_ + (slot + window - received_ % window) % window;
      int bytes = 0;
      mpi_check(MPI_Get_count(&statuses[static_cast<std::size_t>(i)], MPI_BYTE, &bytes), "MPI_Get_count", what);
      if (static_cast<std::size_t>(bytes) != received(m).size())
        fail<CommunicationError>(what, same_operation,
                                 {"a message of ", bytes, " bytes in place of ", received(m).size()});
    }
  }
  void test_sends(std::string_view what) {
    std::array<int, window> ended{};
    std::array<MPI_Status, window> statuses{};
    test_some(sends_, ended, statuses, what);
  }
  // Returns how many of the requests have ended; MPI sets them to MPI_REQUEST_NULL.
  static int test_some(std::array<MPI_Request, window>& requests, std::array<int, window>& ended,
                       std::array<MPI_Status, window>& statuses, std::string_view what) {
    int n = 0;
    int code = MPI_Testsome(static_cast<int>(window), requests.data(), &n, ended.data(), statuses.data());
    if (code == MPI_ERR_IN_STATUS)
      for (const MPI_Status& s : statuses)
        if (s.MPI_ERROR != MPI_SUCCESS && s.MPI_ERROR != MPI_ERR_PENDING) code = s.MPI_ERROR;
    if (code == MPI_ERR_TRUNCATE) fail<CommunicationError>(what, same_operation, "a message that is too long");
    mpi_check(code, "MPI_Testsome", what);
    return n == MPI_UNDEFINED ? 0 : n;
  }
  void add(std::size_t m) {
    const std::span<std::byte> mine = received(m);
    const std::array<std::byte*, 2> from{mine.data(), room_.get() + m % window * message_bytes_};
    const std::array<std::byte*, 1> to{mine.data()};
    combine(type_, op_, from, to, 0, mine.size() / unit_);
  }

  MPI_Comm comm_;
  std::size_t message_bytes_;
  MpiWaiter& waiter_;
  int rank_ = 0, ranks_ = 1;
  std::array<MPI_Request, window> receives_, sends_;
  std::unique_ptr<std::byte[]> room_;  // for values to be added
  bool busy_ = false;

  std::span<std::byte> data_;
  DType type_ = DType::u8;
  ReduceOp op_ = ReduceOp::sum;
  RingChunks chunks_;
  std::size_t unit_ = 1, part_ = 1, parts_ = 1;  // bytes; elements of a part; parts of a chunk
  std::size_t all_ = 0, awaited_ = 0, received_ = 0, begun_ = 0, sent_ = 0;  // messages
};

}  // namespace tutti
