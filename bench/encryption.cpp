// SPDX-License-Identifier: MIT
// Measures what encryption costs: an encrypted stream compared with the cipher alone, and an all-reduce over Gloo with
// and without encryption between two network namespaces. bench/encryption.sh makes the namespaces and runs it.
//   encryption [NAMESPACE ADDRESS NAMESPACE ADDRESS [MEGABYTES [ROUNDS]]]
#include <fcntl.h>
#include <openssl/evp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/backends/openssl/openssl.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/core/error.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t megabyte = 1'000'000, record = 16384;

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }
double process_time() {  // seconds of processor time of all threads
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

double thread_time() {  // seconds of processor time of this thread
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The cipher alone, as in "openssl speed -bytes 16384 -evp aes-128-gcm": GB for each second of processor time.
double cipher_speed() {
  std::vector<unsigned char> data(record), out(record + 16);
  const std::array<unsigned char, 16> key{}, iv{};
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> c(::EVP_CIPHER_CTX_new(),
                                                                            &::EVP_CIPHER_CTX_free);
  ::EVP_EncryptInit_ex(c.get(), ::EVP_aes_128_gcm(), nullptr, key.data(), iv.data());
  const double start = thread_time();
  double bytes = 0, time = 0;
  while ((time = thread_time() - start) < 1)
    for (int i = 0; i < 1000; ++i, bytes += record) {
      int n = 0;
      ::EVP_EncryptUpdate(c.get(), out.data(), &n, data.data(), static_cast<int>(data.size()));
    }
  return bytes / time / 1e9;
}

// Processor time for each byte, of the side that writes and of the side that reads, in ns.
struct Cost {
  double write = 0, read = 0;
};

// Writes and reads messages that fit the buffer of a socket, in turns.
template <class Write, class Read>
Cost cost(Write&& write, Read&& read) {
  Cost c;
  std::vector<std::byte> data(4 * record, std::byte{7});
  constexpr int messages = 20000;
  for (int i = 0; i < messages; ++i) {
    const double start = thread_time();
    write(data);
    const double written = thread_time();
    read(data);
    c.write += written - start;
    c.read += thread_time() - written;
  }
  const double scale = 1e9 / (messages * static_cast<double>(data.size()));
  return {c.write * scale, c.read * scale};
}

std::pair<tcp::Socket, tcp::Socket> sockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0)
    fail<Error>("socketpair", "two sockets", tcp::error_text(errno));
  return {tcp::Socket(ends[0]), tcp::Socket(ends[1])};
}

Cost plain_cost() {
  const auto [out, in] = sockets();
  return cost([&](std::span<const std::byte> d) { static_cast<void>(tcp::send_all(out, d, Clock::now() + 10s)); },
              [&](std::span<std::byte> d) { static_cast<void>(tcp::receive_all(in, d, Clock::now() + 10s)); });
}

Cost encrypted_cost() {
  const TlsStreams tls;
  auto [writes, reads] = sockets();
  const Digest256 key{};
  const auto out = tls.connect(std::move(writes), "bench", key);
  const auto in = tls.accept(std::move(reads), [&](std::string_view) { return std::optional(key); });
  using Handshake = SecureStream::Handshake;
  for (auto a = Handshake::reads, b = a; a != Handshake::done || b != Handshake::done;) {
    if (a != Handshake::done) a = out->advance();
    if (b != Handshake::done) b = in->advance();
  }
  return cost([&](std::span<const std::byte> d) { out->write(d, false); },
              [&](std::span<std::byte> d) { static_cast<void>(in->read(d)); });
}

struct Place {
  std::string network, address;
};

// Moves this thread, and the threads that it starts later, to a network namespace.
void enter(const std::string& network) {
  const io::Descriptor file = io::Descriptor::open("/run/netns/" + network, O_RDONLY, "network namespace");
  if (::setns(file.get(), CLONE_NEWNET) != 0)
    fail<Error>(network, "a network namespace that this user may enter", tcp::error_text(errno));
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// All-reduces in turns without and with encryption, and prints the medians of both.
void all_reduces(const std::array<Place, 2>& places, std::size_t bytes, int rounds) {
  const TlsStreams tls;
  std::array<MemoryKeyStore, 2> stores;
  std::array<std::vector<double>, 2> wall, processor;
  const auto rank = [&](int r) {
    enter(places[static_cast<std::size_t>(r)].network);
    std::array<InterruptFlag, 2> flags;
    std::array<std::unique_ptr<GlooCommunicator>, 2> groups;
    for (std::size_t g = 0; g < 2; ++g) {
      GlooOptions o;
      o.rank = r;
      o.size = 2;
      o.hosts = {"a", "b"};
      o.address = places[static_cast<std::size_t>(r)].address;
      o.streams = g == 1 ? &tls : nullptr;
      groups[g] = std::make_unique<GlooCommunicator>(o, stores[g], flags[g]);
      if (r == 0) std::printf("# %s\n", groups[g]->name().c_str());
    }
    std::vector<float> values(bytes / 4, 1.F);
    for (int i = -2; i < rounds; ++i)
      for (std::size_t g = 0; g < 2; ++g) {
        groups[g]->barrier(60s);
        const auto start = Clock::now();
        const double before = process_time();
        groups[g]->all_reduce(DType::f32, std::as_writable_bytes(std::span(values)), ReduceOp::max, "values").wait();
        groups[g]->barrier(60s);
        const double after = process_time();
        if (i < 0 || r != 0) continue;
        wall[g].push_back(std::chrono::duration<double>(Clock::now() - start).count());
        processor[g].push_back(after - before);
      }
  };
  std::thread other([&] { rank(1); });
  std::thread([&] { rank(0); }).join();
  other.join();
  const double ratio = median(wall[1]) / median(wall[0]), work = median(processor[1]) / median(processor[0]);
  std::printf("all-reduce of %zu MB, 2 ranks, median of %d: plain %.1f ms, encrypted %.1f ms, ratio %.2f\n",
              bytes / megabyte, rounds, median(wall[0]) * 1e3, median(wall[1]) * 1e3, ratio);
  std::printf("processor time of both ranks: plain %.1f ms, encrypted %.1f ms, ratio %.2f\n",
              median(processor[0]) * 1e3, median(processor[1]) * 1e3, work);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const double cipher = cipher_speed();
    std::printf("AES-128-GCM alone, records of 16 KiB: %.2f GB/s a core\n", cipher);
    const Cost plain = plain_cost(), encrypted = encrypted_cost();
    const auto print = [&](const char* side, double without, double with) {
      const double speed = 1 / (with - without);
      std::printf(
          "stream, %s: %.2f GB/s a core, %.0f %% of the cipher; with the kernel's part %.2f GB/s (plain %.2f)\n", side,
          speed, 100 * speed / cipher, 1 / with, 1 / without);
    };
    print("writes", plain.write, encrypted.write);
    print("reads", plain.read, encrypted.read);
    if (argc < 5) return 0;
    const std::size_t bytes = (argc > 5 ? std::strtoul(argv[5], nullptr, 10) : 100) * megabyte;
    all_reduces({Place{argv[1], argv[2]}, Place{argv[3], argv[4]}}, bytes,
                std::max(1, argc > 6 ? std::atoi(argv[6]) : 15));
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "encryption: %s\n", e.what());
    return e.exit_code();
  }
}
