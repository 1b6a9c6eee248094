// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Checks each memory access of kernels that were translated from PTX.
namespace tutti::emulator {

// Which threads accessed some bytes last, in which barrier interval, and in which launch or block (`serial`).
struct Accessed {
  std::uint32_t serial = 0, threads = 0, interval = 0;
};
struct Cell {
  Accessed write, read;
  Accessed strong_write, strong_read;  // atomic operations, and volatile or ordered accesses
};

// Ends the program with a message that names the kernel, the block and the thread:
//  - an access that is not aligned, or outside of an allocation, or outside of the block's shared variables;
//  - a read of shared memory that no thread of the block has written;
//  - a race. In shared memory: two threads of a block access a byte between the same two barriers, and one of them
//    writes. In global memory: two threads of a launch do, unless they are of one block and a barrier lies between, or
//    of two blocks, and the first has passed a barrier and then made an atomic operation with release, which the second
//    has seen with acquire before a barrier;
//  - in a launch that starts early, an access to global memory before the thread has waited for earlier kernels.
class Accesses {
 public:
  static Accesses& instance();
  // layout: begin and bytes of each shared variable of the kernel, then two zeros; null: not from PTX.
  // early: the kernel may start before the kernel before it in the stream has ended.
  void begin_launch(const std::string& kernel, const std::uint32_t* layout, bool early);
  // Returns how many threads of the launch have waited for earlier kernels.
  [[nodiscard]] std::size_t waits() const noexcept { return waits_; }
  void begin_block() { block_serial_ = ++block_serials_; }
  // What is known of the shared memory of a block that does not run at the moment.
  struct SharedCells {
    std::uint32_t serial = 0;
    std::vector<Cell> cells;
  };
  void exchange(SharedCells& other) {
    std::swap(block_serial_, other.serial);
    std::swap(shared_, other.cells);
    if (shared_.size() < valid_.size()) shared_.resize(valid_.size());
  }

 private:
  static constexpr std::size_t page_bytes = 4096;
  // The cells of a page of memory, one for 2^shift bytes.
  struct Page {
    unsigned shift;
    std::vector<Cell> cells;
    std::uint32_t allocated = 0;  // the launch in which the whole page was allocated
  };

  Accesses();
  static void global(std::uint64_t address, unsigned size, unsigned count, unsigned access);
  static void shared(std::uint64_t address, unsigned size, unsigned count, unsigned access);
  static void dependency(bool wait);
  [[noreturn]] static void fault(const char* what, std::uint64_t address);
  [[nodiscard]] bool allocated(Page& page, std::uint64_t begin, std::uint64_t end) const;
  Page& page_of(std::uint64_t address, unsigned size);
  [[nodiscard]] bool concurrent(const Accessed& a, std::uint32_t serial, std::uint32_t mine, std::uint32_t interval);
  [[nodiscard]] bool happened(std::uint32_t block, std::uint32_t interval);
  void add(Accessed& a, std::uint32_t serial, std::uint32_t mine, std::uint32_t interval);
  void release(std::uint64_t address);
  void acquire(std::uint64_t address);
  void access(Cell& cell, std::uint32_t serial, unsigned access, const char* where, std::uint64_t address);

  std::string kernel_;
  bool early_ = false;
  std::size_t waits_ = 0;
  std::array<std::uint32_t, 1024> waited_{};  // by thread: the serial of the last block in which it has waited
  std::uint32_t launch_serial_ = 0, block_serial_ = 0, block_serials_ = 0;
  // For each block, the interval before which all of its accesses have happened.
  using Clock = std::vector<std::uint32_t>;
  struct Seen {
    Clock now, after;            // what a block has seen, and what its threads see after the next barrier
    std::uint32_t interval = 0;  // of `after`
  };
  std::vector<Seen> seen_;  // by block
  std::unordered_map<std::uint64_t, Clock> released_;
  std::vector<std::uint8_t> valid_;  // bytes of shared variables
  std::vector<Cell> shared_;
  std::unordered_map<std::uint64_t, Page> pages_;
  std::array<std::pair<std::uint64_t, Page*>, 64> recent_{};
};

}  // namespace tutti::emulator
