// SPDX-License-Identifier: MIT
// Tests the rendezvous of ranks over TCP when strangers connect or listen.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>

#include "core/sanitizers.hpp"
#include "rendezvous_ranks.hpp"

using namespace tutti;
using namespace tutti::rendezvous_test;

namespace {

// Writes to the port as a stranger. The connection stays open during the lifetime of the result.
tcp::Socket stranger(int port, const std::string& says) {
  std::string why;
  auto s = tcp::connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 5s, why);
  REQUIRE_MESSAGE(s, why);
  (void)tcp::send_all(*s, std::as_bytes(std::span(says)), std::chrono::steady_clock::now() + 5s);
  return *std::move(s);
}

// Records all bytes between a rank and rank 0, until the rank has sent a given number of bytes.
struct Wiretap {
  tcp::Socket listener = open_door();
  std::string heard;
  std::thread thread;
  explicit Wiretap(int to)
      : thread([this, to] {
          const auto end = std::chrono::steady_clock::now() + 10s;
          if (!tcp::wait_for(listener.get(), POLLIN, end)) return;
          const tcp::Socket rank(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
          std::string why;
          const auto root = tcp::connect_to("127.0.0.1", to, end, why);
          if (!root) return;
          for (std::array<pollfd, 2> p{{{rank.get(), POLLIN, 0}, {root->get(), POLLIN, 0}}};
               ::poll(p.data(), p.size(), 5000) > 0;) {
            for (const std::size_t from : {0U, 1U}) {
              if (p[from].revents == 0) continue;
              std::array<std::byte, 4096> some{};
              const ssize_t n = ::recv(p[from].fd, some.data(), some.size(), 0);
              if (n <= 0) return;
              const auto bytes = std::span(some).first(static_cast<std::size_t>(n));
              heard.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
              (void)tcp::send_all(from == 0 ? *root : rank, bytes, end);
            }
          }
        }) {}
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;
  ~Wiretap() { thread.join(); }
};

// Listens, and sends the same bytes to each client.
class Impostor {
 public:
  explicit Impostor(std::string says) : says_(std::move(says)), thread_([this] { run(); }) {}
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  ~Impostor() {
    over_ = true;
    thread_.join();
  }
  [[nodiscard]] int port() const { return tcp::port_of(door_); }

