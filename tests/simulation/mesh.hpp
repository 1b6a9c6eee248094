// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/assignment.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/queued_communicator.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/all_reduce.hpp>

#include "network.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// Connects the workers of each generation with each other. It replaces the addresses that Gloo finds in the job's
// key store.
class Meeting {
 public:
  explicit Meeting(Network& network) : network_(network) {}
  void add(int place, Process& process) { processes_[place] = &process; }
  // Returns a socket to each other worker, by rank. The own one is -1.
  [[nodiscard]] std::vector<io::Descriptor> sockets(const Assignment& a) {
    std::vector<io::Descriptor> list(a.workers.size());
    const int mine = a.workers[static_cast<std::size_t>(a.rank)].place;
    for (std::size_t r = 0; r < list.size(); ++r) {
      const int other = a.workers[r].place;
      if (other == mine) continue;
      const auto key = std::tuple(a.generation, std::min(mine, other), std::max(mine, other));
      auto at = ends_.find(key);
      if (at == ends_.end())
        at = ends_.emplace(key, network_.connect(*processes_.at(std::get<1>(key)), *processes_.at(std::get<2>(key))))
                 .first;
      list[r] = io::Descriptor(network_.claim(mine < other ? at->second.first : at->second.second));
    }
    return list;
  }
  // Returns the members of a generation with which this one cannot exchange messages.
  [[nodiscard]] std::vector<std::uint64_t> unreachable(const Assignment& a) {
    std::vector<std::uint64_t> list;
    const Process& me = *processes_.at(a.workers[static_cast<std::size_t>(a.rank)].place);
    for (const control::Member& m : a.workers) {
      const Process& other = *processes_.at(m.place);
      if (&other != &me && (network_.is_cut(me, other) || network_.is_cut(other, me))) list.push_back(m.id);
    }
    return list;
  }

 private:
  Network& network_;
  std::map<int, Process*> processes_;
  std::map<std::tuple<std::uint64_t, int, int>, std::pair<int, int>> ends_;
};

