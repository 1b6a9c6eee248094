// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/worker/worker.hpp>

namespace tutti::testing {

// Functions that make the connections of servers and workers, which are threads of one process.
template <class ServerEnd, class WorkerEnd>
struct Ends {
  using Server = ServerEnd;
  using Worker = WorkerEnd;
  std::function<std::unique_ptr<ServerEnd>(int server)> server;
  std::function<std::unique_ptr<WorkerEnd>(int worker)> worker;
};

struct ServerJob {
  int workers = 2, servers = 1;
  std::chrono::milliseconds deadline = std::chrono::seconds(60), patience = std::chrono::seconds(60);
  std::size_t in_flight = ps::usual_in_flight;
  std::uint64_t big_array = 1000;  // small, so that small data is divided too
  bool windows = false;            // all threads share memory, as if each were a process of one host
};

inline ps::ServerOptions server_options(const ServerJob& job, int index) {
  ps::ServerOptions o;
  o.index = index;
  o.servers = job.servers;
  o.workers = job.workers;
  o.patience = job.patience;
  o.in_flight = job.in_flight;
  return o;
}
inline ps::WorkerOptions worker_options(const ServerJob& job, int rank) {
  ps::WorkerOptions o;
  o.rank = rank;
  o.workers = job.workers;
  o.servers = job.servers;
  o.deadline = job.deadline;
  o.patience = job.patience + std::chrono::seconds(5);
  o.in_flight = job.in_flight;
  o.neighbours.assign(static_cast<std::size_t>(job.servers), true);
  o.big_array = job.big_array;
  return o;
}

// The errors of servers and workers. A pointer is null if there was no error.
struct ServerJobErrors {
  std::vector<std::exception_ptr> servers, workers;
  void rethrow() const {
    for (const auto* list : {&workers, &servers})
      for (const auto& e : *list)
        if (e) std::rethrow_exception(e);
  }
  static std::string text(const std::exception_ptr& e) {
    try {
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& x) {
      return x.what();
    }
    return "";
  }
};

// Runs f(end, rank) in a thread for each worker, and a server in a thread for each server.
template <class E>
ServerJobErrors run_with_servers(const ServerJob& job, const E& ends,
                                 const std::function<void(std::unique_ptr<typename E::Worker>, int rank)>& f) {
  ServerJobErrors errors;
  errors.servers.resize(static_cast<std::size_t>(job.servers));
  errors.workers.resize(static_cast<std::size_t>(job.workers));
  std::vector<std::thread> threads;
  for (int s = 0; s < job.servers; ++s) {
    auto end = ends.server(s);
    threads.emplace_back([&, s, end = std::move(end)]() mutable {
      ProcessWindows windows;
      ps::ServerOptions o = server_options(job, s);
      o.windows = job.windows ? &windows : nullptr;
      try {
        ps::Server<typename E::Server>(std::move(end), o).run();
      } catch (...) {
        errors.servers[static_cast<std::size_t>(s)] = std::current_exception();
      }
    });
  }
  for (int r = 0; r < job.workers; ++r)
    threads.emplace_back([&, r] {
      try {
        f(ends.worker(r), r);
      } catch (...) {
        errors.workers[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}
template <class E>
ServerJobErrors run_server_ranks(const ServerJob& job, const E& ends,
                                 const std::function<void(ps::ServerCommunicator<typename E::Worker>&)>& f) {
  return run_with_servers(job, ends, [&](std::unique_ptr<typename E::Worker> end, int rank) {
    ProcessWindows windows;
    ps::WorkerOptions o = worker_options(job, rank);
    o.windows = job.windows ? &windows : nullptr;
    ps::ServerCommunicator<typename E::Worker> c(std::move(end), o);
    f(c);
  });
}

}  // namespace tutti::testing
