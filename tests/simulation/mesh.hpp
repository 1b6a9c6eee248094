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

// Connects the processes of each generation with each other. It replaces the addresses that Gloo finds in the job's
// key store.
class Meeting {
 public:
  explicit Meeting(Network& network) : network_(network) {}
  void add(control::Role role, int place, Process& process) { processes_[{role, place}] = &process; }
  [[nodiscard]] Process& process_of(const control::Member& m) const { return *processes_.at({m.role, m.place}); }
  // Returns a socket of the running process to each of these members of a generation. The one to itself is -1.
  [[nodiscard]] std::vector<io::Descriptor> sockets(std::uint64_t generation, const std::vector<control::Member>& to) {
    std::vector<io::Descriptor> list(to.size());
    Process& me = Scheduler::current()->process();
    for (std::size_t i = 0; i < to.size(); ++i) {
      Process& other = process_of(to[i]);
      if (&other == &me) continue;
      Process &low = me.number < other.number ? me : other, &high = &low == &me ? other : me;
      const auto key = std::tuple(generation, low.number, high.number);
      auto at = ends_.find(key);
      if (at == ends_.end()) at = ends_.emplace(key, network_.connect(low, high)).first;
      list[i] = io::Descriptor(network_.claim(&low == &me ? at->second.first : at->second.second));
    }
    return list;
  }
  // Returns the members with which the running process cannot exchange messages.
  [[nodiscard]] std::vector<std::uint64_t> unreachable(const Assignment& a) {
    std::vector<std::uint64_t> list;
    for (const auto* members : {&a.workers, &a.servers})
      for (const control::Member& m : *members)
        if (network_.is_cut_off(Scheduler::current()->process(), process_of(m))) list.push_back(m.id);
    return list;
  }
  // Breaks the newest connection of two processes. The second one may not notice it.
  void reset(Process& a, Process& b, bool both) {
    const auto numbers = std::minmax(a.number, b.number);
    for (auto at = ends_.rbegin(); at != ends_.rend(); ++at) {
      if (std::get<1>(at->first) != numbers.first || std::get<2>(at->first) != numbers.second) continue;
      const auto [low, high] = at->second;
      network_.reset(a.number < b.number ? low : high);
      if (both) network_.reset(a.number < b.number ? high : low);
      return;
    }
  }
  // Returns whether the running process does not notice that this connection has ended. One end notices a reset.
  [[nodiscard]] bool hides_end(int descriptor) {
    const auto* const s = network_.find(descriptor);
    return network_.loses_messages && s != nullptr && !s->was_reset && Scheduler::current()->noise().one_in(2);
  }
  // Whether to check the flags of groups. The check changes the order of threads.
  bool checks_flags = false;
  // Checks that the flag of a group that is being formed is raised soon if its generation has ended before.
  void check_flag(const ControlChannel& channel, const InterruptFlag& flag) const {
    if (!checks_flags) return;
    const auto change = channel.change();
    if (!change || !change->broken) return;
    Scheduler& s = *Scheduler::current();
    s.sleep(10 * ms);
    if (!flag.raised()) s.fail(s.process().name + " forms the group of a generation that has ended");
  }
  // Notes that a process has formed its group of a generation.
  void formed(const Process& p, std::uint64_t generation) { formed_[p.number] = generation; }
  [[nodiscard]] std::uint64_t formed(const Process& p) const {
    const auto at = formed_.find(p.number);
    return at == formed_.end() ? 0 : at->second;
  }

 private:
  Network& network_;
  std::map<std::pair<control::Role, int>, Process*> processes_;
  std::map<std::tuple<std::uint64_t, int, int>, std::pair<int, int>> ends_;
  std::map<int, std::uint64_t> formed_;
};

// The beginning of each message of an operation.
struct MeshHeader {
  std::uint64_t operation = 0, bytes = 0;
  [[nodiscard]] std::string text() const {
    return std::to_string(bytes) + " bytes in operation " + std::to_string(operation);
  }
};