 private:
  void run() {
    for (const auto end = std::chrono::steady_clock::now() + 10s; !over_;) {
      if (!tcp::wait_for(door_.get(), POLLIN, std::chrono::steady_clock::now() + 20ms)) continue;
      const tcp::Socket s(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      (void)tcp::send_all(s, std::as_bytes(std::span(says_)), end);
      std::array<std::byte, 152> hello{};
      (void)tcp::receive_all(s, hello, std::chrono::steady_clock::now() + 1s);
    }
  }
  tcp::Socket door_ = open_door();
  std::string says_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("strangers are refused, and the job continues") {
  TcpRendezvous root(options(0, 0, 2));
  const int port = root.port();
  // Only an answer of rank 0 with a valid proof is final: a stranger may hold the port for a while.
  std::map<std::string, RendezvousOptions> wrong{
      {"another job is at this port", options(port, 1, 2, 200ms, "fedcba9876543210")},
      {"another job is at this port.", options(port, 1, 2, 200ms, "0123456789abcde")},
      {"expects 2 ranks", options(port, 2, 3, 5s)},
  };
  Bytes data{};
  data.fill(3);
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  for (const auto& [says, o] : wrong) {
    Other one(o);
    one.join();
    CHECK_MESSAGE(has(one.error, says), one.error);
  }
  Other right(options(port, 1, 2));
  right.join();
  serving.join();
  CHECK(error == "");
  CHECK(right.error == "");
  CHECK(right.data == data);
}

TEST_CASE("a rank with another secret ends at once, and rank 0 reports the rank once and continues") {
  std::vector<std::string> warnings;
  RendezvousOptions o = options(0, 0, 2);
  o.warn = [&](const std::string& text) { warnings.push_back(text); };
  TcpRendezvous root(o);
  Bytes data{};
  data.fill(19);
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    Other wrong(options(root.port(), 1, 2, 60s, o.job, "a secret of the test"));
    wrong.join();
    CHECK_MESSAGE(has(wrong.error, "rank 0 has another TUTTI_SECRET than this rank. hint: give all ranks"),
                  wrong.error);
  }
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  Other right(options(root.port(), 1, 2));
  right.join();
  serving.join();
  CHECK(error == "");
  CHECK(right.error == "");
  CHECK(right.data == data);
  REQUIRE(warnings.size() == 1);
  CHECK_MESSAGE(has(warnings[0], "refused a process that connected as rank 1 from 127.0.0.1 with another TUTTI_SECRET"),
                warnings[0]);
}

TEST_CASE("if ranks are missing, the error of rank 0 says how many had another secret") {
  TcpRendezvous root(options(0, 0, 3, 1500ms));
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  for (const int rank : {2, 1}) Other(options(root.port(), rank, 3, 60s, "0123456789abcdef", "another secret")).join();
  serving.join();
  CHECK_MESSAGE(has(error,
                    "no message from rank 1, rank 2, and 2 with another TUTTI_SECRET, the first as rank 2 from "
                    "127.0.0.1. hint: give all ranks"),
                error);
}

TEST_CASE("a rank that a stranger refuses at one of several ports prints a warning and joins rank 0 at another port") {
  Impostor impostor("tuttirv2" + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'n') + "tuttirv2" +
                    std::string("\0\0\0\0\4\0\0\0", 8) + std::string(32, 'p') + "away");
  auto o = options(impostor.port(), 1, 2);
  o.ports = 3;
  std::vector<std::string> warnings;
  o.warn = [&](const std::string& text) { warnings.push_back(text); };
  Other one(o);
  std::this_thread::sleep_for(500ms);
  o.rank = 0;
  TcpRendezvous root(o);
  Bytes data{};
  data.fill(23);
  CHECK(trouble(root, data) == "");
  one.join();
  CHECK(one.error == "");
  CHECK(one.data == data);
  REQUIRE(warnings.size() == 1);
  CHECK_MESSAGE(has(warnings[0], "the process that listens there has another TUTTI_SECRET than rank 1"), warnings[0]);
}

TEST_CASE("invalid bytes on the port have no effect") {
  TcpRendezvous root(options(0, 0, 2));
  const int port = root.port();
  std::vector<tcp::Socket> open;
  Bytes data{};
  data.fill(9);
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  for (const std::string& says :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(), std::string("tutt"), std::string(5000, '\xff'),
        std::string("tuttirv2") + std::string(16 + 64 + 32, '\xff'), std::string("tuttirv2") + std::string(40, 'x')})
    open.push_back(stranger(port, says));
  (void)stranger(port, "closed at once");
  Other right(options(port, 1, 2));
  right.join();
  serving.join();
  CHECK(error == "");
  CHECK(right.error == "");
  CHECK(right.data == data);
}

