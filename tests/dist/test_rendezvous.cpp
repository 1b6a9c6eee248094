// SPDX-License-Identifier: MIT
// The meeting of ranks over TCP, on this host's loopback.
#include <tutti/dist/rendezvous.hpp>

#include <doctest/doctest.h>

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
#include <vector>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Bytes = std::array<std::uint64_t, 16>;

RendezvousOptions options(int port, int rank, int size, std::chrono::milliseconds deadline = 20s,
                          const std::string& job = "0123456789abcdef",
                          const std::string& secret = "a secret of the tests") {
  return {"127.0.0.1", port, job, secret, rank, size, deadline};
}

// What a call says against it; empty if it went well.
std::string trouble(TcpRendezvous& meet, Bytes& data) {
  try {
    meet(std::as_writable_bytes(std::span(data)));
    return "";
  } catch (const CommunicationError& e) {
    return e.what();
  }
}

// Another rank in a thread; what it got and what went wrong.
struct Other {
  Bytes data{};
  std::string error;
  std::thread thread;
  explicit Other(const RendezvousOptions& o, std::chrono::milliseconds pause = 0ms)
      : thread([this, o, pause] {
          std::this_thread::sleep_for(pause);
          TcpRendezvous meet(o);
          error = trouble(meet, data);
        }) {}
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() { join(); }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Writes to the port as somebody who is no rank would; the connection stays open as long as the result.
tcp::Socket stranger(int port, const std::string& says) {
  std::string why;
  auto s = tcp::connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 5s, why);
  REQUIRE_MESSAGE(s, why);
  (void)tcp::send_all(*s, std::as_bytes(std::span(says)), std::chrono::steady_clock::now() + 5s);
  return *std::move(s);
}

}  // namespace

TEST_CASE("all ranks get what rank 0 has, call after call") {
  constexpr int size = 5;
  TcpRendezvous root(options(0, 0, size));
  const int port = root.port();
  REQUIRE(port > 0);
  std::vector<std::thread> others;
  std::array<std::array<Bytes, 3>, size> got{};
  for (int r = 1; r < size; ++r)
    others.emplace_back([&, r] {
      TcpRendezvous meet(options(port, r, size));
      for (auto& b : got[static_cast<std::size_t>(r)]) meet(std::as_writable_bytes(std::span(b)));
    });
  for (std::uint64_t call = 0; call < 3; ++call) {
    Bytes mine;
    mine.fill(1000 + call);
    root(std::as_writable_bytes(std::span(mine)));
    CHECK(mine[7] == 1000 + call);
  }
  for (auto& t : others) t.join();
  for (std::size_t r = 1; r < size; ++r)
    for (std::uint64_t call = 0; call < 3; ++call)
      for (const auto v : got[r][call]) CHECK(v == 1000 + call);
}

TEST_CASE("a rank may come before rank 0 does") {
  int port = 0;
  {
    const TcpRendezvous first(options(0, 0, 2));
    port = first.port();
  }
  Other other(options(port, 1, 2));
  std::this_thread::sleep_for(200ms);
  TcpRendezvous root(options(port, 0, 2));
  Bytes data;
  data.fill(7);
  CHECK(trouble(root, data) == "");
  other.join();
  CHECK(other.error == "");
  CHECK(other.data == data);
}

TEST_CASE("one rank meets nobody and needs no port") {
  TcpRendezvous alone(options(0, 0, 1));
  Bytes data{42};
  CHECK(trouble(alone, data) == "");
  CHECK(data[0] == 42);
}

TEST_CASE("ranks that do not come are named, to those who came too") {
  TcpRendezvous root(options(0, 0, 4, 500ms));
  Other here(options(root.port(), 2, 4, 500ms));
  Bytes data{};
  const std::string error = trouble(root, data);
  here.join();
  CHECK_MESSAGE(has(error, "nothing from rank 1, rank 3"), error);
  CHECK_MESSAGE(has(error, "all 4 ranks within 500 ms"), error);
  CHECK_MESSAGE(has(here.error, "without rank 1, rank 3"), here.error);
}

