// SPDX-License-Identifier: MIT
#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tutti::emulator {

namespace {
// The value of the bytes between the data and the inaccessible pages.
constexpr char beside = '\x5b';
constexpr std::size_t alignment = 256;  // of cudaMalloc()
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
bool untouched(const char* from, const char* to) {
  for (; from != to; ++from)
    if (*from != beside) return false;
  return true;
}
}  // namespace

void give_up(const std::string& why) {
  std::fprintf(stderr, "emulator: %s\n", why.c_str());
  std::abort();
}

void* GuardedMemory::allocate(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = round_up(bytes, alignment), pages = round_up(size, page), mapped = pages + 2 * page;
  void* const map = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED || ::mprotect(static_cast<char*>(map) + page, pages, PROT_READ | PROT_WRITE) != 0)
    give_up("no memory");
  char* const first = static_cast<char*>(map) + page;
  char* const p = first + pages - size;
  std::memset(first, beside, pages - size);
  std::memset(p, 0xff, bytes);  // memory that was never written reads as NaN
  std::memset(p + bytes, beside, size - bytes);
  pieces_[p] = {bytes, mapped, static_cast<char*>(map)};
  used_ += bytes;
  return p;
}

bool GuardedMemory::release(void* p) {
  const auto it = pieces_.find(static_cast<const char*>(p));
  if (it == pieces_.end()) return false;
  const auto& [begin, piece] = *it;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (!untouched(piece.map + page, begin)) give_up("memory was written ahead of an allocation");
  if (!untouched(begin + piece.bytes, piece.map + piece.mapped - page))
    give_up("memory was written behind an allocation");
  ::munmap(piece.map, piece.mapped);
  used_ -= piece.bytes;
  pieces_.erase(it);
  return true;
}

bool GuardedMemory::holds(const void* p) const {
  const char* const at = static_cast<const char*>(p);
  auto it = pieces_.upper_bound(at);
  return it != pieces_.begin() && at < (--it)->first + it->second.bytes;
}
std::size_t GuardedMemory::size_of(const void* p) const {
  const auto it = pieces_.find(static_cast<const char*>(p));
  return it == pieces_.end() ? 0 : it->second.bytes;
}

}  // namespace tutti::emulator
