// SPDX-License-Identifier: MIT
// Tests parameter servers over ZeroMQ: the conformance cases, with and without encryption, and refused connections.
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/comm/net/tcp.hpp>
#include <tutti/io/file.hpp>

#include "comm/conformance.hpp"
#include "strategy/server_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Worker = ps::ServerCommunicator<zeromq::WorkerEnd>;
using Kind = zeromq::Security::Kind;

// The connections of a job's workers and servers on this host.
struct Job {
  Kind kind;
  std::chrono::milliseconds lost_after = 10s;
  std::vector<zeromq::KeyPair> servers, workers;
  std::vector<zeromq::ServerEndpoint> endpoints;

  Job(Kind k, int server_count, int worker_count) : kind(k), endpoints(static_cast<std::size_t>(server_count)) {
    for (int s = 0; s < server_count; ++s) servers.push_back(zeromq::KeyPair::generate());
    for (int w = 0; w < worker_count; ++w) workers.push_back(zeromq::KeyPair::generate());
    for (std::size_t s = 0; s < servers.size(); ++s) endpoints[s].key = servers[s].open;
  }
  [[nodiscard]] zeromq::Options options() const {
    zeromq::Options o;
    o.lost_after = lost_after;
    o.security.kind = kind;
    o.security.password = "open sesame";
    return o;
  }
  std::unique_ptr<zeromq::ServerEnd> server(int s) {
    auto o = options();
    o.security.own = servers[static_cast<std::size_t>(s)];
    for (const auto& w : workers) o.security.workers.push_back(w.open);
    auto end = std::make_unique<zeromq::ServerEnd>("127.0.0.1:0", o);
    zeromq::ServerEndpoint& endpoint = endpoints[static_cast<std::size_t>(s)];
    endpoint.address = "127.0.0.1:" + std::to_string(end->port());
    endpoint.start += "again";
    return end;
  }
  std::unique_ptr<zeromq::WorkerEnd> worker(int r) {
    auto o = options();
    o.security.own = workers[static_cast<std::size_t>(r)];
    return std::make_unique<zeromq::WorkerEnd>(
        r, endpoints, o, [this](int s) { return std::optional(endpoints[static_cast<std::size_t>(s)]); });
  }
  testing::Ends<zeromq::ServerEnd, zeromq::WorkerEnd> ends() {
    return {[this](int s) { return server(s); }, [this](int r) { return worker(r); }};
  }
};

testing::ServerJobErrors run(Kind kind, const testing::ServerJob& job, const std::function<void(Worker&)>& f) {
  Job ends(kind, job.servers, job.workers);
  return testing::run_server_ranks(job, ends.ends(), f);
}
std::span<std::byte> bytes_of(std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); }

}  // namespace

TEST_CASE("zeromq: the conformance cases pass") {
  for (const auto kind : {Kind::password, Kind::curve})
    for (const auto& [workers, servers] : {std::pair{1, 1}, {2, 1}, {3, 2}})
      for (const auto& c : conformance::cases<Worker>()) {
        CAPTURE(workers);
        CAPTURE(servers);
        CAPTURE(c.name);
        CHECK_NOTHROW(run(kind, {.workers = workers, .servers = servers}, c.run).rethrow());
      }
}

TEST_CASE("zeromq: large sums are sent from the caller's memory") {
  constexpr std::size_t n = 3'000'000;
  for (const auto kind : {Kind::password, Kind::curve})
    run(kind, {.workers = 2, .servers = 2, .in_flight = std::size_t{4} << 20}, [&](Worker& c) {
      const auto own = c.allocate(n * sizeof(float));
      auto* v = reinterpret_cast<float*>(own.data());
      for (int round = 0; round < 3; ++round) {
        for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>((i + static_cast<std::size_t>(c.rank())) % 1000);
        c.all_reduce(DType::f32, own, ReduceOp::sum, "large").wait();
        for (std::size_t i = 0; i < n; ++i)
          if (v[i] != static_cast<float>(i % 1000 + (i + 1) % 1000))
            conformance::require(false, "element " + std::to_string(i) + " is " + std::to_string(v[i]));
      }
    }).rethrow();
}

