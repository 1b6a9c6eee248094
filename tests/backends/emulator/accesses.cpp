// SPDX-License-Identifier: MIT
#include "accesses.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "block.hpp"
#include "device.hpp"
#include "sectors.hpp"

namespace tutti::emulator {

namespace {

// A thread in Accessed::threads: block * 2048 + its number. Several threads of a warp: 1024 + the warp. Several warps:
// 2047. Several blocks: everyone.
constexpr std::uint32_t several = 2047, everyone = ~0U;
// As in ptx_runtime.hpp.
constexpr unsigned reads = 1, writes = 2, strong = 4, releases = 8, acquires = 16;

std::uint32_t block_number() {
  const Machine& m = Block::instance().machine;
  return m.block.y * m.blocks.x + m.block.x;
}
std::uint32_t me() { return block_number() << 11U | Block::instance().machine.thread.x; }
bool same_warp(std::uint32_t a, std::uint32_t thread) { return (a < 1024 ? a / 32 : a - 1024) == thread / 32; }

void merge(std::vector<std::uint32_t>& to, const std::vector<std::uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size(), 0);
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

std::string name_of(std::uint32_t threads) {
  if (threads == everyone) return "threads of several blocks";
  const std::uint32_t t = threads & several;
  const std::string block = " of block number " + std::to_string(threads >> 11U);
  if (t == several) return "several threads" + block;
  return t < 1024 ? "thread " + std::to_string(t) + block : "warp " + std::to_string(t - 1024) + block;
}

unsigned chosen_errors() {
  const char* const text = std::getenv("TUTTI_EMULATOR_ERRORS");
  const std::string_view named = text != nullptr ? text : "";
  return named == "none" ? 0 : named == "up" ? 1 : named == "down" ? 2 : 3;
}

}  // namespace

Accesses& Accesses::instance() {
  static Accesses a;
  return a;
}
Accesses::Accesses() {
  Machine& m = Block::instance().machine;
  m.global = &Accesses::global;
  m.shared = &Accesses::shared;
  m.dependency = &Accesses::dependency;
  m.fault = &Accesses::fault;
  m.errors = chosen_errors();
}

// Returns whether the earlier access is not ordered before an access of this thread.
bool Accesses::concurrent(const Accessed& a, std::uint32_t serial, std::uint32_t mine, std::uint32_t interval) {
  if (a.serial != serial) return false;
  if (a.threads == everyone) return true;
  if (a.threads >> 11U != mine >> 11U) return !happened(a.threads >> 11U, a.interval >> 12U);
  if (a.interval >> 12U != interval >> 12U) return false;
  const std::uint32_t other = a.threads & several, thread = mine & several;
  if (other == thread) return false;
  return !(other != several && same_warp(other, thread) && a.interval != interval);
}
void Accesses::add(Accessed& a, std::uint32_t serial, std::uint32_t mine, std::uint32_t interval) {
  const std::uint32_t other = a.threads & several, thread = mine & several;
  const bool ours = a.threads != everyone && a.threads >> 11U == mine >> 11U;
  if (a.serial != serial || (ours && a.interval >> 12U != interval >> 12U) ||
      (!ours && a.threads != everyone && happened(a.threads >> 11U, a.interval >> 12U))) {
    a = {serial, mine, interval};
  } else if (!ours) {
    a.threads = everyone;
  } else {
    a.interval = interval;
    if (other != thread)
      a.threads = (mine & ~several) | (other != several && same_warp(other, thread) ? 1024 + thread / 32 : several);
  }
}

// Returns whether the running block has seen that another one has passed an interval.
bool Accesses::happened(std::uint32_t block, std::uint32_t interval) {
  const std::uint32_t mine = block_number();
  if (mine >= seen_.size()) return false;
  Seen& s = seen_[mine];
  if (!s.after.empty() && s.interval != Block::instance().interval() >> 12U) {
    merge(s.now, s.after);
    s.after.clear();
  }
  return block < s.now.size() && interval < s.now[block];
}
void Accesses::release(std::uint64_t address) {
  const std::uint32_t mine = block_number();
  Clock& c = released_[address];
  (void)happened(mine, 0);
  if (mine < seen_.size()) merge(c, seen_[mine].now);
  if (c.size() <= mine) c.resize(mine + 1, 0);
  c[mine] = std::max(c[mine], Block::instance().interval() >> 12U);
}
void Accesses::acquire(std::uint64_t address) {
  const auto found = released_.find(address);
  if (found == released_.end()) return;
  const std::uint32_t mine = block_number();
  (void)happened(mine, 0);
  if (seen_.size() <= mine) seen_.resize(mine + 1);
  seen_[mine].interval = Block::instance().interval() >> 12U;
  merge(seen_[mine].after, found->second);
}

void Accesses::dependency(bool wait) {
  Accesses& a = instance();
  if (!wait) return;
  std::uint32_t& waited = a.waited_[Block::instance().machine.thread.x];
  a.waits_ += waited != a.block_serial_ ? 1 : 0;
  waited = a.block_serial_;
}

void Accesses::begin_launch(const std::string& kernel, const std::uint32_t* layout, bool early) {
  kernel_ = kernel;
  early_ = early;
  waits_ = 0;
  ++launch_serial_;
  seen_.clear();
  released_.clear();
  if (pages_.size() > 2048) {  // some 200 MB
    pages_.clear();
    recent_.fill({});
  }
  valid_.clear();
  for (; layout != nullptr && layout[1] != 0; layout += 2) {
    valid_.resize(layout[0] + layout[1], 0);
    std::fill(valid_.begin() + layout[0], valid_.end(), std::uint8_t{1});
  }
  if (shared_.size() < valid_.size()) shared_.resize(valid_.size());
}

void Accesses::fault(const char* what, std::uint64_t address) {
  const Machine& m = Block::instance().machine;
  char text[40] = "";
  if (address != 0) std::snprintf(text, sizeof text, ": address 0x%llx", static_cast<unsigned long long>(address));
  give_up(what + (" in kernel " + instance().kernel_) + ", block " + std::to_string(m.block.x) + "," +
          std::to_string(m.block.y) + ", thread " + std::to_string(m.thread.x) + text);
}

// Inaccessible pages lie between allocations, so that an access of 16 bytes touches at most one of them.
bool Accesses::allocated(Page& page, std::uint64_t begin, std::uint64_t end) const {
  if (page.allocated == launch_serial_) return true;
  const Device& d = Device::instance();
  const auto both = [&](std::uint64_t from, std::uint64_t to) {
    const auto *a = reinterpret_cast<const void*>(from), *b = reinterpret_cast<const void*>(to - 1);
    return (d.memory.holds(a) && d.memory.holds(b)) || (d.pinned.holds(a) && d.pinned.holds(b));
  };
  const std::uint64_t first = begin / page_bytes * page_bytes;
  if (both(first, first + page_bytes)) page.allocated = launch_serial_;
  return both(begin, end);
}

// Returns the cells of a page, which are at most `size` bytes.
Accesses::Page& Accesses::page_of(std::uint64_t address, unsigned size) {
  const std::uint64_t number = address / page_bytes;
  auto& [recent, page] = recent_[number % recent_.size()];
  if (recent != number || page == nullptr) {
    page = &pages_.try_emplace(number, Page{size >= 4 ? 2U : size == 2 ? 1U : 0U, {}, 0}).first->second;
    if (page->cells.empty()) page->cells.resize(page_bytes >> page->shift);
    recent = number;
  }
  while (1U << page->shift > size) {
    std::vector<Cell> finer;
    finer.reserve(2 * page->cells.size());
    for (const Cell& c : page->cells) finer.insert(finer.end(), 2, c);
    page->cells = std::move(finer);
    --page->shift;
  }
  return *page;
}

void Accesses::access(Cell& cell, std::uint32_t serial, unsigned access, const char* where, std::uint64_t address) {
  const std::uint32_t mine = me(), interval = Block::instance().interval();
  const auto check = [&](const Accessed& a, const char* what) {
    if (!concurrent(a, serial, mine, interval)) return;
    const std::string text = std::string("a race in ") + where +
                             " memory: " + ((access & writes) != 0 ? "write" : "read") + " after a " + what + " by " +
                             name_of(a.threads);
    fault(text.c_str(), address);
  };
  const bool write = (access & writes) != 0;
  check(cell.write, "write");
  if (write) check(cell.read, "read");
  if ((access & strong) != 0) {
    add(write ? cell.strong_write : cell.strong_read, serial, mine, interval);
  } else {
    check(cell.strong_write, "atomic write");
    if (write) check(cell.strong_read, "atomic read");
    add(write ? cell.write : cell.read, serial, mine, interval);
  }
}

void Accesses::global(std::uint64_t address, unsigned size, unsigned count, unsigned access) {
  Accesses& a = instance();
  const unsigned bytes = size * count;
  if (a.early_ && a.waited_[Block::instance().machine.thread.x] != a.block_serial_)
    fault("an access before the wait for earlier kernels", address);
  if (address % bytes != 0) fault("data that is not aligned", address);
  Page& page = a.page_of(address, size);
  if (!a.allocated(page, address, address + bytes)) fault("memory that is not allocated", address);
  const std::uint64_t begin = address % page_bytes;
  for (std::uint64_t i = begin >> page.shift; i < (begin + bytes) >> page.shift; ++i)
    a.access(page.cells[i], a.launch_serial_, access, "global", address);
  Sectors::instance().access(address, bytes, (access & writes) != 0);
  if ((access & releases) != 0) a.release(address);
  if ((access & acquires) != 0) a.acquire(address);
}

void Accesses::shared(std::uint64_t address, unsigned size, unsigned count, unsigned access) {
  Accesses& a = instance();
  const unsigned bytes = size * count;
  if (address % bytes != 0) fault("shared data that is not aligned", address);
  for (std::uint64_t i = address; i < address + bytes; ++i) {
    if (i >= a.valid_.size() || a.valid_[i] == 0) fault("shared memory: an index out of bounds", address);
    Cell& c = a.shared_[i];
    const bool written = c.write.serial == a.block_serial_ || c.strong_write.serial == a.block_serial_;
    if ((access & reads) != 0 && !written) fault("a read of shared memory that was not written", address);
    a.access(c, a.block_serial_, access, "shared", address);
  }
}

}  // namespace tutti::emulator
