// SPDX-License-Identifier: MIT
#pragma once

#include <ucontext.h>

#include <array>
#include <csetjmp>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::emulator {

struct Position {
  unsigned x = 0, y = 0, z = 0;
};
// The data that the emulator passes to a compiled kernel. Only kernels from PTX use what follows
// `dependency`.
struct Machine {
  Position thread, block, threads, blocks;
  void (*sync)() = nullptr;
  void (*yield)() = nullptr;  // lets other blocks run that started together with this one
  // Waits for earlier kernels, or lets the next kernel start (accesses.hpp).
  void (*dependency)(bool wait) = nullptr;
  // Wait for the lanes of `mask`. exchange() returns the values of the warp's 32 lanes.
  void (*warp_sync)(std::uint32_t mask) = nullptr;
  const std::uint32_t* (*exchange)(std::uint32_t mask, std::uint32_t value) = nullptr;
  // Check an access to `count` values of `size` bytes; end the program with a message (accesses.hpp).
  void (*global)(std::uint64_t address, unsigned size, unsigned count, unsigned access) = nullptr;
  void (*shared)(std::uint64_t address, unsigned size, unsigned count, unsigned access) = nullptr;
  void (*fault)(const char* what, std::uint64_t address) = nullptr;
  unsigned errors = 3;       // of approximate instructions (ptx_approximate.hpp)
  unsigned instruction = 0;  // the number in its kernel of the instruction that accesses global memory
};

// The order in which the threads of a block run. All orders are equally valid; a result that depends on the order is a
// race.
enum class ThreadOrder : std::uint8_t { forwards, backwards, random };

// The threads of one block, as fibres that switch at barriers.
class Block {
 public:
  static Block& instance();
  // Runs one block. The program ends with a message if its threads wait for another block.
  void run(unsigned threads, ThreadOrder order, const std::function<void()>& kernel);
  // Runs blocks that may wait for each other. enter(i) and leave(i) are called before and after a part of block i runs,
  // so that its shared memory can be put in place; machine.block is the caller's, too.
  void run_together(unsigned threads, unsigned blocks, const std::function<void()>& kernel,
                    const std::function<void(unsigned)>& enter, const std::function<void(unsigned)>& leave);
  Machine machine;
  // A number that grows at each barrier of the block and, in its lower 12 bits, of the thread's warp.
  [[nodiscard]] std::uint32_t interval() const {
    return work_.interval << 12U | work_.warp_intervals[machine.thread.x / 32];
  }

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack = std::vector<char>(64 * 1024);
    jmp_buf state;
    bool started = false, busy = false;
    void* shadow = nullptr;  // the address sanitizer's data for the fibre
  };

  // A lane that waits for others of its warp.
  struct Lane {
    Fiber* fiber;
    Position position;
    std::uint32_t mask, value;
    bool synchronises;
  };

  // The threads of a block between two parts of its run.
  struct Work {
    ThreadOrder how = ThreadOrder::forwards;
    std::vector<unsigned> order;  // the threads that have not begun yet
    std::size_t next = 0;
    std::vector<std::pair<Fiber*, Position>> waiting, yielding;
    std::vector<Lane> lanes;
    std::array<std::uint32_t, 1024> exchanged{};  // by thread
    std::uint32_t interval = 0;
    std::array<std::uint32_t, 32> warp_intervals{};
  };

  Block();
  void begin(unsigned threads, ThreadOrder order);
  bool advance();
  Fiber* idle();
  void resume(Fiber* f);
  static void enter();
  void leave(Fiber* me);
  void arrived(void* shadow);
  static void barrier();
  static void yield();
  static void warp_barrier(std::uint32_t mask);
  static const std::uint32_t* exchange(std::uint32_t mask, std::uint32_t value);
  void wait_for_lanes(std::uint32_t mask, std::uint32_t value, bool synchronises);
  bool release_lanes();
  void begin_interval();
  template <class T>
  void arrange(std::vector<T>& list, ThreadOrder order);

  Work work_;
  std::uint32_t intervals_ = 0;  // so that two blocks of a kernel have no interval in common
  std::size_t events_ = 0;       // grows when a thread gets further than to its next look at what other blocks do
  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
  void* shadow_ = nullptr;       // the address sanitizer's data for the scheduler
  const void* stack_ = nullptr;  // the scheduler's stack
  std::size_t stack_bytes_ = 0;
  std::uint32_t random_ = 2463534242U;
};

}  // namespace tutti::emulator
