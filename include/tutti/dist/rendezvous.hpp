// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/dist/hosts_file.hpp>
#include <tutti/dist/launch_environment.hpp>
#include <tutti/dist/tcp.hpp>

namespace tutti {

// Where the ranks of a job meet: rank 0 listens at host:port, the others connect.
struct RendezvousOptions {
  std::string host;
  int port = 0;
  std::string job;  // so that ranks of another job are told apart; at most 64 characters
  int rank = 0, size = 1;
  std::chrono::milliseconds deadline = std::chrono::seconds(120);
};

// As whoever started this process says (TUTTI_ROOT, TUTTI_JOB). UsageError where they say nothing of it.
[[nodiscard]] inline RendezvousOptions rendezvous_of(const LaunchEnvironment& e) {
  RendezvousOptions o{"", 0, e.job, e.rank, e.size, std::chrono::seconds(120)};
  if (e.size == 1) return o;
  const auto root = detail::parse_host_name(e.root);
  if (!root || root->port == 0)
    fail<UsageError>("environment TUTTI_ROOT", "host:port where rank 0 may listen",
                     e.root.empty() ? "nothing" : "'" + printable(e.root) + "'",
                     "start the job with tutti-launch, or set TUTTI_ROOT, TUTTI_JOB, TUTTI_RANK and TUTTI_SIZE");
  o.host = root->name;
  o.port = root->port;
  return o;
}

// Gives bytes of rank 0 to all ranks, once all have come: the identity of a communicator, say. A function object; all
// ranks call it equally often. Whoever is not of this job, and whatever else arrives at the port, is turned away.
// CommunicationError names the ranks that did not come before the deadline; those that did are told so too.
class TcpRendezvous {
 public:
  // Rank 0 listens from here on, so that calls of the others find it.
  explicit TcpRendezvous(RendezvousOptions options) : o_(std::move(options)) {
    if (o_.size < 1 || o_.rank < 0 || o_.rank >= o_.size || o_.job.size() > max_job)
      fail<UsageError>("rendezvous", "a rank of a job",
                       "rank " + std::to_string(o_.rank) + " of " + std::to_string(o_.size));
    if (o_.size > 1 && o_.rank == 0) listener_ = tcp::listen_at(o_.port, std::max(o_.size, 128));
  }

  // Where rank 0 listens; what the system chose where the options said 0.
  [[nodiscard]] int port() const { return listener_.get() >= 0 ? tcp::port_of(listener_) : o_.port; }

  void operator()(std::span<std::byte> data) {
    ++round_;
    if (data.size() > max_data) fail<UsageError>("rendezvous", "at most 64 KiB", std::to_string(data.size()));
    if (o_.size == 1) return;
    const auto deadline = std::chrono::steady_clock::now() + o_.deadline;
    if (o_.rank == 0)
      serve(data, deadline);
    else
      ask(data, deadline);
  }

 private:
  static constexpr std::size_t max_job = 64, max_data = std::size_t{1} << 16, max_text = 1024;
  static constexpr std::array<char, 8> magic{'t', 'u', 't', 't', 'i', 'r', 'v', '1'};
  // A stranger gets so long to say that he is none, and so many may be there at once.
  static constexpr std::chrono::seconds patience{10};
  static constexpr std::size_t max_strangers = 256;
  static constexpr std::chrono::seconds after_rank_0{3};

  // Both are sent as they lie in memory: the hosts of a job are of one kind.
  struct Hello {
    std::array<char, 8> magic;
    std::uint32_t rank, size, round, bytes;
    std::array<char, max_job> job;
  };
  struct Answer {
    std::array<char, 8> magic;
    std::uint32_t good, bytes;  // of what follows: the data, or why not
  };
  struct Guest {
    tcp::Socket socket;
    tcp::Deadline until;  // when he must have said who he is
    std::array<std::byte, sizeof(Hello)> hello{};
    std::size_t got = 0;
    int rank = -1;  // once it is known
  };

  [[nodiscard]] Hello hello(std::size_t bytes) const {
    Hello h{magic,  static_cast<std::uint32_t>(o_.rank), static_cast<std::uint32_t>(o_.size),
            round_, static_cast<std::uint32_t>(bytes),   {}};
    std::copy(o_.job.begin(), o_.job.end(), h.job.begin());
    return h;
  }
  [[nodiscard]] std::string where() const { return "rendezvous at " + host_and_port(o_.host, port()); }

  static void answer(const Guest& g, bool good, std::span<const std::byte> bytes, tcp::Deadline deadline) {
    const Answer a{magic, good ? 1U : 0U, static_cast<std::uint32_t>(bytes.size())};
    if (tcp::send_all(g.socket, std::as_bytes(std::span(&a, 1)), deadline) == tcp::Transfer::done)
      (void)tcp::send_all(g.socket, bytes, deadline);
  }
  static void refuse(const Guest& g, std::string_view why) {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    answer(g, false, std::as_bytes(std::span(why.data(), std::min(why.size(), max_text))), soon);
  }