TEST_CASE("zeromq: if a worker vanishes, the error names the worker at once") {
  for (const auto kind : {Kind::password, Kind::curve}) {
    Job ends(kind, 2, 2);
    const testing::ServerJob job{.workers = 2, .servers = 2};
    const auto errors =
        testing::run_with_servers(job, ends.ends(), [&](std::unique_ptr<zeromq::WorkerEnd> end, int rank) {
          if (rank == 1) {
            ps::Frame f;
            f.worker = 1;
            f.generation = 1;
            for (std::uint32_t s = 0; s < 2; ++s) {
              const auto greeting = ps::encode(ps::Greeting{s, 2, 2, 1000, "elsewhere"});
              f.bytes = static_cast<std::uint32_t>(greeting.size());
              end->send(s, ps::encode(f), greeting, nullptr);
            }
            for (int welcomes = 0; welcomes < 2; ++welcomes)
              CHECK(end->receive(std::chrono::steady_clock::now() + 30s).what ==
                    ps::Event<zeromq::Message>::What::message);
            return;
          }
          Worker c(std::move(end), testing::worker_options(job, rank));
          std::vector<float> v(10);
          c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 1 bucket 0").wait();
        });
    const std::string text = testing::ServerJobErrors::text(errors.workers[0]);
    CHECK_MESSAGE(text.find("rank 1 on elsewhere is gone: its connection ended") != std::string::npos, text);
  }
}

TEST_CASE("zeromq: strangers are not admitted, and the job continues") {
  for (const auto kind : {Kind::password, Kind::curve}) {
    CAPTURE(static_cast<int>(kind));
    Job ends(kind, 1, 2);
    const testing::ServerJob job{.workers = 2, .servers = 1};
    auto server_end = ends.server(0);
    const zeromq::ServerEnd& endpoint = *server_end;
    ps::Server<zeromq::ServerEnd> server(std::move(server_end), testing::server_options(job, 0));
    std::thread serves([&] { server.run(); });

    // A hundred connections send no data.
    std::vector<tcp::Socket> silent;
    std::string why;
    const int port = std::stoi(ends.endpoints[0].address.substr(ends.endpoints[0].address.rfind(':') + 1));
    for (int i = 0; i < 100; ++i) {
      auto s = tcp::connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 10s, why);
      REQUIRE_MESSAGE(s, why);
      silent.push_back(std::move(*s));
    }
    // Strangers have no key, another job's key, or another password.
    for (const auto by : {Kind::none, Kind::password, Kind::curve}) {
      zeromq::Options o;
      o.security.kind = by;
      o.security.password = "open barley";
      o.security.own = zeromq::KeyPair::generate();
      zeromq::WorkerEnd stranger(0, ends.endpoints, o);
      ps::WorkerOptions as = testing::worker_options(job, 0);
      as.patience = 5s;
      CHECK_THROWS_WITH_AS(
          ps::ServerCommunicator<zeromq::WorkerEnd>(std::make_unique<zeromq::WorkerEnd>(0, ends.endpoints, o), as),
          doctest::Contains("expected to be admitted as rank 0, got server 0 at 127.0.0.1:"), CommunicationError);
    }
    // A member of the job sends too much at once. The server closes its connection.
    {
      zeromq::Context context(1);
      zeromq::Socket big(context, ZMQ_DEALER);
      big.set(ZMQ_LINGER, 0);
      zeromq::Security by = ends.options().security;
      by.own = ends.workers[1];
      by.server_key = ends.endpoints[0].key;
      zeromq::secure_worker(big, by, 1);
      zeromq::Monitor watch(context, big, "big");
      REQUIRE(zmq_connect(big.get(), ("tcp://" + ends.endpoints[0].address).c_str()) == 0);
      const std::vector<char> much(ps::max_data + 1000);
      REQUIRE(zmq_send(big.get(), much.data(), much.size(), 0) > 0);
      zmq_pollitem_t p{watch.get(), 0, ZMQ_POLLIN, 0};
      CHECK(zmq_poll(&p, 1, 20'000) == 1);
      const auto said = watch.next();
      CHECK((said && said->event == ZMQ_EVENT_DISCONNECTED));
    }
    std::vector<std::thread> workers;
    for (int r = 0; r < 2; ++r)
      workers.emplace_back([&, r] {
        Worker c(ends.worker(r), testing::worker_options(job, r));
        std::vector<float> v(10, static_cast<float>(r + 1));
        c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "sum").wait();
        CHECK(v[9] == 3);
      });
    for (auto& w : workers) w.join();
    serves.join();
    CHECK(endpoint.turned_away() >= 1);
    CHECK(server.counts().pushes == 2);
  }
}

