// SPDX-License-Identifier: MIT
// Tests memory that processes of a host share: how a process exports it, and which processes may not map it.
#include <doctest/doctest.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/windows/group_windows.hpp>
#include <tutti/comm/windows/process_windows.hpp>

#include "child_process.hpp"
#include "io/size_limit.hpp"
#include "window_checks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using testing::all_zero;
using testing::get;
using testing::made;
using testing::Process;
using testing::put;

namespace {

int descriptors() {
  int n = 0;
  DIR* const d = ::opendir("/proc/self/fd");
  while (::readdir(d) != nullptr) ++n;
  ::closedir(d);
  return n;
}
// Waits until at most n descriptors are open: the window server closes its end of a connection later than the client.
bool no_more_descriptors_than(int n) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (descriptors() > n) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}
// Returns how many memfds this process has mapped.
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int n = 0;
  for (std::string line; std::getline(maps, line);) n += line.find("/memfd:tutti") != line.npos ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("process windows: another process reads and writes, and the data that it wrote stays when it is killed") {
  Process other([](int in, int out) {
    ProcessWindows windows;
    std::string why;
    const auto name = get<WindowName>(in);
    const auto w = windows.map(name, why);
    const auto mine = windows.make(std::size_t{1} << 20, why);
    if (w == nullptr || mine == nullptr || w->descriptor() >= 0) return 1;
    if (windows.map(name, why) != w) return 2;
    if (w->bytes()[5] != std::byte{42}) return 3;
    w->bytes()[6] = std::byte{43};
    mine->bytes()[7] = std::byte{44};
    put(out, windows.name_of(*mine));
    ::pause();
    return 4;
  });
  ProcessWindows windows;
  const auto mine = made(windows, std::size_t{2} << 20);
  mine->bytes()[5] = std::byte{42};
  put(other.there[1], windows.name_of(*mine));
  const auto name = get<WindowName>(other.back[0]);
  REQUIRE(name.number > 0);
  CHECK(mine->bytes()[6] == std::byte{43});
  std::string why;
  const auto its = windows.map(name, why);
  REQUIRE_MESSAGE(its != nullptr, why);
  CHECK(its->bytes()[7] == std::byte{44});
  ::kill(other.pid, SIGKILL);
  CHECK(WIFSIGNALED(other.end()));
  its->bytes()[8] = std::byte{45};
  CHECK(its->bytes()[7] == std::byte{44});
  // map() returns the existing mapping. A second window of that process does not exist.
  CHECK(windows.map(name, why) == its);
  WindowName second = name;
  ++second.number;
  CHECK(windows.map(second, why) == nullptr);
  CHECK(why == "cannot connect to its owner: it has ended, or is in another container");
}