// The engine of a communicator over the simulated network. It replaces Gloo: in each operation each rank sends its
// bytes to all others and waits for theirs. As with Gloo, a rank may not notice the end of a connection. If there are
// servers, each rank also sends a message to each server and waits for its answer. The engine also replaces the thread
// that reports which members cannot be reached.
class MeshEngine {
 public:
  MeshEngine(Meeting& meeting, const Assignment& a, ControlChannel& channel, InterruptFlag& flag)
      : meeting_(meeting), a_(a), channel_(channel), sockets_(meeting.sockets(a.generation, a.workers)) {
    for (io::Descriptor& s : meeting.sockets(a.generation, a.servers)) sockets_.push_back(std::move(s));
    received_.resize(sockets_.size());
    deaf_.resize(sockets_.size());
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail<Error>("mesh", "a pipe", "none");
    wake_read_ = io::Descriptor(ends[0]);
    wake_write_ = io::Descriptor(ends[1]);
    const InterruptWatch watch(flag, [this] { give_up(); });
    meeting.check_flag(channel, flag);
    // A connection needs both ways: the second message answers the first one.
    for (std::uint64_t i = 0; i < forming; ++i) exchange({}, Deadline(std::chrono::seconds(60)), "forming the group");
    meeting.formed(Scheduler::current()->process(), a.generation);
  }

  static constexpr std::uint64_t forming = 2;  // operations that form a group

