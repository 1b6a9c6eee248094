// SPDX-License-Identifier: MIT
// Tests memory that a process shares with processes of its host: how it is made and sealed.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>

#include "io/size_limit.hpp"
#include "window_checks.hpp"

using namespace tutti;
using testing::all_zero;

namespace {

io::Descriptor memory(std::size_t bytes, unsigned flags) {
  io::Descriptor fd(::memfd_create("test", flags));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}
std::string why_not(io::Descriptor fd, std::size_t bytes) {
  std::string why;
  CHECK(HostWindow::of_neighbour(std::move(fd), bytes, why) == nullptr);
  return why;
}

}  // namespace

TEST_CASE("a host window is zero, page aligned, fully allocated, and cannot shrink") {
  std::string why;
  const auto w = HostWindow::make((std::size_t{3} << 20) + 5, why);
  REQUIRE_MESSAGE(w != nullptr, why);
  const std::size_t page = HostWindow::whole_pages(1);
  CHECK(w->bytes().size() == (std::size_t{3} << 20) + page);
  CHECK(reinterpret_cast<std::uintptr_t>(w->bytes().data()) % page == 0);
  // Before anything reads the memory, which would allocate it.
  std::vector<unsigned char> there(w->bytes().size() / page);
  REQUIRE(::mincore(w->bytes().data(), w->bytes().size(), there.data()) == 0);
  CHECK(std::all_of(there.begin(), there.end(), [](unsigned char c) { return (c & 1U) != 0; }));
  CHECK(all_zero(w->bytes()));
  const io::Descriptor other(::dup(w->descriptor()));
  for (const off_t size : {off_t{0}, off_t{4096}, off_t{64} << 20}) {
    CHECK(::ftruncate(other.get(), size) == -1);
    CHECK(errno == EPERM);
  }
  CHECK(::fcntl(other.get(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
  w->bytes().back() = std::byte{1};
  CHECK((::fcntl(w->descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a host window has a fixed layout") {
  std::string why;
  const auto w = HostWindow::make(4096, why);
  REQUIRE(w != nullptr);
  const auto all = w->bytes();
  CHECK(w->place_of(all) == 0);
  CHECK(w->place_of(all.subspan(100, 10)) == 100);
  CHECK(w->place_of(all.subspan(4096, 0)) == 4096);
  const std::vector<std::byte> elsewhere(10);
  CHECK(w->place_of(elsewhere) > 4096);
  CHECK(w->place_of(std::span(all.data() + 4090, 10)) > 4096);
  CHECK(w->place_of(std::span(all.data() - 1, 10)) > 4096);
}

TEST_CASE("if a host window cannot be made, the error gives the reason") {
  std::string why;
  CHECK(HostWindow::make(0, why) == nullptr);
  CHECK(HostWindow::make(std::size_t{1} << 60, why) == nullptr);
  CHECK(!why.empty());
  const test::SizeLimit limit(1 << 20);
  CHECK(HostWindow::make(std::size_t{2} << 20, why) == nullptr);
  CHECK(why == "the limit of file sizes (ulimit -f) is 1048576 bytes");
  CHECK(HostWindow::make(1 << 19, why) != nullptr);
}

TEST_CASE("a host window that its owner could shrink, or that is too small, is refused") {
  constexpr std::size_t n = 1 << 20;
  const auto filled = [&](unsigned flags) {
    io::Descriptor fd = memory(n, flags);
    const std::vector<char> bytes(n);
    REQUIRE(::write(fd.get(), bytes.data(), n) == ssize_t{n});
    return fd;
  };
  const auto sealed = [](io::Descriptor fd) {
    REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
  };
  CHECK(why_not(filled(0), n) == "its owner can shrink the window");
  CHECK(why_not(filled(MFD_ALLOW_SEALING), n) == "its owner can shrink the window");
  CHECK(why_not(sealed(memory(n, MFD_ALLOW_SEALING)), n) == "the memory of the window is not allocated");
  CHECK(why_not(sealed(filled(MFD_ALLOW_SEALING)), n + 4096) == "the window has 1048576 bytes instead of 1052672");
  CHECK(why_not(sealed(filled(MFD_ALLOW_SEALING)), 0) == "the window has 1048576 bytes instead of 0");
  CHECK(why_not(io::Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC)), n) == "its owner can shrink the window");
  CHECK(why_not(io::Descriptor(), n) == "its owner can shrink the window");
  std::string why;
  CHECK(HostWindow::of_neighbour(sealed(filled(MFD_ALLOW_SEALING)), n, why) != nullptr);
}