TEST_CASE("a rank rejects the answers of another program at the port of rank 0") {
  const tcp::Socket listener = open_door();
  const int port = tcp::port_of(listener);
  std::thread other([&] {
    for (const auto end = std::chrono::steady_clock::now() + 600ms; std::chrono::steady_clock::now() < end;) {
      if (!tcp::wait_for(listener.get(), POLLIN, end)) continue;
      const tcp::Socket s(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const std::string text(200, 'h');
      (void)tcp::send_all(s, std::as_bytes(std::span(text)), end);
    }
  });
  TcpRendezvous meet(options(port, 1, 2, 400ms));
  Bytes data{};
  const std::string error = trouble(meet, data);
  other.join();
  CHECK_MESSAGE((has(error, "another program") || has(error, "no answer")), error);
}

TEST_CASE("the secret is not sent, and a repeated proof is refused") {
  TcpRendezvous root(options(0, 0, 3));
  Bytes data{};
  data.fill(11);
  std::string error, said;
  std::thread serving([&] { error = trouble(root, data); });
  {
    Wiretap tap(root.port());
    Other one(options(tcp::port_of(tap.listener), 1, 3));
    // By now the rank has sent its hello and its proof. Rank 0 sends no data before rank 2 has joined.
    std::this_thread::sleep_for(300ms);
    Other two(options(root.port(), 2, 3));
    two.join();
    one.join();
    CHECK(one.error == "");
    CHECK(one.data == data);
    serving.join();
    tap.thread.join();
    said = tap.heard;
    tap.thread = std::thread([] {});
  }
  CHECK(error == "");
  CHECK(has(said, "0123456789abcdef"));  // the public name of the job
  CHECK_FALSE(has(said, "a secret"));
  // Rank 0 refuses a client that repeats these bytes as rank 2, because rank 0 has drawn another random number.
  TcpRendezvous again(options(0, 0, 2, 500ms));
  std::thread waiting([&] { error = trouble(again, data); });
  const std::size_t hello = 8 + 16 + 64 + 32, challenge = 8 + 8 + 32;
  const auto thief = stranger(again.port(), said.substr(0, hello) + said.substr(hello + challenge, 32));
  waiting.join();
  CHECK_MESSAGE(has(error, "no message from rank 1"), error);
}

TEST_CASE("strangers neither delay admission nor keep a core busy, whatever they send") {
  TcpRendezvous root(options(0, 0, 4));
  Bytes data{};
  data.fill(5);
  std::string error;
  std::atomic<double> busy{0};
  std::thread serving([&] {
    error = trouble(root, data);
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    busy = static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  });
  // More idle connections than the limit.
  std::vector<tcp::Socket> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(stranger(root.port(), i % 2 == 0 ? "" : "tuttirv2"));
  std::mt19937 draw(1);
  const auto start = std::chrono::steady_clock::now();
  Other one(options(root.port(), 1, 4));
  // A correct beginning with a wrong bit, followed by noise.
  for (int i = 0; i < 200; ++i) {
    std::string says = "tuttirv2";
    for (const std::uint32_t number : {2U, 4U, 1U, 128U}) says.append(reinterpret_cast<const char*>(&number), 4);
    says += "0123456789abcdef" + std::string(48, '\0');
    for (int k = 0; k < 64; ++k) says += static_cast<char>(draw());
    if (i % 4 != 0) says[draw() % says.size()] ^= static_cast<char>(1U << draw() % 8);
    if (i % 3 == 0) says.resize(draw() % says.size());
    idle.push_back(stranger(root.port(), says));
  }
  Other two(options(root.port(), 2, 4));
  std::this_thread::sleep_for(500ms);
  Other three(options(root.port(), 3, 4));
  for (Other* o : {&one, &two, &three}) o->join();
  serving.join();
  CHECK(error == "");
  for (const Other* o : {&one, &two, &three}) CHECK_MESSAGE((o->error == "" && o->data == data), o->error);
  CHECK(std::chrono::steady_clock::now() - start < 8s);
#if !defined(TUTTI_TEST_ASAN) && !defined(TUTTI_TEST_TSAN)  // with a sanitizer, 600 greetings take longer
  CHECK_MESSAGE(busy < 0.25, busy.load());
#endif
}

TEST_CASE("answers of a stranger at rank 0's port are rejected, and rank 0 may start later") {
  // A challenge, and an answer with data that does not depend on the rank's proof.
  auto impostor =
      std::make_unique<Impostor>("tuttirv2" + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'n') + "tuttirv2" +
                                 std::string("\1\0\0\0\x80\0\0\0", 8) + std::string(32, 'p') + std::string(128, 'd'));
  const int port = impostor->port();
  TcpRendezvous hasty(options(port, 1, 2, 300ms));
  Bytes nothing{};
  const std::string error = trouble(hasty, nothing);
  CHECK_MESSAGE(has(error, "a process without this TUTTI_SECRET"), error);
  CHECK(nothing[0] == 0);
  Other one(options(port, 1, 2));
  std::this_thread::sleep_for(200ms);
  impostor.reset();
  TcpRendezvous root(options(port, 0, 2));
  Bytes data{};
  data.fill(13);
  CHECK(trouble(root, data) == "");
  one.join();
  CHECK(one.error == "");
  CHECK(one.data == data);
}
