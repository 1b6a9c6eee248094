// SPDX-License-Identifier: MIT
// Measures what a sum of two ranks on different hosts costs, between two network namespaces: over Gloo with f32 and
// bf16 on the wire, next to the least that it can cost, which is the kernel's copies of plain TCP sockets and the
// additions. bench/two_hosts.py makes the namespaces and runs it. Prints one line of JSON with medians, processor times
// for one rank.
//   network_sums NAMESPACE ADDRESS NAMESPACE ADDRESS [MEGABYTES [ROUNDS]]
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t block = std::size_t{1} << 20, cached = std::size_t{1} << 17;

double thread_time() {  // seconds of processor time of this thread
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double process_time() {  // seconds of processor time of all threads
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Moves this thread to a network namespace.
void enter(const std::string& network) {
  const io::Descriptor file = io::Descriptor::open("/run/netns/" + network, O_RDONLY, "network namespace");
  if (::setns(file.get(), CLONE_NEWNET) != 0)
    fail<Error>(network, "a network namespace that this user may enter", tcp::error_text(errno));
}

// Sends `bytes` and receives as many, both at once with one thread, as a rank of two does in a sum. take: called for
// each received part.
template <class Take>
void exchange(const tcp::Socket& s, std::span<const std::byte> bytes, Take&& take) {
  std::vector<std::byte> room(cached);
  std::size_t sent = 0, received = 0;
  while (sent < bytes.size() || received < bytes.size()) {
    bool moved = false;
    if (sent < bytes.size()) {
      const ssize_t n = ::send(s.get(), bytes.data() + sent, std::min(block, bytes.size() - sent), MSG_NOSIGNAL);
      if (n > 0) {
        sent += static_cast<std::size_t>(n);
        moved = true;
      } else if (errno != EAGAIN && errno != EINTR) {
        fail<CommunicationError>("network_sums", "a connection", tcp::error_text(errno));
      }
    }
    if (received < bytes.size()) {
      const ssize_t n = ::recv(s.get(), room.data(), std::min(room.size(), bytes.size() - received), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        fail<CommunicationError>("network_sums", "a connection", "its end");
      if (n > 0) {
        take(received, std::span(room).first(static_cast<std::size_t>(n)));
        received += static_cast<std::size_t>(n);
        moved = true;
      }
    }
    if (moved) continue;
    pollfd p{s.get(), static_cast<short>((sent < bytes.size() ? POLLOUT : 0) | POLLIN), 0};
    ::poll(&p, 1, 1000);
  }
}

struct Measured {
  std::vector<double> wall, processor;  // seconds of an exchange
};

Measured exchanges(const tcp::Socket& s, std::size_t bytes, int rounds) {
  Measured m;
  const std::vector<std::byte> data(bytes, std::byte{1});
  for (int i = -2; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const double before = thread_time();
    exchange(s, data, [](std::size_t, std::span<std::byte>) {});
    if (i < 0) continue;
    m.processor.push_back(thread_time() - before);
    m.wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return m;
}

// Returns the seconds that it takes to add received values, which are in a cache, to this many bytes of f32.
double sum_time(std::size_t bytes) {
  std::vector<std::byte> values(bytes / 64 * 64), room(cached);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    const double start = thread_time();
    for (std::size_t at = 0; at < values.size(); at += cached) {
      const std::array<std::byte*, 2> from{values.data() + at, room.data()};
      const std::array<std::byte*, 1> to{values.data() + at};
      combine(DType::f32, ReduceOp::sum, from, to, 0, std::min(cached, values.size() - at) / 4);
    }
    times.push_back(thread_time() - start);
  }
  return median(times);
}

struct Place {
  std::string network, address;
};

// Sums over Gloo, with each type on the wire in turns.
std::array<Measured, 2> gloo_sums(const std::array<Place, 2>& places, std::size_t bytes, int rounds) {
  std::array<Measured, 2> found;
  std::array<MemoryKeyStore, 2> stores;
  const auto rank = [&](std::size_t r) {
    enter(places[r].network);
    std::array<InterruptFlag, 2> flags;
    std::array<std::unique_ptr<GlooCommunicator>, 2> groups;
    for (std::size_t g = 0; g < 2; ++g) {
      GlooOptions o;
      o.rank = static_cast<int>(r);
      o.size = 2;
      o.hosts = {"a", "b"};
      o.address = places[r].address;
      o.wire = g == 0 ? WireType::same : WireType::bf16;
      groups[g] = std::make_unique<GlooCommunicator>(o, stores[g], flags[g]);
    }
    std::vector<float> values(bytes / 4);
    for (int i = -2; i < rounds; ++i)
      for (std::size_t g = 0; g < 2; ++g) {
        std::fill(values.begin(), values.end(), 1.5F);
        groups[g]->barrier(60s);
        const auto start = std::chrono::steady_clock::now();
        const double before = process_time();
        groups[g]->all_reduce(DType::f32, std::as_writable_bytes(std::span(values)), ReduceOp::sum, "values").wait();
        groups[g]->barrier(60s);
        if (i < 0 || r != 0) continue;
        found[g].processor.push_back((process_time() - before) / 2);
        found[g].wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
  };
  std::thread other([&] { rank(1); });
  std::thread([&] { rank(0); }).join();
  other.join();
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 5) fail<UsageError>("network_sums", "NAMESPACE ADDRESS NAMESPACE ADDRESS", "fewer arguments");
    const std::size_t bytes = (argc > 5 ? std::strtoul(argv[5], nullptr, 10) : 45) * 1'000'000;
    const int rounds = std::max(1, argc > 6 ? std::atoi(argv[6]) : 11);
    std::promise<int> port;
    std::exception_ptr error;
    std::thread other([&] {
      try {
        enter(argv[3]);
        std::string why;
        const auto s = tcp::connect_to(argv[2], port.get_future().get(), std::chrono::steady_clock::now() + 10s, why);
        if (!s) fail<CommunicationError>("network_sums", {"a connection to ", argv[2]}, why);
        exchanges(*s, bytes, rounds);
      } catch (...) {
        error = std::current_exception();
      }
    });
    Measured m;
    std::thread([&] {
      enter(argv[1]);
      std::string why;
      int number = 0;
      const auto found = tcp::addresses_of(argv[2], 0, std::chrono::steady_clock::now() + 10s, why);
      const auto listener = tcp::listen_on(found.at(0), 1, number);
      if (!listener) fail<CommunicationError>("network_sums", "a port to listen on", tcp::error_text(number));
      port.set_value(tcp::port_of(*listener));
      static_cast<void>(tcp::wait_for(listener->get(), POLLIN, std::chrono::steady_clock::now() + 10s));
      const tcp::Socket s(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      m = exchanges(s, bytes, rounds);
    }).join();
    other.join();
    if (error) std::rethrow_exception(error);
    const auto sums = gloo_sums({Place{argv[1], argv[2]}, Place{argv[3], argv[4]}}, bytes, rounds);
    std::printf(
        "{\"f32_ms\": %.2f, \"f32_cpu_ms\": %.2f, \"bf16_ms\": %.2f, \"bf16_cpu_ms\": %.2f, "
        "\"megabytes\": %.1f, \"exchange_ms\": %.2f, \"exchange_cpu_ms\": %.2f, \"gbytes_per_s\": %.2f, "
        "\"half_sum_cpu_ms\": %.2f}\n",
        1e3 * median(sums[0].wall), 1e3 * median(sums[0].processor), 1e3 * median(sums[1].wall),
        1e3 * median(sums[1].processor), static_cast<double>(bytes) / 1e6, 1e3 * median(m.wall),
        1e3 * median(m.processor), static_cast<double>(bytes) / median(m.wall) / 1e9, 1e3 * sum_time(bytes / 2));
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "network_sums: %s\n", e.what());
    return e.exit_code();
  }
}
