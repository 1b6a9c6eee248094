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

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// The cipher alone, as in "openssl speed -bytes 16384 -evp aes-128-gcm".
class Cipher {
 public:
  Cipher() {
    const std::array<unsigned char, 16> key{}, iv{};
    ::EVP_EncryptInit_ex(c_.get(), ::EVP_aes_128_gcm(), nullptr, key.data(), iv.data());
  }
  // Encrypts this many bytes, and returns the seconds of processor time.
  double time(std::size_t bytes) {
    const double start = thread_time();
    for (std::size_t at = 0; at < bytes; at += record) {
      int n = 0;
      ::EVP_EncryptUpdate(c_.get(), data_.data(), &n, data_.data(), static_cast<int>(data_.size()));
    }
    return thread_time() - start;
  }

 private:
  std::vector<unsigned char> data_ = std::vector<unsigned char>(record);
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> c_{::EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free};
};

std::pair<tcp::Socket, tcp::Socket> sockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0)
    fail<Error>("socketpair", "two sockets", tcp::error_text(errno));
  return {tcp::Socket(ends[0]), tcp::Socket(ends[1])};
}

// Prints the speed of an encrypted stream without the kernel's part, in GB for each second of processor time. The
// cipher, a plain socket and the stream take turns of a millisecond, because the speed of a shared machine changes.
void streams() {
  const TlsStreams tls;
  auto [writes, reads] = sockets();
  const auto [plain_out, plain_in] = sockets();
  const Digest256 key{};
  const auto out = tls.connect(std::move(writes), "bench", key);
  const auto in = tls.accept(std::move(reads), [&](std::string_view) { return std::optional(key); });
  using Handshake = SecureStream::Handshake;
  for (auto a = Handshake::reads, b = a; a != Handshake::done || b != Handshake::done;) {
    if (a != Handshake::done) a = out->advance();
    if (b != Handshake::done) b = in->advance();
  }
  Cipher cipher;
  std::vector<std::byte> data(4 * record, std::byte{7});  // a message, which fits the buffer of a socket
  constexpr std::size_t turns = 1000, messages = 32;
  const std::size_t bytes = messages * data.size();
  std::vector<double> cipher_times, writing, reading, plain_writing, plain_reading, write_shares, read_shares;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    std::array<double, 4> t{};  // plain, plain, encrypted, encrypted
    for (std::size_t i = 0; i < messages; ++i) {
      std::array<double, 5> at{thread_time()};
      static_cast<void>(tcp::send_all(plain_out, data, Clock::now() + 10s));
      at[1] = thread_time();
      static_cast<void>(tcp::receive_all(plain_in, data, Clock::now() + 10s));
      at[2] = thread_time();
      out->write(data, false);
      at[3] = thread_time();
      static_cast<void>(in->read(data));
      at[4] = thread_time();
      for (std::size_t k = 0; k < t.size(); ++k) t[k] += at[k + 1] - at[k];
    }
    cipher_times.push_back(cipher.time(bytes));
    plain_writing.push_back(t[0]);
    plain_reading.push_back(t[1]);
    writing.push_back(t[2]);
    reading.push_back(t[3]);
    write_shares.push_back(cipher_times.back() / (t[2] - t[0]));
    read_shares.push_back(cipher_times.back() / (t[3] - t[1]));
  }
  const auto speed = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  std::printf("AES-128-GCM alone, records of 16 KiB: %.2f GB/s a core\n", speed(median(cipher_times)));
  const auto print = [&](const char* side, double plain, double encrypted, double share) {
    std::printf("stream, %s: %.2f GB/s a core, %.0f %% of the cipher; with the kernel's part %.2f GB/s (plain %.2f)\n",
                side, speed(encrypted - plain), 100 * share, speed(encrypted), speed(plain));
  };
  print("writes", median(plain_writing), median(writing), median(write_shares));
  print("reads", median(plain_reading), median(reading), median(read_shares));
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
    streams();
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
