// SPDX-License-Identifier: MIT
// Measures push and pull of gradients by parameter servers over ZeroMQ and through windows, and verifies the results.
// In turns with them, plain TCP moves the same bytes between the same processes over four streams. The program starts
// its processes itself, on this host.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/comm/net/tcp.hpp>
#include <tutti/core/error.hpp>
#ifdef TUTTI_HAS_ZEROMQ
#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/worker/worker.hpp>
#endif

#ifndef TUTTI_HAS_ZEROMQ
int main() {
  std::puts("built without ZeroMQ (Debian: apt-get install libzmq3-dev)");
  return 4;
}
#else

using namespace tutti;

namespace {

struct Args {
  std::size_t bytes = std::size_t{45} << 20;
  int workers = 2, servers = 1, turns = 7, rounds = 5, streams = 4;
};

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::puts(
          "usage: parameter_server [--bytes N] [--workers N] [--servers N] [--turns N] [--rounds N]\n"
          "Medians over turns of the median round: milliseconds, and bytes over all connections a second.");
      std::exit(0);
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    char* end = nullptr;
    const long long n = std::strtoll(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || n < 1 || n > (1LL << 32))
      fail<UsageError>(name, "a number from 1", std::string("'") + value + "'");
    if (name == "--bytes")
      a.bytes = static_cast<std::size_t>(n) / 64 * 64;
    else if (int* const to = name == "--workers"   ? &a.workers
                             : name == "--servers" ? &a.servers
                             : name == "--turns"   ? &a.turns
                             : name == "--rounds"  ? &a.rounds
                                                   : nullptr)
      *to = static_cast<int>(std::min<long long>(n, 64));
    else
      fail<UsageError>("command line", "an option of --help", "'" + name + "'");
  }
  return a;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// Sends texts from one process to another process.
struct Pipe {
  int ends[2]{-1, -1};
  Pipe() {
    if (::pipe(ends) != 0) fail<DeviceError>("pipe", "two descriptors", std::strerror(errno));
  }
  template <class T>
  void put(const T& v) const {
    if (::write(ends[1], &v, sizeof v) != ssize_t{sizeof v}) std::_Exit(1);
  }
  template <class T>
  T get() const {
    T v{};
    if (::read(ends[0], &v, sizeof v) != ssize_t{sizeof v}) fail<CommunicationError>("bench", "a number", "no data");
    return v;
  }
};

pid_t start(const std::function<void()>& f) {
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    f();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    code = 5;
  }
  std::_Exit(code);
}

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point t) { return std::chrono::duration<double, std::milli>(Clock::now() - t).count(); }

// Runs one job and returns the median time of a round on worker 0. server(index, port) writes its port to the pipe and
// serves. worker(rank, ports) returns the times of its rounds.
double job(const Args& a, const std::function<void(int, const Pipe&)>& server,
           const std::function<std::vector<double>(int, const std::vector<int>&)>& worker) {
  std::vector<Pipe> ports(static_cast<std::size_t>(a.servers));
  Pipe times;
  std::vector<pid_t> all;
  for (int s = 0; s < a.servers; ++s) all.push_back(start([&, s] { server(s, ports[static_cast<std::size_t>(s)]); }));
  std::vector<int> at;
  for (const Pipe& p : ports) at.push_back(p.get<int>());
  for (int w = 0; w < a.workers; ++w)
    all.push_back(start([&, w] {
      const auto took = worker(w, at);
      if (w == 0) times.put(median(took));
    }));
  const double ms = times.get<double>();
  for (const pid_t p : all) {
    int status = 0;
    ::waitpid(p, &status, 0);
    if (status != 0) fail<CommunicationError>("bench", "processes that end with status 0", std::to_string(status));
  }
  for (const Pipe& p : ports)
    for (const int fd : p.ends) ::close(fd);
  for (const int fd : times.ends) ::close(fd);
  return ms;
}