  [[nodiscard]] int rank() const noexcept { return a_.rank; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(a_.workers.size()); }
  [[nodiscard]] std::string name() const { return "mesh"; }
  [[nodiscard]] std::string rank_name(int r) const { return "rank " + std::to_string(r); }
  [[nodiscard]] static std::chrono::milliseconds grace() noexcept { return std::chrono::seconds(5); }
  std::span<std::byte> allocate(std::size_t, const Deadline&) { return {}; }
  void abort(const std::string&, ExitCode) noexcept { give_up(); }
  void give_up() noexcept {
    given_up_ = true;
    [[maybe_unused]] const ssize_t n = ::write(wake_write_.get(), "", 1);
  }

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    exchange(data, deadline, what);
    std::vector<std::byte*> arrays;
    for (int r = 0; r < size(); ++r) arrays.push_back(received_[static_cast<std::size_t>(r)].data());
    std::byte* const to = data.data();
    combine(t, op, arrays, {&to, 1}, 0, data.size() / size_of(t));
  }
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline, std::string_view what) {
    exchange(root == rank() ? data : std::span<std::byte>(), deadline, what, data.size());
    const auto& bytes = received_[static_cast<std::size_t>(root)];
    std::copy(bytes.begin(), bytes.end(), data.begin());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, const Deadline& deadline,
                  std::string_view what) {
    exchange(mine, deadline, what);
    for (std::size_t r = 0; r < a_.workers.size(); ++r)
      std::copy(received_[r].begin(), received_[r].end(), all.begin() + static_cast<std::ptrdiff_t>(r * mine.size()));
  }
  void barrier(const Deadline& deadline, std::string_view what) { exchange({}, deadline, what); }

 private:
  // Sends the bytes to all ranks and waits for theirs, which have at most `most` bytes.
  void exchange(std::span<const std::byte> mine, const Deadline& deadline, std::string_view what,
                std::size_t most = 0) {
    const auto began = std::chrono::steady_clock::now();
    ++operation_;
    const MeshHeader header{operation_, std::max(mine.size(), most)};
    std::string message(sizeof header + mine.size(), '\0');
    std::memcpy(message.data(), &header, sizeof header);
    if (!mine.empty()) std::memcpy(message.data() + sizeof header, mine.data(), mine.size());
    received_[static_cast<std::size_t>(rank())].assign(mine.begin(), mine.end());
    if (given_up_) fail<CommunicationError>(what, "all ranks", "the end of the group");
    std::vector<std::size_t> missing;
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      if (static_cast<int>(r) == rank()) continue;
      const std::size_t bytes = r < a_.workers.size() ? message.size() : sizeof header;
      if (::send(sockets_[r].get(), message.data(), bytes, MSG_NOSIGNAL) < 0) lost(r, what);
      missing.push_back(r);
    }
    message.resize(sizeof header + header.bytes);
    bool reported = false;
    while (!missing.empty()) {
      std::vector<pollfd> list{{wake_read_.get(), POLLIN, 0}};
      for (const std::size_t r : missing) list.push_back({deaf_[r] ? -1 : sockets_[r].get(), POLLIN, 0});
      if (deadline.is_over())
        fail<CommunicationError>(what, "all ranks within the deadline", {"no message from ", rank_name_of(missing[0])});
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(deadline.next_wait());
      (void)::poll(list.data(), list.size(), static_cast<int>(wait.count()));
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
  void take(std::size_t r, const MeshHeader& own, std::string& buffer, std::string_view what) {
    const ssize_t n = ::recv(sockets_[r].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0) return;
    MeshHeader theirs;
    if (n < static_cast<ssize_t>(sizeof theirs)) return lost(r, what);
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
  [[nodiscard]] std::string rank_name_of(std::size_t r) const { return "member " + std::to_string(r); }
  void lost(std::size_t r, std::string_view what) {
    deaf_[r] = deaf_[r] || meeting_.hides_end(sockets_[r].get());
    if (deaf_[r]) return;
    fail<CommunicationError>(what, "all ranks", {"the end of the connection to ", rank_name_of(r)});
  }

  Meeting& meeting_;
  Assignment a_;
  ControlChannel& channel_;
  std::vector<io::Descriptor> sockets_;  // to the workers by rank, and to the servers
  io::Descriptor wake_read_, wake_write_;
  std::atomic<bool> given_up_{false};
  std::uint64_t operation_ = 0;
  std::vector<std::vector<std::byte>> received_;  // as sockets_
  std::vector<std::size_t> took_;                 // ranks of the bytes that have arrived in this operation
  std::vector<bool> deaf_;                        // the connection has ended, and this rank does not notice it
  std::vector<std::uint64_t> reported_;
};

// A server of a generation: answers each operation when all workers have sent their messages. It replaces ps::Server.
class MeshServer {
 public:
  // Waits until all workers have formed the group. The flag ends the wait.
  MeshServer(Meeting& meeting, const Assignment& a, ControlChannel& channel, InterruptFlag& flag)
      : channel_(channel),
        sockets_(meeting.sockets(a.generation, a.workers)),
        received_(sockets_.size()),
        silent_(sockets_.size()) {
    const InterruptWatch watch(flag, [this] { stop(); });
    meeting.check_flag(channel, flag);
    while (answered_ < MeshEngine::forming) {
      if (stopped_ || open() < sockets_.size()) fail<CommunicationError>("mesh server", "all workers", "a lost one");
      answer();
    }
    meeting.formed(Scheduler::current()->process(), a.generation);
  }
  // Workers say goodbye at the end of a generation. This server asks the arbiter instead.
  void run() {
    while (!stopped_ && !is_over()) answer();
  }
  void stop() { stopped_ = true; }

 private:
  [[nodiscard]] std::size_t open() const {
    return static_cast<std::size_t>(
        std::count_if(sockets_.begin(), sockets_.end(), [](const io::Descriptor& s) { return s.get() >= 0; }));
  }
  void answer() {
    std::vector<pollfd> list;
    for (std::size_t i = 0; i < sockets_.size(); ++i) list.push_back({silent_[i] ? -1 : sockets_[i].get(), POLLIN, 0});
    (void)::poll(list.data(), list.size(), 50);
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].revents != 0) take(i);
    const std::uint64_t least = *std::min_element(received_.begin(), received_.end());
    if (least == answered_) return;
    answered_ = least;
    for (const io::Descriptor& s : sockets_)
      if (s.get() >= 0) (void)::send(s.get(), &header_, sizeof header_, MSG_NOSIGNAL);
  }
  void take(std::size_t i) {
    const ssize_t n = ::recv(sockets_[i].get(), &header_, sizeof header_, MSG_DONTWAIT);
    if (n < 0) return;
    if (n == 0 && received_[i] == 0) {
      silent_[i] = true;  // ZeroMQ has no connection to a worker that has sent nothing
    } else if (n == 0) {
      sockets_[i] = io::Descriptor();
    } else {
      received_[i] = header_.operation;
    }
  }

  [[nodiscard]] bool is_over() {
    try {
      return channel_.await_assignment(std::chrono::milliseconds(0));
    } catch (const CommunicationError&) {
      return false;
    }
  }

  ControlChannel& channel_;
  std::vector<io::Descriptor> sockets_;
  std::vector<std::uint64_t> received_;  // newest operation of each worker
  std::vector<bool> silent_;             // workers that have ended before they sent anything
  std::uint64_t answered_ = 0;
  MeshHeader header_;
  std::atomic<bool> stopped_{false};
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
