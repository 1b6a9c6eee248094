// SPDX-License-Identifier: MIT
// Tests that a server over ZeroMQ accumulates no memory, descriptors or threads during a long run with connections of
// strangers.
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/worker/worker.hpp>

#include "core/sanitizers.hpp"
#include "strategy/server_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

struct Use {
  std::size_t kib, descriptors, threads;
};
std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}
Use use_now() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0;
  statm >> size >> resident;
  return {resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) / 1024, entries("/proc/self/fd"),
          entries("/proc/self/task")};
}

zeromq::Options options() {
  zeromq::Options o;
  o.security.kind = zeromq::Security::Kind::password;
  o.security.password = "open sesame";
  return o;
}

// Opens a connection of a stranger: it sends bytes of another protocol if `speaks`, otherwise no data.
io::Descriptor stranger(int port, bool speaks) {
  io::Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  const std::string words = "GET / HTTP/1.1\r\nHost: tutti\r\n\r\n";
  if (speaks) (void)!::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
  return fd;
}

}  // namespace

TEST_CASE("ZeroMQ: 10,000 pushes and 100 strangers do not change a server's resources") {
  constexpr int workers = 2;
  const testing::ServerJob job{.workers = workers, .servers = 1};
  auto end = std::make_unique<zeromq::ServerEnd>("127.0.0.1:0", options());
  const int port = end->port();
  std::string error;
  std::thread server([&] {
    try {
      ps::Server<zeromq::ServerEnd>(std::move(end), testing::server_options(job, 0)).run();
    } catch (const Error& e) {
      error = e.what();
    }
  });
  const zeromq::ServerEndpoint endpoint{"127.0.0.1:" + std::to_string(port)};
  std::optional<Use> before, after;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank)
    threads.emplace_back([&, rank] {
      ps::ServerCommunicator<zeromq::WorkerEnd> c(
          std::make_unique<zeromq::WorkerEnd>(rank, std::vector<zeromq::ServerEndpoint>{endpoint}, options()),
          testing::worker_options(job, rank));
      std::vector<float> v(512);
      const auto bytes = std::as_writable_bytes(std::span(v));
      const auto push = [&](int count) {
        for (int i = 0; i < count; ++i) {
          for (float& x : v) x = static_cast<float>(rank + 1);
          c.all_reduce(DType::f32, bytes, ReduceOp::sum, "load").wait();
          if (v.front() != 3 || v.back() != 3) error = "another sum";
        }
      };
      push(500);
      c.barrier(30s);
      if (rank == 0) before = use_now();
      std::vector<io::Descriptor> strangers;
      if (rank == 0)
        for (int i = 0; i < 100; ++i) strangers.push_back(stranger(port, i % 2 == 0));
      push(5000);  // 5,000 steps of two workers
      strangers.clear();
      c.barrier(30s);
      if (rank == 0) {
        // Waits until the server has closed the strangers' connections.
        for (int i = 0; i < 200 && use_now().descriptors > before->descriptors; ++i) std::this_thread::sleep_for(50ms);
        after = use_now();
      }
      c.barrier(30s);
    });
  for (auto& t : threads) t.join();
  server.join();
  CHECK(error.empty());
  REQUIRE(before);
  REQUIRE(after);
  CHECK(after->threads == before->threads);
  CHECK(after->descriptors == before->descriptors);
#if !defined(TUTTI_TEST_ASAN)  // the sanitizer keeps freed memory for long
  CHECK_MESSAGE(after->kib < before->kib + 8 * 1024, after->kib << " KiB after " << before->kib);
#endif
}