enum class Way { plain, curve, windows };
double over_zeromq(const Args& a, Way way) {
  const bool encrypted = way == Way::curve;
  using zeromq::KeyPair;
  zeromq::Options o;
  o.security.kind = encrypted ? zeromq::Security::Kind::curve : zeromq::Security::Kind::password;
  o.security.password = "bench";
  const auto key = [](const char* role, int i) { return KeyPair::of("bench", role + std::to_string(i)); };
  for (int w = 0; w < a.workers; ++w) o.security.workers.push_back(key("worker", w).open);
  return job(
      a,
      [&](int s, const Pipe& port) {
        zeromq::Options mine = o;
        mine.security.own = key("server", s);
        auto end = std::make_unique<zeromq::ServerEnd>("127.0.0.1:0", mine);
        port.put(end->port());
        ps::ServerOptions as;
        as.index = s;
        as.servers = a.servers;
        as.workers = a.workers;
        as.windows = way == Way::windows ? &ProcessWindows::of_process() : nullptr;
        ps::Server<zeromq::ServerEnd>(std::move(end), as).run();
      },
      [&](int rank, const std::vector<int>& ports) {
        zeromq::Options mine = o;
        mine.security.own = key("worker", rank);
        std::vector<zeromq::ServerEndpoint> at;
        for (std::size_t s = 0; s < ports.size(); ++s)
          at.push_back({"127.0.0.1:" + std::to_string(ports[s]), key("server", static_cast<int>(s)).open});
        ps::WorkerOptions as;
        as.rank = rank;
        as.workers = a.workers;
        as.servers = a.servers;
        as.windows = way == Way::windows ? &ProcessWindows::of_process() : nullptr;
        as.neighbours.assign(static_cast<std::size_t>(a.servers), true);
        ps::ServerCommunicator<zeromq::WorkerEnd> c(std::make_unique<zeromq::WorkerEnd>(rank, at, mine), as);
        const auto arena = c.allocate(a.bytes);
        float* const v = reinterpret_cast<float*>(arena.data());
        const std::size_t n = arena.size() / sizeof(float);
        std::vector<double> took;
        for (int round = 0; round <= a.rounds; ++round) {
          for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(rank));
          c.barrier(usual_deadline);
          const auto begin = Clock::now();
          c.all_reduce(DType::f32, arena, ReduceOp::sum, "bench").wait();
          if (round > 0) took.push_back(ms_since(begin));  // the first round maps the memory
          const auto w = static_cast<std::size_t>(a.workers);
          for (std::size_t i = 0; i < n; ++i)
            if (v[i] != static_cast<float>(i % 1000 * w + w * (w - 1) / 2))
              fail<CommunicationError>("bench", "the sum", std::to_string(v[i]));
        }
        return took;
      });
}

// Sends the part that each worker exchanges with each server over several streams, and back.
double over_tcp(const Args& a) {
  const std::size_t part = a.bytes / static_cast<std::size_t>(a.servers * a.streams);
  const auto far = [] { return Clock::now() + std::chrono::seconds(60); };
  return job(
      a,
      [&](int, const Pipe& port) {
        int error = 0;
        const auto any = tcp::any_address(AF_INET, 0);
        auto listener = tcp::listen_on(any, 64, error);
        if (!listener) fail<CommunicationError>("bench", "to listen", tcp::error_text(error));
        port.put(tcp::port_of(*listener));
        std::vector<std::thread> threads;
        for (int i = 0; i < a.workers * a.streams; ++i) {
          if (!tcp::wait_for(listener->get(), POLLIN, far())) std::_Exit(1);
          threads.emplace_back([&, fd = ::accept(listener->get(), nullptr, nullptr)] {
            const tcp::Socket s(fd);
            std::vector<std::byte> bytes(part);
            for (int round = 0; round <= a.rounds; ++round)
              if (tcp::receive_all(s, bytes, far()) != tcp::Transfer::done ||
                  tcp::send_all(s, bytes, far()) != tcp::Transfer::done)
                std::_Exit(1);
          });
        }
        for (auto& t : threads) t.join();
      },
      [&](int, const std::vector<int>& ports) {
        std::vector<std::byte> arena(a.bytes);
        std::vector<tcp::Socket> streams;
        std::string why;
        for (const int port : ports)
          for (int i = 0; i < a.streams; ++i) {
            auto s = tcp::connect_to("127.0.0.1", port, far(), why);
            if (!s) fail<CommunicationError>("bench", "to connect", why);
            streams.push_back(std::move(*s));
          }
        std::vector<double> took;
        for (int round = 0; round <= a.rounds; ++round) {
          const auto begin = Clock::now();
          std::vector<std::thread> threads;
          for (std::size_t i = 0; i < streams.size(); ++i)
            threads.emplace_back([&, i] {
              const auto mine = std::span(arena).subspan(i * part, part);
              if (tcp::send_all(streams[i], mine, far()) != tcp::Transfer::done ||
                  tcp::receive_all(streams[i], mine, far()) != tcp::Transfer::done)
                std::_Exit(1);
            });
          for (auto& t : threads) t.join();
          if (round > 0) took.push_back(ms_since(begin));
        }
        return took;
      });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args a = parse(argc, argv);
    std::vector<double> windows, plain, curve, tcp;
    for (int turn = 0; turn < a.turns; ++turn) {
      windows.push_back(over_zeromq(a, Way::windows));
      plain.push_back(over_zeromq(a, Way::plain));
      curve.push_back(over_zeromq(a, Way::curve));
      tcp.push_back(over_tcp(a));
    }
    const double moved = 2.0 * static_cast<double>(a.bytes) * a.workers;
    std::printf("%zu bytes, %d workers, %d servers, medians of %d turns\n", a.bytes, a.workers, a.servers, a.turns);
    const auto say = [&](const char* what, const std::vector<double>& ms) {
      std::printf("%-28s %8.1f ms (%.1f to %.1f) %6.2f GB/s\n", what, median(ms),
                  *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()),
                  moved / median(ms) / 1e6);
    };
    say("windows, nothing sent", windows);
    say("ZeroMQ", plain);
    say("ZeroMQ with CURVE", curve);
    say("TCP, 4 streams, nothing done", tcp);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
}

#endif
