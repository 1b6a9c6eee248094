// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/cluster/rendezvous/rendezvous_options.hpp>
#include <tutti/comm/net/hmac_sha256.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti {

// Copies bytes of rank 0 to all ranks after all have arrived, for example the identity of a communicator. It is a
// function object; all ranks must call it equally often.
// Both sides prove that they know the job's secret, by a keyed hash over random numbers of both sides. A connection
// that cannot prove it is refused, takes no rank's place and delays no rank. Rank 0's bytes are sent unencrypted.
// Throws CommunicationError that names the ranks that did not arrive before the deadline, also on the ranks that did
// arrive. A rank with a secret different from rank 0's fails at once, unless rank 0 may listen on another port.
class TcpRendezvous {
 public:
  // Rank 0 listens from here on, so that the other ranks can connect.
  explicit TcpRendezvous(RendezvousOptions options) : o_(std::move(options)) {
    if (o_.size < 1 || o_.rank < 0 || o_.rank >= o_.size || o_.job.size() > max_job || o_.ports < 1 ||
        (o_.size > 1 && o_.secret.empty()))
      fail<UsageError>("rendezvous", "a rank of a job with a name and a secret", {"rank ", o_.rank, " of ", o_.size});
    if (o_.size > 1 && o_.rank == 0) listener_ = listen();
  }

  // Returns rank 0's port; the port that the system chose if the options had 0.
  [[nodiscard]] int port() const { return listener_.get() >= 0 ? tcp::port_of(listener_) : o_.port; }

  void operator()(std::span<std::byte> data) {
    ++round_;
    if (data.size() > max_data) fail<UsageError>("rendezvous", "at most 64 KiB", data.size());
    if (o_.size == 1) return;
    const auto deadline = std::chrono::steady_clock::now() + o_.deadline;
    if (o_.rank == 0)
      serve(data, deadline);
    else
      ask(data, deadline);
  }

 private:
  static constexpr std::size_t max_job = 64, max_data = std::size_t{1} << 16, max_text = 1024;
  static constexpr std::array<char, 8> magic{'t', 'u', 't', 't', 'i', 'r', 'v', '2'};
  // A connection must prove within `patience` that it belongs to the job. If more than max_strangers connections have
  // not proved it yet, the oldest of them is dropped.
  static constexpr std::chrono::seconds patience{1};
  static constexpr std::size_t max_strangers = 256;
  // silence: with several ports, a port that sends no answer is skipped after this time. after_rank_0: additional time
  // to wait for rank 0's error.
  static constexpr std::chrono::seconds silence{2};
  static constexpr std::chrono::seconds after_rank_0{3};

  // These structs are sent in this order and as they are in memory: the hosts of a job are of one kind. The rank's
  // proof is the hash of "rank", Hello and Challenge. Rank 0's proof is the hash of "root", Hello, Challenge, Answer
  // and the data after it.
  struct Hello {
    std::array<char, 8> magic;
    std::uint32_t rank, size, round, bytes;
    std::array<char, max_job> job;
    Digest256 nonce;
  };
  struct Challenge {
    std::array<char, 8> magic;
    std::uint32_t good, bytes;  // good: 1, or 0 and then this many bytes with the reason
    Digest256 nonce;
  };
  struct Answer {
    std::array<char, 8> magic;
    std::uint32_t good, bytes;  // bytes: of the following data, or of the reason
    Digest256 proof;
  };
  struct Client {
    tcp::Socket socket;
    tcp::Moment until;  // deadline for the proof
    Hello hello{};
    Challenge challenge{};
    Digest256 proof{};
    tcp::Address from;
    std::size_t got = 0;      // bytes of the hello, or of the proof
    bool challenged = false;  // the hello has arrived
    int rank = -1;            // -1 until the client has proved it
  };

  template <class T>
  [[nodiscard]] static std::span<const std::byte> bytes_of(const T& t) noexcept {
    return std::as_bytes(std::span(&t, 1));
  }
  [[nodiscard]] static Digest256 draw() {
    Digest256 n{};
    if (::getrandom(n.data(), n.size(), 0) == static_cast<ssize_t>(n.size())) return n;
    std::random_device device;
    for (std::byte& b : n) b = static_cast<std::byte>(device());
    return n;
  }
  [[nodiscard]] Digest256 rank_proof(const Hello& h, const Challenge& c) const {
    return HmacSha256(o_.secret).add("tutti rank").add(bytes_of(h)).add(bytes_of(c)).digest();
  }
  [[nodiscard]] Digest256 root_proof(const Hello& h, const Challenge& c, Answer a,
                                     std::span<const std::byte> data) const {
    a.proof = {};
    return HmacSha256(o_.secret)
        .add("tutti root")
        .add(bytes_of(h))
        .add(bytes_of(c))
        .add(bytes_of(a))
        .add(data)
        .digest();
  }