TEST_CASE("rank 0 that does not come") {
  int port = 0;
  {
    const TcpRendezvous gone(options(0, 0, 2));
    port = gone.port();
  }
  TcpRendezvous meet(options(port, 1, 2, 300ms));
  Bytes data{};
  const std::string error = trouble(meet, data);
  CHECK_MESSAGE(has(error, "rank 0 within 300 ms"), error);
}

TEST_CASE("whoever is not of this job is turned away, and the job goes on") {
  TcpRendezvous root(options(0, 0, 2));
  const int port = root.port();
  // Only what rank 0 proves is final: somebody else may be at the port for a while.
  std::map<std::string, RendezvousOptions> wrong{
      {"another job is at this port", options(port, 1, 2, 200ms, "fedcba9876543210")},
      {"another job is at this port.", options(port, 1, 2, 200ms, "0123456789abcde")},
      {"rank 0 has another TUTTI_SECRET", options(port, 1, 2, 200ms, "0123456789abcdef", "a secret of the test")},
      {"counts 2 ranks", options(port, 2, 3, 5s)},
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

TEST_CASE("a rank that comes twice, or whose call is another") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  Other first(options(port, 1, 3));
  std::this_thread::sleep_for(200ms);
  Other again(options(port, 1, 3, 5s));
  again.join();
  CHECK_MESSAGE(has(again.error, "rank 1 is there already"), again.error);
  {
    TcpRendezvous other(options(port, 2, 3, 5s));
    std::array<std::byte, 3> few{};
    CHECK_THROWS_WITH_AS(other(few), doctest::Contains("rank 0 is elsewhere"), CommunicationError);
  }
  Other last(options(port, 2, 3));
  last.join();
  first.join();
  serving.join();
  CHECK(error == "");
  CHECK(first.error == "");
  CHECK(last.error == "");
}

TEST_CASE("garbage on the port does no harm") {
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

TEST_CASE("a rank that is killed while it waits may come again") {
  TcpRendezvous root(options(0, 0, 3));
  const int port = root.port();
  Bytes data{};
  std::string error;
  std::thread serving([&] { error = trouble(root, data); });
  {
    // The first attempt of rank 1: its deadline passes, and its connection ends with it.
    TcpRendezvous early(options(port, 1, 3, 100ms));
    Bytes nothing{};
    CHECK(trouble(early, nothing) != "");
  }
  Other one(options(port, 1, 3)), two(options(port, 2, 3));
  one.join();
  two.join();
  serving.join();
  CHECK(error == "");
  CHECK(one.error == "");
  CHECK(two.error == "");
}

TEST_CASE("something else at rank 0's port") {
  const tcp::Socket listener = tcp::listen_at(0, 8);
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
  CHECK_MESSAGE((has(error, "something else") || has(error, "no answer")), error);
}

TEST_CASE("wrong options") {
  CHECK_THROWS_AS(TcpRendezvous(options(1, 2, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, -1, 2)), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, 0, 2, 1s, std::string(65, 'a'))), UsageError);
  CHECK_THROWS_AS(TcpRendezvous(options(1, 1, 2, 1s, "job", "")), UsageError);
  TcpRendezvous alone(options(0, 0, 1));
  std::vector<std::byte> much(65537);
  CHECK_THROWS_AS(alone(much), UsageError);
  const TcpRendezvous first(options(0, 0, 2));
  CHECK_THROWS_AS(TcpRendezvous(options(first.port(), 0, 2)), CommunicationError);
}