TEST_CASE("process windows: a window can be read without mapping it, and only with the right size") {
  constexpr std::size_t size = std::size_t{1} << 20;
  Process other([](int, int out) {
    ProcessWindows windows;
    std::string why;
    const auto mine = windows.make(size, why);
    if (mine == nullptr) return 1;
    for (std::size_t i = 0; i < size; ++i) mine->bytes()[i] = static_cast<std::byte>(i % 251);
    put(out, windows.name_of(*mine));
    ::pause();
    return 2;
  });
  const auto name = get<WindowName>(other.back[0]);
  REQUIRE(name.number > 0);
  std::string why;
  std::vector<std::byte> part(300'000);
  {
    const WindowReader reader(name, why);
    CHECK(why == "");
    REQUIRE(reader.read(5000, part));
    for (std::size_t i = 0; i < part.size(); ++i) REQUIRE(part[i] == static_cast<std::byte>((5000 + i) % 251));
    CHECK_FALSE(reader.read(size - 100, std::span(part).first(101)));
  }
  WindowName larger = name, unknown = name;
  larger.bytes += 4096;
  ++unknown.number;
  for (const auto& [wrong, said] : {std::pair{larger, "the window has 1048576 bytes instead of 1052672"},
                                    {unknown, "its owner has no such window"},
                                    {WindowName{}, "the name of its server is invalid"}}) {
    const WindowReader reader(wrong, why);
    CHECK(why == said);
    CHECK_FALSE(reader.read(0, std::span(part).first(1)));
  }
  ::kill(other.pid, SIGKILL);
  CHECK(WIFSIGNALED(other.end()));
  const WindowReader late(name, why);
  CHECK(why == "cannot connect to its owner: it has ended, or is in another container");
}

TEST_CASE("process windows: processes of other users neither get nor provide windows") {
  if (::geteuid() != 0) {
    MESSAGE("SKIP: only root can be somebody else");
    return;
  }
  Process other([](int in, int out) {
    const auto name = get<WindowName>(in);
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
    ProcessWindows strangers;
    std::string why;
    std::array<char, 100> said{};
    if (strangers.map(name, why) != nullptr) return 2;
    why.copy(said.data(), said.size() - 1);
    put(out, said);
    const auto w = strangers.make(4096, why);
    put(out, w == nullptr ? WindowName{} : strangers.name_of(*w));
    return get<char>(in) == 'e' ? 0 : 3;
  });
  ProcessWindows windows;
  const auto mine = made(windows, 4096);
  put(other.there[1], windows.name_of(*mine));
  CHECK(std::string(get<std::array<char, 100>>(other.back[0]).data()) == "a process of user 0");
  const auto name = get<WindowName>(other.back[0]);
  REQUIRE(name.number > 0);
  std::string why;
  CHECK(windows.map(name, why) == nullptr);
  CHECK(why == "a process of user 65534");
  put(other.there[1], 'e');
  CHECK(other.end() == 0);

  // The window server refuses a client, even if the client does not check the server.
  Process blunt([](int in, int out) {
    const auto server = get<WindowName>(in);
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
    sockaddr_un at{};
    const socklen_t size = detail::abstract_address({server.server.data(), server.server.size()}, at);
    const int s = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (::connect(s, reinterpret_cast<sockaddr*>(&at), size) != 0) return 2;
    (void)!::send(s, &server.number, sizeof server.number, MSG_NOSIGNAL);
    std::string said;
    put(out, detail::receive_descriptor(s, said).get() < 0 ? 'n' : 'y');
    return 0;
  });
  put(blunt.there[1], windows.name_of(*mine));
  CHECK(get<char>(blunt.back[0]) == 'n');
  CHECK(blunt.end() == 0);
  CHECK(windows.sent_away() == 2);
}

TEST_CASE("process windows: strangers do not delay the window server") {
  ProcessWindows windows, neighbour;
  const auto mine = made(windows, 4096);
  const WindowName name = windows.name_of(*mine);
  sockaddr_un at{};
  const socklen_t size = detail::abstract_address({name.server.data(), name.server.size()}, at);
  std::vector<io::Descriptor> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    // Sends nothing, too few bytes, or too many.
    const std::vector<char> noise(static_cast<std::size_t>(i) * 7, 'x');
    if (i % 3 != 0) REQUIRE(::send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL) >= 0);
  }
  std::string why;
  CHECK_MESSAGE(neighbour.map(name, why) != nullptr, why);
  WindowName wrong = name;
  wrong.number = 7;
  CHECK(neighbour.map(wrong, why) == nullptr);
  CHECK(why == "its owner has no such window");
  wrong.server[0] = 'Z';
  CHECK(neighbour.map(wrong, why) == nullptr);
  CHECK(why == "the name of its server is invalid");
  // A process maps its own window without the window server.
  CHECK(windows.map(name, why) == mine);
}

TEST_CASE("process windows: memory that is no longer used is used again for the same size, unless it was abandoned") {
  ProcessWindows windows, neighbour;
  std::string why;
  auto w = made(windows, 8192);
  const WindowName name = windows.name_of(*w);
  const std::byte* const at = w->bytes().data();
  const auto mapped = neighbour.map(name, why);
  REQUIRE_MESSAGE(mapped != nullptr, why);
  w->bytes()[0] = std::byte{1};
  w.reset();
  w = made(windows, 8190);
  CHECK(w->bytes().data() == at);
  CHECK(all_zero(w->bytes()));
  CHECK(windows.name_of(*w) == name);
  CHECK(neighbour.map(name, why) == mapped);
  const auto second = made(windows, 8192);
  CHECK(second->bytes().data() != at);
  w->abandon();
  w.reset();
  const auto third = made(windows, 8192);
  CHECK(!(windows.name_of(*third) == name));
  CHECK(windows.own() == 2);
  // Only a little memory that no window uses is kept.
  for (std::size_t i = 1; i <= 50; ++i) (void)made(windows, i << 14);
  CHECK(windows.own() < 10);
}

