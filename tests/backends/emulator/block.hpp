// SPDX-License-Identifier: MIT
#pragma once

#include <ucontext.h>

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
// The data that the emulator passes to a compiled kernel.
struct Machine {
  Position thread, block, threads, blocks;
  void (*sync)() = nullptr;
};

// The order in which the threads of a block run. All orders are equally valid; a result that depends on the order is a
// race.
enum class ThreadOrder : std::uint8_t { forwards, backwards, random };

// The threads of one block, as fibres that switch at barriers.
class Block {
 public:
  static Block& instance();
  void run(unsigned threads, ThreadOrder order, const std::function<void()>& kernel);
  Machine machine;

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack = std::vector<char>(64 * 1024);
    jmp_buf state;
    bool started = false, busy = false;
    void* shadow = nullptr;  // the address sanitizer's data for the fibre
  };

  Block() { machine.sync = &Block::barrier; }
  Fiber* idle();
  void resume(Fiber* f);
  static void enter();
  void leave(Fiber* me);
  void arrived(void* shadow);
  static void barrier();
  template <class T>
  void arrange(std::vector<T>& list, ThreadOrder order);

  std::vector<unsigned> order_;  // the threads that have not begun yet
  std::size_t next_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::pair<Fiber*, Position>> waiting_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
  void* shadow_ = nullptr;       // the address sanitizer's data for the scheduler
  const void* stack_ = nullptr;  // the scheduler's stack
  std::size_t stack_bytes_ = 0;
  std::uint32_t random_ = 2463534242U;
};

}  // namespace tutti::emulator