  // Rank 0.
  void serve(std::span<const std::byte> data, tcp::Deadline deadline) {
    std::vector<Guest> guests;
    const auto known = [](const Guest& g) { return g.rank >= 0; };
    const auto there = [&] { return std::count_if(guests.begin(), guests.end(), known); };
    while (there() < o_.size - 1) {
      if (tcp::over(deadline)) give_up(guests);
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      for (const Guest& g : guests) polled.push_back({g.socket.get(), POLLIN, 0});
      // A signal is as good as nothing.
      if (::poll(polled.data(), polled.size(), tcp::left(deadline, 200)) < 0) continue;
      for (std::size_t i = guests.size(); i-- > 0;) {
        const bool late = !known(guests[i]) && tcp::over(guests[i].until);
        if (late || (polled[i + 1].revents != 0 && !listen_to(guests, i, data.size())))
          guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
      }
      while (static_cast<std::size_t>(std::count_if(guests.begin(), guests.end(), std::not_fn(known))) <
             max_strangers) {
        const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) break;
        guests.push_back({tcp::Socket(fd), std::min(deadline, std::chrono::steady_clock::now() + patience)});
      }
    }
    for (const Guest& g : guests)
      if (known(g)) answer(g, true, data, deadline);
  }

  // Reads what a guest has to say. False: he is to go.
  bool listen_to(std::vector<Guest>& guests, std::size_t i, std::size_t bytes) const {
    Guest& g = guests[i];
    const auto rest = std::span(g.hello).subspan(g.got);
    if (rest.empty()) {
      // Of the ranks that wait nothing comes any more but their end.
      std::byte more{};
      return ::recv(g.socket.get(), &more, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
    }
    const ssize_t n = ::recv(g.socket.get(), rest.data(), rest.size(), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    g.got += static_cast<std::size_t>(n);
    const std::size_t first = std::min(g.got, magic.size());
    if (std::memcmp(g.hello.data(), magic.data(), first) != 0) return false;
    if (g.got < g.hello.size()) return true;
    Hello h{};
    std::memcpy(&h, g.hello.data(), sizeof h);
    const Hello mine = hello(bytes);
    if (h.job != mine.job) return refuse(g, "another job is at this port"), false;
    if (h.size != mine.size || h.rank == 0 || h.rank >= mine.size)
      return refuse(g, "rank 0 counts " + std::to_string(mine.size) + " ranks"), false;
    if (h.round != mine.round || h.bytes != mine.bytes)
      return refuse(g, "rank 0 is elsewhere: its call " + std::to_string(mine.round) + " of " +
                           std::to_string(mine.bytes) + " bytes"),
             false;
    const auto rank = static_cast<int>(h.rank);
    if (std::any_of(guests.begin(), guests.end(), [&](const Guest& o) { return o.rank == rank; }))
      return refuse(g, "rank " + std::to_string(rank) + " is there already"), false;
    g.rank = rank;
    return true;
  }

  [[noreturn]] void give_up(const std::vector<Guest>& guests) const {
    std::string missing;
    for (int r = 1; r < o_.size; ++r)
      if (std::none_of(guests.begin(), guests.end(), [&](const Guest& g) { return g.rank == r; }))
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
    for (const Guest& g : guests)
      if (g.rank >= 0) refuse(g, "without " + missing);
    fail<CommunicationError>(where(), "all " + std::to_string(o_.size) + " ranks within " + time(),
                             "nothing from " + missing,
                             "look at what these ranks do, and whether they reach this host");
  }
  [[nodiscard]] std::string time() const { return std::to_string(o_.deadline.count()) + " ms"; }

  // The others.
  void ask(std::span<std::byte> data, tcp::Deadline deadline) const {
    std::string why = "nobody there";
    auto pause = std::chrono::milliseconds(10);
    while (!tcp::over(deadline)) {
      if (const auto socket = tcp::connect_to(o_.host, o_.port, deadline, why)) {
        const Hello h = hello(data.size());
        Answer a{};
        why = "no answer from rank 0";
        // Rank 0 has the first word on who is missing.
        const auto later = deadline + after_rank_0;
        if (tcp::send_all(*socket, std::as_bytes(std::span(&h, 1)), deadline) == tcp::Transfer::done &&
            tcp::receive_all(*socket, std::as_writable_bytes(std::span(&a, 1)), later) == tcp::Transfer::done) {
          why = "an answer of something else";
          if (a.magic == magic && receive(*socket, a, data, later)) return;
        }
      }
      // Rank 0 may not have come yet.
      std::this_thread::sleep_until(std::min(std::chrono::steady_clock::now() + pause, deadline));
      pause = std::min(2 * pause, std::chrono::milliseconds(500));
    }
    fail<CommunicationError>(where(), "rank 0 within " + time(), why,
                             "look at what rank 0 does, and whether this host reaches it");
  }
  // Whether the data came. Throws what rank 0 says against it.
  bool receive(const tcp::Socket& socket, const Answer& a, std::span<std::byte> data, tcp::Deadline deadline) const {
    if (a.good == 1) return a.bytes == data.size() && tcp::receive_all(socket, data, deadline) == tcp::Transfer::done;
    std::string text(std::min<std::size_t>(a.bytes, max_text), ' ');
    if (tcp::receive_all(socket, std::as_writable_bytes(std::span(text)), deadline) != tcp::Transfer::done)
      return false;
    fail<CommunicationError>(where(), "to be let in as rank " + std::to_string(o_.rank), printable(text));
  }

  RendezvousOptions o_;
  tcp::Socket listener_;
  std::uint32_t round_ = 0;
};

}  // namespace tutti