TEST_CASE(
    "process windows: a process without access to the new window keeps the old memory, and others get the new window") {
  ProcessWindows windows, stays, shut_out;
  std::string why;
  const auto w = made(windows, std::size_t{1} << 20);
  const std::byte* const at = w->bytes().data();
  w->bytes()[3] = std::byte{1};
  const WindowName before = windows.name_of(*w);
  auto mapped = stays.map(before, why);
  const auto old = shut_out.map(before, why);
  REQUIRE_MESSAGE((mapped != nullptr && old != nullptr), why);
  const int fds = descriptors(), maps = mappings();
  w->abandon();
  for (int i = 0; i < 20; ++i) {
    mapped.reset();
    REQUIRE_MESSAGE(windows.renew(*w, why), why);
    CHECK(w->bytes().data() == at);
    CHECK(all_zero(w->bytes()));
    CHECK_FALSE(w->abandoned());
    old->bytes()[4] = std::byte{9};
    CHECK(w->bytes()[4] == std::byte{0});
    const WindowName name = windows.name_of(*w);
    CHECK(!(name == before));
    mapped = stays.map(name, why);
    REQUIRE_MESSAGE(mapped != nullptr, why);
    w->bytes()[5] = std::byte{7};
    CHECK(mapped->bytes()[5] == std::byte{7});
    CHECK(stays.neighbours() == 1);
    CHECK(stays.map(name, why) == mapped);
  }
  CHECK(old->bytes()[3] == std::byte{1});
  CHECK(no_more_descriptors_than(fds));
  CHECK(mappings() <= maps + 1);
  // If memory cannot be shared, the window becomes private memory of this process.
  const test::SizeLimit limit(1 << 12);
  CHECK_FALSE(windows.renew(*w, why));
  CHECK(w->bytes().data() == at);
  CHECK(all_zero(w->bytes()));
  CHECK(w->descriptor() < 0);
  CHECK(stays.map(windows.name_of(*w), why) == nullptr);
}

TEST_CASE("process windows: after a thousand changes of a group no descriptor and no mapping is left") {
  ProcessWindows windows;
  std::string why;
  const auto mine = made(windows, 1 << 16);
  ProcessWindows stays;
  const auto of_who_stays = made(stays, 1 << 16);
  const WindowName name = stays.name_of(*of_who_stays);
  std::shared_ptr<HostWindow> before;
  int fds = 0, maps = 0;
  for (int change = 0; change < 1000; ++change) {
    // In each generation a new member joins, which leaves with it. The members map each other's windows for one
    // generation.
    ProcessWindows newcomer;
    const auto its = made(newcomer, 1 << 14);
    const auto neighbour = windows.map(name, why);
    REQUIRE_MESSAGE(neighbour != nullptr, why);
    if (before != nullptr) CHECK(neighbour == before);
    before = neighbour;
    const auto theirs = windows.map(newcomer.name_of(*its), why);
    REQUIRE_MESSAGE(theirs != nullptr, why);
    REQUIRE(newcomer.map(windows.name_of(*mine), why) != nullptr);
    if (change == 20) {
      fds = descriptors();
      maps = mappings();
    }
  }
  CHECK(no_more_descriptors_than(fds));
  CHECK(mappings() <= maps);
  CHECK(windows.neighbours() <= 3);
}

TEST_CASE("group windows: all ranks map all windows, or no rank maps any") {
  constexpr int ranks = 3;
  for (const bool fails : {false, true}) {
    std::vector<std::unique_ptr<ProcessWindows>> of(ranks);
    for (auto& w : of) w = std::make_unique<ProcessWindows>();
    std::vector<GroupWindows> groups(ranks);
    // An all-gather over threads.
    std::array<std::vector<std::byte>, ranks> said;
    std::atomic<int> turn{0};
    const auto meet = [&](int phase) {
      ++turn;
      while (turn < phase * ranks) std::this_thread::yield();
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        int phase = 0;
        // One rank requests more memory than exists.
        const std::size_t bytes = fails && r == 1 ? std::size_t{1} << 60 : 100'000;
        groups[static_cast<std::size_t>(r)] =
            GroupWindows::make(*of[static_cast<std::size_t>(r)], r, ranks, bytes,
                               [&](std::span<const std::byte> mine, std::span<std::byte> all) {
                                 said[static_cast<std::size_t>(r)].assign(mine.begin(), mine.end());
                                 meet(++phase);
                                 for (std::size_t q = 0; q < ranks; ++q)
                                   std::memcpy(all.data() + q * mine.size(), said[q].data(), mine.size());
                                 meet(++phase);
                               });
      });
    for (auto& t : threads) t.join();
    for (int r = 0; r < ranks; ++r) {
      const GroupWindows& g = groups[static_cast<std::size_t>(r)];
      CHECK(g.fits() == !fails);
      if (fails) {
        CHECK(g.reason().starts_with("rank 1 of this host: "));
        continue;
      }
      CHECK(g.mine().data() == g.bases()[static_cast<std::size_t>(r)]);
      CHECK(g.bytes() >= 100'000);
      for (const auto* base : g.bases()) CHECK(base != nullptr);
      g.bases()[2][r] = static_cast<std::byte>(r + 1);
    }
    if (!fails)
      for (int r = 0; r < ranks; ++r)
        CHECK(groups[2].mine()[static_cast<std::size_t>(r)] == static_cast<std::byte>(r + 1));
  }
}