// The engine of a communicator over the simulated network. It replaces Gloo: in each operation each rank sends its
// bytes to all others and waits for theirs, and the end of a connection is an error. It also replaces the thread that
// reports which members cannot be reached.
class MeshEngine {
 public:
  MeshEngine(Meeting& meeting, const Assignment& a, ControlChannel& channel, InterruptFlag& flag)
      : meeting_(meeting), a_(a), channel_(channel), sockets_(meeting.sockets(a)), received_(sockets_.size()) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail<Error>("mesh", "a pipe", "none");
    wake_read_ = io::Descriptor(ends[0]);
    wake_write_ = io::Descriptor(ends[1]);
    const InterruptWatch watch(flag, [this] { give_up(); });
    // A connection needs both ways: the second message answers the first one.
    for (int i = 0; i < 2; ++i)
      exchange({}, std::chrono::steady_clock::now() + std::chrono::seconds(60), "forming the group");
  }

  [[nodiscard]] int rank() const noexcept { return a_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(sockets_.size()); }
  [[nodiscard]] std::string name() const { return "mesh"; }
  [[nodiscard]] std::string rank_name(int r) const { return "rank " + std::to_string(r); }
  [[nodiscard]] static std::chrono::milliseconds grace() noexcept { return std::chrono::seconds(5); }
  std::span<std::byte> allocate(std::size_t, Deadline) { return {}; }
  void abort(const std::string&, ExitCode) noexcept { give_up(); }
  void give_up() noexcept {
    given_up_ = true;
    [[maybe_unused]] const ssize_t n = ::write(wake_write_.get(), "", 1);
  }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, Deadline deadline, std::string_view what) {
    exchange(data, deadline, what);
    std::vector<std::byte*> arrays;
    for (auto& bytes : received_) arrays.push_back(bytes.data());
    std::byte* const to = data.data();
    combine(t, op, arrays, {&to, 1}, 0, data.size() / size_of(t));
  }
  void broadcast(std::span<std::byte> data, int root, Deadline deadline, std::string_view what) {
    exchange(root == rank() ? data : std::span<std::byte>(), deadline, what, data.size());
    const auto& bytes = received_[static_cast<std::size_t>(root)];
    std::copy(bytes.begin(), bytes.end(), data.begin());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline, std::string_view what) {
    exchange(mine, deadline, what);
    for (std::size_t r = 0; r < received_.size(); ++r)
      std::copy(received_[r].begin(), received_[r].end(), all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
  }
  void barrier(Deadline deadline, std::string_view what) { exchange({}, deadline, what); }

 private:
  struct Header {
    std::uint64_t operation = 0, bytes = 0;
    [[nodiscard]] std::string text() const {
      return std::to_string(bytes) + " bytes in operation " + std::to_string(operation);
    }
  };
  // Sends the bytes to all ranks and waits for theirs, which have at most `most` bytes.
  void exchange(std::span<const std::byte> mine, Deadline deadline, std::string_view what, std::size_t most = 0) {
    const auto began = std::chrono::steady_clock::now();
    ++operation_;
    const Header header{operation_, std::max(mine.size(), most)};
    std::string message(sizeof header + mine.size(), '\0');
    std::memcpy(message.data(), &header, sizeof header);
    if (!mine.empty()) std::memcpy(message.data() + sizeof header, mine.data(), mine.size());
    received_[static_cast<std::size_t>(rank())].assign(mine.begin(), mine.end());
    std::vector<std::size_t> missing;
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      if (static_cast<int>(r) == rank()) continue;
      if (::send(sockets_[r].get(), message.data(), message.size(), MSG_NOSIGNAL) < 0) lost(r, what);
      missing.push_back(r);
    }
    message.resize(sizeof header + header.bytes);
    bool reported = false;
    while (!missing.empty()) {
      std::vector<pollfd> list{{wake_read_.get(), POLLIN, 0}};
      for (const std::size_t r : missing) list.push_back({sockets_[r].get(), POLLIN, 0});
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline)
        fail<CommunicationError>(what, "all ranks within the deadline", {"no message from ", rank_name_of(missing[0])});
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
      (void)::poll(list.data(), list.size(), static_cast<int>(std::min(left, std::chrono::milliseconds(200)).count()));
      if (given_up_) fail<CommunicationError>(what, "all ranks", "the end of the group");
      for (std::size_t i = 1; i < list.size(); ++i)
        if (list[i].revents != 0) take(missing[i - 1], header, message, what);
      std::erase_if(missing, [&](std::size_t r) { return took(r); });
      reported = report(began, missing.empty()) || reported;
    }
    if (reported) channel_.report_unreachable(operation_, {});
    reported_.clear();
    took_.clear();
  }
  void take(std::size_t r, const Header& own, std::string& buffer, std::string_view what) {
    const ssize_t n = ::recv(sockets_[r].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0) return;
    Header theirs;
    if (n < static_cast<ssize_t>(sizeof theirs)) lost(r, what);
    std::memcpy(&theirs, buffer.data(), sizeof theirs);
    if (theirs.operation != own.operation || theirs.bytes != own.bytes)
      Scheduler::current()->fail("rank " + std::to_string(r) + " exchanges " + theirs.text() + ", and rank " +
                                 std::to_string(rank()) + " " + own.text() + ": " + std::string(what));
    const auto* bytes = reinterpret_cast<const std::byte*>(buffer.data());
    received_[r].assign(bytes + sizeof theirs, bytes + n);
    took_.push_back(r);
  }
  [[nodiscard]] bool took(std::size_t r) const { return std::find(took_.begin(), took_.end(), r) != took_.end(); }
  // Returns whether it has reported members that cannot be reached.
  [[nodiscard]] bool report(std::chrono::steady_clock::time_point began, bool over) {
    if (over || std::chrono::steady_clock::now() - began < a_.rank_timeout) return false;
    const auto now = meeting_.unreachable(a_);
    if (now == reported_) return false;
    reported_ = now;
    channel_.report_unreachable(operation_, now);
    return true;
  }
  [[nodiscard]] std::string rank_name_of(std::size_t r) const { return rank_name(static_cast<int>(r)); }
  [[noreturn]] void lost(std::size_t r, std::string_view what) {
    fail<CommunicationError>(what, "all ranks", {"the end of the connection to ", rank_name_of(r)});
  }

  Meeting& meeting_;
  Assignment a_;
  ControlChannel& channel_;
  std::vector<io::Descriptor> sockets_;
  io::Descriptor wake_read_, wake_write_;
  std::atomic<bool> given_up_{false};
  std::uint64_t operation_ = 0;
  std::vector<std::vector<std::byte>> received_;  // by rank
  std::vector<std::size_t> took_;                 // ranks whose bytes of this operation have arrived
  std::vector<std::uint64_t> reported_;
};

class MeshCommunicator : public QueuedCommunicator<MeshEngine> {
 public:
  MeshCommunicator(Meeting& meeting, const Assignment& a, ControlChannel& channel, InterruptFlag& flag)
      : QueuedCommunicator(usual_deadline, meeting, a, channel, flag) {}
};
static_assert(Communicator<MeshCommunicator>);

// The strategy of one generation. before_piece: called before each piece of a step is summed; it may be empty.
class MeshMember : public OwningAllReduce<MeshCommunicator> {
 public:
  using Base = OwningAllReduce<MeshCommunicator>;
  MeshMember(Meeting& meeting, const Assignment& a, ControlChannel& channel, InterruptFlag& flag,
             std::function<void()> before_piece)
      : Base(meeting, a, channel, flag), flag_(flag), before_piece_(std::move(before_piece)) {
    flag_.watch([this] { communicator().interrupt(); });
  }
  ~MeshMember() { flag_.watch({}); }
  MeshMember(const MeshMember&) = delete;
  MeshMember& operator=(const MeshMember&) = delete;
  Work reduce(const Piece& piece) {
    if (before_piece_) before_piece_();
    return Base::reduce(piece);
  }

 private:
  InterruptFlag& flag_;
  std::function<void()> before_piece_;
};

// Makes the strategies of Elastic.
struct MeshFactory {
  Meeting* meeting;
  std::function<void()> before_piece{};
  [[nodiscard]] std::unique_ptr<MeshMember> operator()(const Assignment& a, ControlChannel& channel,
                                                       InterruptFlag& flag) const {
    return std::make_unique<MeshMember>(*meeting, a, channel, flag, before_piece);
  }
};

}  // namespace tutti::simulation