  [[nodiscard]] Hello hello(std::size_t bytes) const {
    Hello h{magic,  static_cast<std::uint32_t>(o_.rank), static_cast<std::uint32_t>(o_.size),
            round_, static_cast<std::uint32_t>(bytes),   {},
            draw()};
    std::copy(o_.job.begin(), o_.job.end(), h.job.begin());
    return h;
  }
  [[nodiscard]] std::string where() const { return "rendezvous at " + host_and_port(o_.host, port()); }

  // Rank 0 listens on the necessary addresses. It listens on all addresses only if ranks on other hosts connect to a
  // name, because they may resolve it to an address that this host does not know.
  [[nodiscard]] tcp::Socket listen() const {
    const int backlog = std::max(o_.size, 1024);
    int error = EADDRINUSE;
    for (int p = o_.port; p < o_.port + o_.ports; ++p) {
      std::string why;
      std::vector<tcp::Address> at = tcp::SystemLookup{}(o_.host, p, true, why);
      const bool is_number = !at.empty();
      if (!is_number && (o_.one_host || o_.host == "localhost"))
        at = tcp::addresses_of(o_.host, p, std::chrono::steady_clock::now() + std::chrono::seconds(10), why);
      for (const tcp::Address& a : at)
        if (auto s = tcp::listen_on(a, backlog, error)) return *std::move(s);
      if (!at.empty() && error == EADDRINUSE) continue;
      // The address does not belong to this host, for example because of address translation.
      for (const int family : {AF_INET6, AF_INET}) {
        if (auto s = tcp::listen_on(tcp::any_address(family, p), backlog, error)) return *std::move(s);
        if (error == EADDRINUSE) break;
      }
    }
    const std::string last = std::to_string(o_.port + o_.ports - 1);
    fail<CommunicationError>(
        "rendezvous",
        {"to listen at ", host_and_port(o_.host, o_.port), (o_.ports > 1 ? " or a port up to " + last : "")},
        tcp::error_text(error), error == EADDRINUSE ? "tutti-launch --root-port chooses another port" : "");
  }

  // Returns false if the parts do not fit into the socket's buffer at once: the client does not read.
  template <class... Part>
  static bool say(const Client& g, const Part&... part) {
    const auto now = std::chrono::steady_clock::now();
    return ((tcp::send_all(g.socket, part, now) == tcp::Transfer::done) && ...);
  }
  void answer(const Client& g, bool good, std::span<const std::byte> bytes, tcp::Moment deadline) const {
    Answer a{magic, good ? 1U : 0U, static_cast<std::uint32_t>(bytes.size()), {}};
    a.proof = root_proof(g.hello, g.challenge, a, bytes);
    if (tcp::send_all(g.socket, bytes_of(a), deadline) == tcp::Transfer::done)
      (void)tcp::send_all(g.socket, bytes, deadline);
  }
  void refuse(const Client& g, std::string_view why) const {
    answer(g, false, std::as_bytes(std::span(why.substr(0, max_text))), std::chrono::steady_clock::now());
  }
  // Rank 0 continues, because any process may connect with a wrong secret, and warns once.
  void refuse_secret(const Client& g) {
    refuse(g, "rank 0 has another TUTTI_SECRET");
    if (++refused_ > 1) return;
    refused_first_ = "as rank " + std::to_string(g.hello.rank) + " from " + g.from.text();
    if (o_.warn)
      o_.warn(where() + ": refused a process that connected " + refused_first_ + " with another TUTTI_SECRET");
  }
  // Refuses a client before it has proved anything; the client cannot verify the reason.
  static void turn_away(const Client& g, std::string_view why) {
    (void)say(g, bytes_of(Challenge{magic, 0, static_cast<std::uint32_t>(why.size()), {}}),
              std::as_bytes(std::span(why)));
  }

  // Rank 0's part.
  void serve(std::span<const std::byte> data, tcp::Moment deadline) {
    std::vector<Client> clients;
    const auto known = [](const Client& g) { return g.rank >= 0; };
    const auto there = [&] { return std::count_if(clients.begin(), clients.end(), known); };
    tcp::Moment accepts_from{};  // after a failure, so that accept() is not retried without a pause
    while (there() < o_.size - 1) {
      if (tcp::over(deadline)) give_up(clients);
      const bool accepts = tcp::over(accepts_from);
      std::vector<pollfd> polled{{accepts ? listener_.get() : -1, POLLIN, 0}};
      for (const Client& g : clients) polled.push_back({g.socket.get(), POLLIN, 0});
      // An interrupted poll() counts as one without events.
      if (::poll(polled.data(), polled.size(), tcp::left(deadline, accepts ? 200 : 20)) < 0) continue;
      for (std::size_t i = clients.size(); i-- > 0;) {
        const bool late = !known(clients[i]) && tcp::over(clients[i].until);
        if (late || (polled[i + 1].revents != 0 && !listen_to(clients, i, data.size())))
          clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[0].revents != 0 && !let_in(clients, deadline))
        accepts_from = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    }
    for (const Client& g : clients)
      if (known(g)) answer(g, true, data, deadline);
  }