TEST_CASE("options from the launcher's variables") {
  LaunchEnvironment e;
  CHECK(rendezvous_of(e).size == 1);
  e.size = 4;
  e.rank = 3;
  e.job = "00112233445566ff";
  CHECK_THROWS_WITH_AS((void)rendezvous_of(e), doctest::Contains("TUTTI_ROOT"), UsageError);
  for (const char* bad : {"node", "node:0", ":1", "node:70000", "-x:1"}) {
    e.root = bad;
    CHECK_THROWS_AS((void)rendezvous_of(e), UsageError);
  }
  e.root = "[::1]:4711";
  for (const char* bad : {"", "too short"}) {
    e.secret = bad;
    CHECK_THROWS_WITH_AS((void)rendezvous_of(e), doctest::Contains("TUTTI_SECRET"), UsageError);
  }
  e.secret = "longer than sixteen";
  const auto o = rendezvous_of(e);
  CHECK(o.host == "::1");
  CHECK(o.port == 4711);
  CHECK(o.job == e.job);
  CHECK(o.secret == e.secret);
  CHECK_FALSE(o.one_host);
  CHECK(o.rank == 3);
  CHECK(o.size == 4);
}

namespace {

std::string hex_of(const Digest256& d) {
  std::string text;
  for (const std::byte b : d) {
    text += "0123456789abcdef"[static_cast<unsigned>(b) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(b) & 15U];
  }
  return text;
}
std::string sha256_of(const std::string& text) {
  Sha256 h;
  h.add(text);
  return hex_of(h.digest());
}

// Everything that goes through it between a rank and rank 0, up to so many bytes from the rank.
struct Wiretap {
  tcp::Socket listener = tcp::listen_at(0, 8);
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

}  // namespace

TEST_CASE("SHA-256 and HMAC as published") {
  // FIPS 180-4's examples; RFC 4231, cases 1, 2, 4 and 6.
  CHECK(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_of(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  const auto hmac = [](const std::string& key, const std::string& text) {
    return hex_of(HmacSha256(key).add(text).digest());
  };
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  CHECK(hmac(counting, std::string(50, '\xcd')) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(same_digest({}, {}));
  CHECK_FALSE(same_digest({}, {std::byte{1}}));
}

TEST_CASE("the secret does not travel, and what was said once opens nothing again") {
  TcpRendezvous root(options(0, 0, 3));
  Bytes data{};
  data.fill(11);
  std::string error, said;
  std::thread serving([&] { error = trouble(root, data); });
  {
    Wiretap tap(root.port());
    Other one(options(tcp::port_of(tap.listener), 1, 3));
    // The rank's part: its hello and its proof come before anything that rank 0 says to the data.
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
  CHECK(has(said, "0123456789abcdef"));  // the public name
  CHECK_FALSE(has(said, "a secret"));
  // Whoever says the same again, as rank 2, is not let in: rank 0 has drawn another number.
  TcpRendezvous again(options(0, 0, 2, 500ms));
  std::thread waiting([&] { error = trouble(again, data); });
  const std::size_t hello = 8 + 16 + 64 + 32, challenge = 8 + 8 + 32;
  const auto thief = stranger(again.port(), said.substr(0, hello) + said.substr(hello + challenge, 32));
  waiting.join();
  CHECK_MESSAGE(has(error, "nothing from rank 1"), error);
}

TEST_CASE("strangers neither hold up the door nor keep a core busy, whatever they say") {
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
  // More than there is room for, and they stay.
  std::vector<tcp::Socket> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(stranger(root.port(), i % 2 == 0 ? "" : "tuttirv2"));
  std::mt19937 draw(1);
  const auto start = std::chrono::steady_clock::now();
  Other one(options(root.port(), 1, 4));
  // Beginnings of the truth, with a bit that is wrong, and noise.
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
  CHECK_MESSAGE(busy < 0.25, busy.load());
}

TEST_CASE("somebody else at rank 0's port is not believed, and rank 0 may come yet") {
  auto fake = std::make_unique<tcp::Socket>(tcp::listen_at(0, 8));
  const int port = tcp::port_of(*fake);
  std::atomic<bool> over{false};
  std::thread other([&] {
    for (const auto end = std::chrono::steady_clock::now() + 10s; !over;) {
      if (!tcp::wait_for(fake->get(), POLLIN, std::chrono::steady_clock::now() + 20ms)) continue;
      const tcp::Socket s(::accept4(fake->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      // A challenge, and whatever the proof is an answer with data.
      std::string says = "tuttirv2" + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(32, 'n');
      says += "tuttirv2" + std::string("\1\0\0\0\x80\0\0\0", 8) + std::string(32, 'p') + std::string(128, 'd');
      (void)tcp::send_all(s, std::as_bytes(std::span(says)), end);
      std::array<std::byte, 152> hello{};
      (void)tcp::receive_all(s, hello, std::chrono::steady_clock::now() + 1s);
    }
    fake.reset();
  });
  TcpRendezvous hasty(options(port, 1, 2, 300ms));
  Bytes nothing{};
  const std::string error = trouble(hasty, nothing);
  CHECK_MESSAGE(has(error, "somebody who does not know TUTTI_SECRET"), error);
  CHECK(nothing[0] == 0);
  Other one(options(port, 1, 2));
  std::this_thread::sleep_for(200ms);
  over = true;
  other.join();
  TcpRendezvous root(options(port, 0, 2));
  Bytes data{};
  data.fill(13);
  CHECK(trouble(root, data) == "");
  one.join();
  CHECK(one.error == "");
  CHECK(one.data == data);
}

TEST_CASE("rank 0 listens where it must and no further, and takes the next port where one is taken") {
  const TcpRendezvous here(options(0, 0, 2));
  std::string why;
  const auto soon = [] { return std::chrono::steady_clock::now() + 1s; };
  CHECK(tcp::connect_to("127.0.0.1", here.port(), soon(), why));
  CHECK_FALSE(tcp::connect_to("127.0.0.2", here.port(), soon(), why));
  // Of three ports rank 0 takes the one that is free; the others look at each.
  auto base = options(here.port(), 0, 2);
  base.ports = 3;
  TcpRendezvous root(base);
  CHECK(root.port() != here.port());
  base.rank = 1;
  Other one(base);
  Bytes data{};
  data.fill(17);
  CHECK(trouble(root, data) == "");
  one.join();
  CHECK(one.error == "");
  CHECK(one.data == data);
}

TEST_CASE("an address that swallows everything costs a moment, not the deadline") {
  // A door with nobody behind it: Linux drops what comes once the queue is full.
  int error = 0;
  std::string why;
  const auto address = [&](const char* host, int port) { return tcp::SystemLookup{}(host, port, true, why).at(0); };
  const auto hole = tcp::listen_on(address("127.0.0.3", 0), 0, error);
  REQUIRE(hole);
  const int port = tcp::port_of(*hole);
  std::vector<tcp::Socket> queue;
  for (int i = 0; i < 4; ++i) {
    const auto a = address("127.0.0.3", port);
    tcp::Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(s.get(), a.get(), a.size);
    queue.push_back(std::move(s));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<tcp::Address> only{address("127.0.0.3", port)};
  CHECK_FALSE(tcp::connect_first(only, start + 300ms, why));
  CHECK(has(why, "timed out"));
  const tcp::Socket door = tcp::listen_at(0, 8);
  const std::vector<tcp::Address> both{only[0], address("127.0.0.1", tcp::port_of(door))};
  CHECK_MESSAGE(tcp::connect_first(both, std::chrono::steady_clock::now() + 30s, why), why);
  CHECK(std::chrono::steady_clock::now() - start < 5s);
}

TEST_CASE("a name server that does not answer costs no more than the deadline") {
  const auto start = std::chrono::steady_clock::now();
  std::string why;
  const auto slow = [](const std::string&, int, bool, std::string&) {
    std::this_thread::sleep_for(2s);
    return std::vector<tcp::Address>{};
  };
  CHECK(tcp::addresses_of("name.invalid", 1, start + 100ms, why, slow).empty());
  CHECK(has(why, "in time"));
  CHECK(std::chrono::steady_clock::now() - start < 1500ms);
  CHECK(tcp::addresses_of("127.0.0.1", 1, start + 100ms, why, slow).size() == 1);  // asks nobody
}
