// SPDX-License-Identifier: MIT
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/threads/threads.hpp>

namespace tutti {

// Finds the peers that this process cannot reach while it waits for its group. It does not use the network while the
// group works: if an operation lasts for half of the time-out, a thread tries to connect to each peer. A connection
// needs both directions. The kernel of a busy or stopped peer accepts it, so a slow peer counts as reached.
class ReachabilityMonitor {
 public:
  // A process of the group on another host.
  struct Peer {
    std::uint64_t id = 0;
    // Returns its address with its port, such as 10.0.0.7:40123, or an empty text if it is not known yet. The monitor's
    // thread calls it.
    std::function<std::string()> address{};
  };
  // The monitor's thread calls it if the process has waited for longer than the time-out and cannot reach these peers,
  // again if they change, and with an empty list after the operation. `operation` counts the group's operations.
  using Report = std::function<void(std::uint64_t operation, const std::vector<std::uint64_t>& unreachable)>;

  ReachabilityMonitor(std::chrono::milliseconds timeout, Report report)
      : timeout_(timeout), report_(std::move(report)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_.get() < 0) fail<DeviceError>("reachability monitor", "a file descriptor", tcp::error_text(errno));
    thread_ = start_thread("reach", [this] { run(); });
  }
  ~ReachabilityMonitor() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }
  ReachabilityMonitor(const ReachabilityMonitor&) = delete;
  ReachabilityMonitor& operator=(const ReachabilityMonitor&) = delete;

  // Opens a port at this address of this host, an IPv4 or IPv6 number, to which the peers try to connect. Returns the
  // address with the port. Accepted connections are closed at once. Call it once, before begin().
  [[nodiscard]] std::string listen(const std::string& address) {
    std::string why;
    int error = 0;
    const auto found = tcp::SystemLookup{}(address, 0, true, why);
    auto listener = found.empty() ? std::nullopt : tcp::listen_on(found.front(), 128, error);
    if (!listener)
      fail<CommunicationError>("reachability monitor", {"to listen at ", address},
                               found.empty() ? why : tcp::error_text(error));
    std::string at = host_and_port(address, tcp::port_of(*listener));
    {
      const std::lock_guard lock(mutex_);
      listener_ = std::move(*listener);
    }
    wake();
    return at;
  }
  // Sets the peers of the next group. Its operations count from 1.
  void begin(std::vector<Peer> peers) {
    const std::lock_guard lock(mutex_);
    peers_ = std::move(peers);
    operation_ = 0;
    since_.reset();
    failed_ = false;
    ++group_;
  }
  // Call while the process waits for operation `number`, which all processes of the group count alike. The time counts
  // from the first call with this number.
  void waits(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    if (since_ && operation_ == number) return;
    operation_ = number;
    since_ = Clock::now();
    failed_ = false;
  }
  void waits_no_more() {
    const std::lock_guard lock(mutex_);
    since_.reset();
    failed_ = false;
  }
  // Call if the operation has failed, maybe because this process cannot reach a peer. Tries the peers at once, and
  // counts the process as waiting in the operation until the next group begins.
  void failed() {
    {
      const std::lock_guard lock(mutex_);
      failed_ = since_.has_value();
      all_reached_ = false;
    }
    wake();
  }
  // Call after an operation that failed. Blocks until each peer has accepted a connection, until stop(), which is
  // called often, returns true, or for one and a half time-outs: by then the other peers have been reported. Returns at
  // once if no operation has failed.
  void await_peers(const std::function<bool()>& stop) {
    const auto until = Clock::now() + timeout_ + timeout_ / 2;
    std::unique_lock lock(mutex_);
    while (failed_ && !all_reached_ && Clock::now() < until) {
      lock.unlock();
      if (stop()) return;
      lock.lock();
      news_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  // While it exists, the process counts as waiting for the next operation of the group. watch: may be null.
  class Operation {
   public:
    explicit Operation(ReachabilityMonitor* watch) : watch_(watch) {
      if (watch_ != nullptr) watch_->waits(watch_->next_operation());
    }
    ~Operation() {
      if (watch_ == nullptr) return;
      std::uncaught_exceptions() > exceptions_ ? watch_->failed() : watch_->waits_no_more();
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    ReachabilityMonitor* watch_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Trial {
    Peer peer{};
    std::string at{};  // its address, once it is known
    tcp::Socket socket{};
    Clock::time_point begun{};
    bool reached = false;
  };

  [[nodiscard]] static std::string host_and_port(const std::string& host, int port) {
    return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  }
  [[nodiscard]] std::uint64_t next_operation() {
    const std::lock_guard lock(mutex_);
    return operation_ + 1;
  }
  void wake() noexcept {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  // ---- the thread ----
  void run() {
    auto looked = Clock::now();
    for (;;) {
      const int listener = listener_of();
      std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {listener, POLLIN, 0}};
      for (const Trial& t : trials_) polled.push_back({t.reached ? -1 : t.socket.get(), POLLOUT, 0});
      const auto look_every = std::clamp(timeout_ / 20, std::chrono::milliseconds(20), std::chrono::milliseconds(500));
      (void)::poll(polled.data(), polled.size(), static_cast<int>(look_every.count()));
      if (polled[0].revents != 0) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof count);
      }
      for (int taken = 0; listener >= 0 && polled[1].revents != 0 && taken < 64; ++taken)
        if (const tcp::Socket s(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); s.get() < 0)
          break;
      const auto now = Clock::now();
      std::vector<Peer> peers;
      Clock::duration waited{};
      std::uint64_t group = 0, operation = 0;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        // A pause of this process does not count.
        if (since_ && now - looked > std::chrono::seconds(1) + look_every) *since_ += now - looked;
        if (since_) waited = now - *since_;
        group = group_;
        operation = operation_;
        if (waited >= timeout_ / 2 || failed_) peers = peers_;
      }
      follow(std::move(peers), group, operation);
      attempt(polled, now);
      note_reached(group, operation);
      if (waited >= timeout_ && !trials_.empty()) tell(operation);
      // Measured after the work: looking up an address may take a second, which is not a pause of the process.
      looked = Clock::now();
    }
  }
  [[nodiscard]] int listener_of() {
    const std::lock_guard lock(mutex_);
    return listener_.get();
  }
  // Trials belong to one operation: a peer that was reached before may be cut off now.
  void follow(std::vector<Peer> peers, std::uint64_t group, std::uint64_t operation) {
    if (!trials_.empty() && (peers.empty() || group != tried_group_ || operation != tried_operation_)) {
      trials_.clear();
      // The arbiter forgets the reports of a group when the next one begins.
      if (!std::exchange(told_, {}).empty() && group == tried_group_) report_(tried_operation_, {});
    }
    if (trials_.empty())
      for (Peer& p : peers) trials_.push_back({std::move(p)});
    tried_group_ = group;
    tried_operation_ = operation;
  }
  void attempt(const std::vector<pollfd>& polled, Clock::time_point now) {
    const auto again = std::max<Clock::duration>(timeout_ / 8, std::chrono::milliseconds(50));
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      Trial& t = trials_[i];
      if (t.reached) continue;
      if (t.socket.get() >= 0 && i + 2 < polled.size() && polled[i + 2].fd == t.socket.get() &&
          polled[i + 2].revents != 0)
        finish(t);
      if (!t.reached && (t.begun == Clock::time_point{} || now - t.begun >= again)) start(t, now);
    }
  }
  void note_reached(std::uint64_t group, std::uint64_t operation) {
    if (!std::all_of(trials_.begin(), trials_.end(), [](const Trial& t) { return t.reached; })) return;
    const std::lock_guard lock(mutex_);
    if (!failed_ || group != group_ || operation != operation_) return;
    all_reached_ = peers_.empty() || !trials_.empty();
    news_.notify_all();
  }
  static void start(Trial& t, Clock::time_point now) {
    t.begun = now;
    t.socket = tcp::Socket();
    if (t.at.empty()) t.at = t.peer.address();
    const std::size_t colon = t.at.rfind(':');
    if (colon == std::string::npos) return;
    std::string host = t.at.substr(0, colon), why;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const auto found = tcp::addresses_of(host, std::atoi(t.at.c_str() + colon + 1), now + std::chrono::seconds(1), why);
    if (found.empty()) return;
    const tcp::Address& a = found.front();
    t.socket = tcp::Socket(::socket(a.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (t.socket.get() < 0) return;
    if (::connect(t.socket.get(), a.get(), a.size) == 0) {
      t.reached = true;
    } else if (errno != EINPROGRESS) {
      t.reached = errno == ECONNREFUSED;  // its host has answered
      t.socket = tcp::Socket();
    }
    if (t.reached) t.socket = tcp::Socket();
  }
  static void finish(Trial& t) {
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(t.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    t.reached = error == 0 || error == ECONNREFUSED || error == ECONNRESET;
    t.socket = tcp::Socket();
  }
  void tell(std::uint64_t operation) {
    std::vector<std::uint64_t> unreachable;
    for (const Trial& t : trials_)
      if (!t.reached && !t.at.empty()) unreachable.push_back(t.peer.id);
    if (unreachable == told_) return;
    told_ = unreachable;
    report_(operation, unreachable);
  }

  const std::chrono::milliseconds timeout_;
  Report report_;
  io::Descriptor wake_;
  std::mutex mutex_;
  tcp::Socket listener_;
  std::vector<Peer> peers_;
  std::uint64_t operation_ = 0, group_ = 0;
  std::optional<Clock::time_point> since_;  // start of the wait in the operation
  bool failed_ = false;                     // the operation has failed
  bool all_reached_ = false;                // all peers were reached since the failure
  std::condition_variable news_;
  bool stopping_ = false;
  // Used by the monitor's thread: the peers that it tries to reach, the operation for which it tries, and the peers
  // that it has reported.
  std::vector<Trial> trials_;
  std::uint64_t tried_group_ = 0, tried_operation_ = 0;
  std::vector<std::uint64_t> told_;
  std::thread thread_;
};

}  // namespace tutti