  // Accepts waiting connections, a few at a time. Returns false if the system has no resources for another connection.
  bool let_in(std::vector<Client>& clients, tcp::Moment deadline) const {
    const auto stranger = [](const Client& g) { return g.rank < 0; };
    for (int few = 0; few < 64; ++few) {
      tcp::Address from;
      from.size = sizeof from.bytes;
      const int fd = ::accept4(listener_.get(), from.data(), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (static_cast<std::size_t>(std::count_if(clients.begin(), clients.end(), stranger)) >= max_strangers)
        clients.erase(std::find_if(clients.begin(), clients.end(), stranger));
      Client& g = clients.emplace_back();
      g.socket = tcp::Socket(fd);
      g.from = from;
      g.until = std::min(deadline, std::chrono::steady_clock::now() + patience);
    }
    return true;
  }

  // Reads a client's bytes. Returns false if the client must be dropped.
  bool listen_to(std::vector<Client>& clients, std::size_t i, std::size_t bytes) {
    Client& g = clients[i];
    if (g.rank >= 0) {
      // A waiting rank sends no more data; its connection can only end.
      std::byte more{};
      return ::recv(g.socket.get(), &more, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
    }
    const auto all =
        g.challenged ? std::as_writable_bytes(std::span(&g.proof, 1)) : std::as_writable_bytes(std::span(&g.hello, 1));
    const ssize_t n = ::recv(g.socket.get(), all.data() + g.got, all.size() - g.got, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    g.got += static_cast<std::size_t>(n);
    if (!g.challenged && std::memcmp(&g.hello, magic.data(), std::min(g.got, magic.size())) != 0) return false;
    if (g.got < all.size()) return true;
    return g.challenged ? admit(clients, g, bytes) : challenge(g);
  }
  bool challenge(Client& g) const {
    const std::string_view job(g.hello.job.data(), g.hello.job.size());
    if (!job.starts_with(o_.job) || job.find_first_not_of('\0', o_.job.size()) != job.npos)
      return turn_away(g, "another job is at this port"), false;
    g.challenge = {magic, 1, 0, draw()};
    g.challenged = true;
    g.got = 0;
    return say(g, bytes_of(g.challenge));
  }
  // Checks the proof of a client.
  bool admit(const std::vector<Client>& clients, Client& g, std::size_t bytes) {
    const Hello& h = g.hello;
    if (!same_digest(g.proof, rank_proof(h, g.challenge))) return refuse_secret(g), false;
    const auto size = static_cast<std::uint32_t>(o_.size);
    if (h.size != size || h.rank == 0 || h.rank >= size)
      return refuse(g, "rank 0 expects " + std::to_string(size) + " ranks"), false;
    if (h.round != round_ || h.bytes != bytes)
      return refuse(g, "rank 0 is at another call: number " + std::to_string(round_) + ", of " + std::to_string(bytes) +
                           " bytes"),
             false;
    const auto rank = static_cast<int>(h.rank);
    if (std::any_of(clients.begin(), clients.end(), [&](const Client& o) { return o.rank == rank; }))
      return refuse(g, "rank " + std::to_string(rank) + " has joined already"), false;
    g.rank = rank;
    return true;
  }

  [[noreturn]] void give_up(const std::vector<Client>& clients) const {
    std::string missing;
    for (int r = 1; r < o_.size; ++r)
      if (std::none_of(clients.begin(), clients.end(), [&](const Client& g) { return g.rank == r; }))
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
    for (const Client& g : clients)
      if (g.rank >= 0) refuse(g, "no message from " + missing);
    std::string got = "no message from " + missing;
    if (refused_ > 0)
      got += ", and " + std::to_string(refused_) + " with another TUTTI_SECRET, the first " + refused_first_;
    fail<CommunicationError>(where(), {"all ", o_.size, " ranks within ", time()}, got,
                             refused_ > 0 ? "give all ranks of the job the same secret, as tutti-launch does"
                                          : "check whether these ranks run and can reach this host");
  }
  [[nodiscard]] std::string time() const { return std::to_string(o_.deadline.count()) + " ms"; }

  // The part of all other ranks.
  void ask(std::span<std::byte> data, tcp::Moment deadline) {
    std::string why = "no connection";
    bool heard = false;
    auto pause = std::chrono::milliseconds(10);
    for (int turn = 0; !tcp::over(deadline); ++turn) {
      const auto now = std::chrono::steady_clock::now();
      const auto soon = o_.ports > 1 ? std::min(deadline, now + silence) : deadline;
      std::string reason;
      const auto socket = tcp::connect_to(o_.host, o_.port + turn % o_.ports, soon, reason);
      if (socket && ask_at(*socket, data, soon, deadline, reason)) return;
      // Reports an answer rather than a failed connection, also if they are of different ports.
      if (!reason.empty() && (socket || !heard)) why = reason;
      heard = heard || socket;
      if ((turn + 1) % o_.ports != 0) continue;
      // Rank 0 may not have started yet.
      std::this_thread::sleep_until(std::min(std::chrono::steady_clock::now() + pause, deadline));
      pause = std::min(2 * pause, std::chrono::milliseconds(500));
    }
    fail<CommunicationError>(where(), {"rank 0 within ", time()}, why,
                             "check whether rank 0 runs and this host can reach it");
  }

  // Returns whether the data arrived. Throws rank 0's refusal. A peer that cannot prove to be rank 0 is not believed,
  // and `why` mentions it.
  bool ask_at(const tcp::Socket& socket, std::span<std::byte> data, tcp::Moment soon, tcp::Moment deadline,
              std::string& why) {
    using tcp::Transfer;
    const Hello h = hello(data.size());
    Challenge c{};
    Answer a{};
    // Waits longer than rank 0, which first reports which ranks are missing.
    const auto later = deadline + after_rank_0;
    why = "no answer from rank 0";
    if (tcp::send_all(socket, bytes_of(h), deadline) != Transfer::done ||
        tcp::receive_all(socket, std::as_writable_bytes(std::span(&c, 1)), o_.ports > 1 ? soon : later) !=
            Transfer::done)
      return false;
    why = "an answer of another program";
    if (c.magic != magic) return false;
    if (c.good != 1) {
      std::vector<std::byte> text;
      if (receive_text(socket, c.bytes, text, deadline)) why = readable(text);
      return false;
    }
    why = "no answer from rank 0";
    const Digest256 proof = rank_proof(h, c);
    if (tcp::send_all(socket, bytes_of(proof), deadline) != Transfer::done ||
        tcp::receive_all(socket, std::as_writable_bytes(std::span(&a, 1)), later) != Transfer::done)
      return false;
    why = "an answer of another program";
    if (a.magic != magic || (a.good == 1 && a.bytes != data.size())) return false;
    std::vector<std::byte> more;
    if (!receive_text(socket, a.bytes, more, later)) return false;
    if (!same_digest(a.proof, root_proof(h, c, a, more))) {
      why = "an answer from a process without this TUTTI_SECRET";
      if (a.good == 0) learn_of_refusal(why);
      return false;
    }
    if (a.good != 1) fail<CommunicationError>(where(), {"to be admitted as rank ", o_.rank}, readable(more));
    std::copy(more.begin(), more.end(), data.begin());
    return true;
  }
  // The peer is a rank 0 with another secret, or a stranger; both look the same. With one port, rank 0 cannot listen
  // elsewhere, so this is an error. With several ports, rank 0 may use another port.
  void learn_of_refusal(std::string& why) {
    why = "rank 0 has another TUTTI_SECRET than this rank";
    if (o_.ports == 1)
      fail<CommunicationError>(where(), {"to be admitted as rank ", o_.rank}, why,
                               "give all ranks of the job the same secret, as tutti-launch does");
    if (++refused_ == 1 && o_.warn)
      o_.warn(where() + ": the process that listens there has another TUTTI_SECRET than rank " +
              std::to_string(o_.rank));
  }
  static bool receive_text(const tcp::Socket& socket, std::uint32_t size, std::vector<std::byte>& to,
                           tcp::Moment deadline) {
    if (size > max_data) return false;
    to.resize(size);
    return tcp::receive_all(socket, to, deadline) == tcp::Transfer::done;
  }
  [[nodiscard]] static std::string readable(std::span<const std::byte> text) {
    return printable({reinterpret_cast<const char*>(text.data()), text.size()});
  }

  RendezvousOptions o_;
  tcp::Socket listener_;
  std::uint32_t round_ = 0;
  std::int64_t refused_ = 0;   // connections refused because of the secret
  std::string refused_first_;  // the first refused connection
};

}  // namespace tutti
