// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/transport.hpp>

#include "network.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// The connections between workers and servers. It replaces ZeroMQ (backends/zeromq/zeromq.hpp): a send never waits,
// messages of different peers arrive in any order, each connection is a new peer, and the two ends of a connection that
// breaks learn of it at different times. A process that is killed may not have sent its newest messages. A message may
// arrive twice, which the frames allow (wire/frames.hpp).
class ServerMesh {
 public:
  struct Link {
    std::array<Process*, 2> owners{};  // the worker, the server
    std::array<int, 2> sockets{-1, -1};
    std::array<Nanos, 2> breaks{never, never};  // time at which an end learns that the connection is broken
    std::int64_t peer = 0;                      // number of the connection
    int worker = 0, server = 0;
  };
  class End;
  struct Listener {
    Process* process = nullptr;
    End* end = nullptr;
    std::uint64_t starts = 0;
  };

  ServerMesh(Network& network, int servers) : network_(network), listeners_(static_cast<std::size_t>(servers)) {}
  [[nodiscard]] int servers() const noexcept { return static_cast<int>(listeners_.size()); }
  [[nodiscard]] bool listens(int server) const {
    const Listener& l = listeners_[static_cast<std::size_t>(server)];
    return l.end != nullptr && l.process->runs();
  }
  // Returns whether the addresses of all servers are known. once: the address of a lost server counts, too.
  [[nodiscard]] bool all_listen(bool once) const {
    for (int s = 0; s < servers(); ++s)
      if (once ? listeners_[static_cast<std::size_t>(s)].starts == 0 : !listens(s)) return false;
    return true;
  }
  [[nodiscard]] std::deque<Link>& links() noexcept { return links_; }
  // One in `rate` messages arrives twice; 0: none.
  void repeat(std::uint64_t rate) noexcept { repeats_ = rate; }
  // Call it before a process is killed: takes back some of the newest messages that it has sent.
  void lose_unsent(const Process& p) {
    for (Link& l : links_)
      for (const std::size_t side : {0U, 1U})
        if (l.owners[side] == &p) network_.take_back(l.sockets[side], Scheduler::current()->noise().below(4));
  }

  // An end of the transport: of a worker, or of a server.
  class End {
   public:
    class Message {
     public:
      Message() = default;
      explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
      [[nodiscard]] std::span<const std::byte> head() const noexcept {
        return std::as_bytes(std::span(bytes_)).first(std::min(bytes_.size(), ps::head_bytes));
      }
      [[nodiscard]] std::span<const std::byte> data() const noexcept {
        return std::as_bytes(std::span(bytes_)).subspan(head().size());
      }

     private:
      std::string bytes_;
    };

    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
      for (Link* l : links_) close(l);
      if (is_server_) mesh_.listeners_[static_cast<std::size_t>(number_)].end = nullptr;
    }
    [[nodiscard]] std::string name() const { return "simulation"; }
    [[nodiscard]] std::string peer_name(std::int64_t peer) const { return "peer " + std::to_string(peer); }
    bool send(std::int64_t peer, std::span<const std::byte> head, std::span<const std::byte> data, ps::PendingSends*) {
      Link* const l = link(peer);
      if (l == nullptr) return false;
      const auto* const socket = mesh_.network_.find(l->sockets[side_]);
      if (socket == nullptr || l->breaks[side_] <= Scheduler::current()->now()) return true;  // ZeroMQ keeps it
      std::string bytes(reinterpret_cast<const char*>(head.data()), head.size());
      bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
      if (Scheduler::current()->noise().one_in(mesh_.repeats_)) mesh_.network_.send(*socket, bytes);
      mesh_.network_.send(*socket, std::move(bytes));
      return true;
    }
    ps::Event<Message> receive(ps::Moment deadline) {
      Scheduler& s = *Scheduler::current();
      const Nanos until = deadline.time_since_epoch().count();
      for (;;) {
        s.point();
        std::vector<Link*> ready;
        Nanos next = s.process().clocks.time_of(CLOCK_MONOTONIC, until);
        const bool over = next <= s.now();
        for (Link* l : links_) {
          const Nanos at = l == nullptr ? never : std::min(arrival(*l), l->breaks[side_]);
          if (at <= s.now()) ready.push_back(l);
          next = std::min(next, at);
        }
        if (!ready.empty()) return take(*ready[s.noise().below(ready.size())]);
        if (std::exchange(woken_, false) || over) return {};
        (void)s.block(&s.process(), "servers", Network::moment(s.process(), next));
      }
    }
    void wake() noexcept {
      woken_ = true;
      Scheduler::current()->wake_all(&Scheduler::current()->process());
    }