TEST_CASE("zeromq: refused connections are counted, and logged once for each kind") {
  for (const auto kind : {Kind::password, Kind::curve}) {
    CAPTURE(static_cast<int>(kind));
    Job job(kind, 1, 1);
    const auto server = job.server(0);
    std::vector<std::string> said;
    server->log_refusals("server 0", [&](const std::string& line) { said.push_back(line); });
    const auto until = [&](const std::function<bool()>& done) {
      for (const auto end = std::chrono::steady_clock::now() + 60s; !done() && std::chrono::steady_clock::now() < end;)
        (void)server->receive(std::chrono::steady_clock::now() + 20ms);
      CHECK(done());
    };
    const auto count = [&](const char* what) {
      return std::count_if(said.begin(), said.end(),
                           [&](const std::string& line) { return line.find(what) != std::string::npos; });
    };
    // Sends bytes of another protocol, or opens a connection without sending a byte.
    const auto raw = [&](const std::string& bytes) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      to.sin_port = htons(static_cast<std::uint16_t>(server->port()));
      REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
      if (!bytes.empty()) CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
      return io::Descriptor(fd);
    };
    {
      const auto http = raw("GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: a browser of some kind\r\n\r\n");
      until([&] { return server->turned_away() == 1; });
    }
    CHECK(said.size() == 1);
    for (int i = 0; i < 5; ++i) (void)raw("");
    until([&] { return server->turned_away() == 6; });
    CHECK(count("server 0 refused 1 connection: closed or silent") == 1);
    // Connects to the server with these options and this key.
    const auto stranger = [&](const zeromq::Options& o, const zeromq::KeyPair& key) {
      auto with_key = o;
      with_key.security.own = key;
      return std::make_unique<zeromq::WorkerEnd>(0, job.endpoints, with_key);
    };
    auto wrong = job.options();
    wrong.security.password = "open barley";
    {
      // A greeting of ZMTP 3.0 (rfc.zeromq.org/spec/23) with the mechanism NULL. ZeroMQ's own client would detect that
      // the mechanisms differ, and might close the connection before the server does.
      std::string greeting("\xFF\0\0\0\0\0\0\0\0\x7F\3\0NULL", 16);
      greeting.resize(64);
      const auto other = raw(greeting);
      until([&] { return count("without the job's encryption") == 1; });
    }
    {
      const auto other = stranger(wrong, zeromq::KeyPair::generate());
      until([&] { return count("with a key that is not one of the job's") == 1; });
    }
    // A further refused connection within the minute is counted, but not logged.
    const auto lines = said.size();
    const auto total = server->turned_away();
    (void)raw("");
    until([&] { return server->turned_away() > total; });
    CHECK(said.size() == lines);
  }
}