   protected:
    friend class ServerMesh;
    End(ServerMesh& mesh, bool is_server, int number)
        : mesh_(mesh), is_server_(is_server), side_(is_server ? 1 : 0), number_(number) {}

    [[nodiscard]] Link* link(std::int64_t peer) const {
      if (!is_server_) return links_[static_cast<std::size_t>(peer)];
      for (Link* l : links_)
        if (l->peer == peer) return l;
      return nullptr;
    }
    [[nodiscard]] Nanos arrival(const Link& l) const {
      auto* const socket = mesh_.network_.find(l.sockets[side_]);
      return socket == nullptr ? never : mesh_.network_.readable_at(*socket);
    }
    // Returns messages that the peer sent before the connection ended, and then the end.
    ps::Event<Message> take(Link& l) {
      ps::Event<Message> e;
      e.peer = is_server_ ? l.peer : l.server;
      if (is_server_) e.identity = "worker " + std::to_string(l.worker);
      std::string bytes;
      if (const Nanos at = arrival(l); at <= Scheduler::current()->now() && at <= l.breaks[side_])
        bytes = mesh_.network_.take(*mesh_.network_.find(l.sockets[side_]));
      e.what = bytes.empty() ? ps::Event<Message>::What::lost : ps::Event<Message>::What::message;
      if (bytes.empty()) {
        e.why = "its connection ended";
        close(&l);
        if (is_server_)
          std::erase(links_, &l);
        else
          links_[static_cast<std::size_t>(l.server)] = nullptr;
      }
      e.message = Message(std::move(bytes));
      return e;
    }
    void close(Link* l) {
      if (l != nullptr) mesh_.network_.close(l->sockets[side_]);
    }

    ServerMesh& mesh_;
    bool is_server_;
    std::size_t side_;
    int number_;
    std::vector<Link*> links_;  // of a worker: by the servers' numbers, null after the loss of a server
    bool woken_ = false;
  };

  class WorkerEnd : public End {
   public:
    WorkerEnd(ServerMesh& mesh, int number) : End(mesh, false, number), starts_(mesh.listeners_.size()) {
      for (int s = 0; s < mesh.servers(); ++s) links_.push_back(connect(s));
    }
    // Connects again to a server that was started again.
    bool reopen(std::int64_t s) {
      const auto i = static_cast<std::size_t>(s);
      if (!mesh_.listens(static_cast<int>(s)) || mesh_.listeners_[i].starts == starts_[i]) return false;
      close(links_[i]);
      links_[i] = connect(static_cast<int>(s));
      return true;
    }

   private:
    // If the server does not run, ZeroMQ tries again for ever, and no message arrives.
    Link* connect(int server) {
      const Listener& to = mesh_.listeners_[static_cast<std::size_t>(server)];
      starts_[static_cast<std::size_t>(server)] = to.starts;
      Link& l = mesh_.links_.emplace_back();
      l.worker = number_;
      l.server = server;
      l.peer = static_cast<std::int64_t>(mesh_.links_.size());
      if (!mesh_.listens(server)) return &l;
      l.owners = {&Scheduler::current()->process(), to.process};
      const auto ends = mesh_.network_.connect(*l.owners[0], *l.owners[1]);
      l.sockets = {ends.first, ends.second};
      to.end->links_.push_back(&l);
      return &l;
    }
    std::vector<std::uint64_t> starts_;
  };
  class ServerEnd : public End {
   public:
    ServerEnd(ServerMesh& mesh, int number) : End(mesh, true, number) {
      Listener& mine = mesh.listeners_[static_cast<std::size_t>(number)];
      mine = {&Scheduler::current()->process(), this, mine.starts + 1};
    }
  };

 private:
  Network& network_;
  std::uint64_t repeats_ = 0;
  std::vector<Listener> listeners_;
  std::deque<Link> links_;
};
static_assert(ps::Reopening<ServerMesh::WorkerEnd> && ps::Transport<ServerMesh::ServerEnd>);

}  // namespace tutti::simulation