TEST_CASE("zeromq: refused connections of each kind are logged once a minute") {
  using zeromq::RefusedConnections;
  std::vector<std::string> said;
  RefusedConnections refused;
  refused.log_to("server 1", [&](const std::string& line) { said.push_back(line); });
  auto now = RefusedConnections::Clock::time_point{} + 1h;
  for (int i = 0; i < 1000; ++i) refused.count(RefusedConnections::Kind::silent, now += 10ms);
  CHECK((refused.total() == 1000 && said.size() == 1));
  refused.count(RefusedConnections::Kind::identity, now);
  CHECK(said.size() == 2);
  refused.say(now + 20s);
  CHECK(said.size() == 2);
  refused.say(now + 1min);
  REQUIRE(said.size() == 3);
  CHECK(said[0] == "server 1 refused 1 connection: closed or silent before the end of the handshake");
  CHECK(said[2] == "server 1 refused 999 connections: closed or silent before the end of the handshake");

  // Admitted connections that left before they sent a message do not count as refused.
  RefusedConnections ends;
  ends.hear(ZMQ_EVENT_HANDSHAKE_SUCCEEDED, now);
  ends.ended_unknown(now);
  CHECK(ends.total() == 0);
  ends.hear(ZMQ_EVENT_HANDSHAKE_FAILED_AUTH, now);
  ends.ended_unknown(now);
  CHECK(ends.total() == 1);
  ends.ended_unknown(now);
  CHECK(ends.total() == 2);
}

TEST_CASE("zeromq: the error for a port in use names the port") {
  Job ends(Kind::password, 1, 1);
  rlimit few{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &few) == 0);
  few.rlim_cur = std::min<rlim_t>(few.rlim_max, 200);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto first = ends.server(0);
  // A server raises its limit of descriptors to the highest that the system allows.
  rlimit now{};
  CHECK((::getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == few.rlim_max));
  CHECK_THROWS_WITH_AS(zeromq::ServerEnd(ends.endpoints[0].address, ends.options()),
                       doctest::Contains(("to listen at " + ends.endpoints[0].address).c_str()), CommunicationError);
}

TEST_CASE("zeromq: keys are derived from the secret of a job") {
  const auto of = [](std::string_view secret, std::string_view process) {
    return zeromq::KeyPair::of(secret, process);
  };
  CHECK(of("secret", "worker 0").open == of("secret", "worker 0").open);
  CHECK(of("secret", "worker 0").secret.size() == 40);
  std::set<std::string> all;
  for (const char* secret : {"secret", "another"})
    for (const char* process : {"worker 0", "worker 1", "server 0"}) {
      all.insert(of(secret, process).open);
      all.insert(of(secret, process).secret);
    }
  CHECK(all.size() == 12);
}

TEST_CASE("ZeroMQ: a worker connects to a server that has restarted at another port") {
  for (const Kind kind : {Kind::password, Kind::curve}) {
    Job job(kind, 1, 1);
    auto server = job.server(0);
    auto worker = job.worker(0);
    using What = ps::Event<zeromq::Message>::What;
    const auto says = [&](const char* text) {
      ps::Frame f;
      f.kind = ps::FrameKind::goodbye;
      f.bytes = static_cast<std::uint32_t>(std::string_view(text).size());
      CHECK(worker->send(0, ps::encode(f), std::as_bytes(std::span(text, f.bytes)), nullptr));
      const auto e = server->receive(std::chrono::steady_clock::now() + 20s);
      REQUIRE(e.what == What::message);
      CHECK(std::string(reinterpret_cast<const char*>(e.message.data().data()), e.message.data().size()) == text);
      CHECK(e.identity == "worker 0");
    };
    says("one");
    CHECK_FALSE(worker->reopen(0));  // the worker has already connected to this server
    server.reset();
    CHECK(worker->receive(std::chrono::steady_clock::now() + 20s).what == What::lost);
    CHECK_FALSE(worker->reopen(0));
    server = job.server(0);
    REQUIRE(worker->reopen(0));
    says("two");
  }
}
