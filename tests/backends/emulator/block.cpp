// SPDX-License-Identifier: MIT
#include "block.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "core/sanitizers.hpp"
#include "memory.hpp"

#if defined(TUTTI_TEST_ASAN)
// From the compiler's <sanitizer/common_interface_defs.h>, which need not be installed.
extern "C" {
void __sanitizer_start_switch_fiber(void** shadow, const void* stack, std::size_t bytes);
void __sanitizer_finish_switch_fiber(void* shadow, const void** from, std::size_t* bytes);
}
#endif

namespace tutti::emulator {

namespace {

// Call goes() before a change of the stack and came() after it, to inform the address sanitizer.
void goes([[maybe_unused]] void** shadow, [[maybe_unused]] const void* stack, [[maybe_unused]] std::size_t bytes) {
#if defined(TUTTI_TEST_ASAN)
  __sanitizer_start_switch_fiber(shadow, stack, bytes);
#endif
}
void came([[maybe_unused]] void* shadow, [[maybe_unused]] const void** from, [[maybe_unused]] std::size_t* bytes) {
#if defined(TUTTI_TEST_ASAN)
  __sanitizer_finish_switch_fiber(shadow, from, bytes);
#endif
}

}  // namespace

Block& Block::instance() {
  static Block b;
  return b;
}

template <class T>
void Block::arrange(std::vector<T>& list, ThreadOrder order) {
  if (order == ThreadOrder::backwards) std::reverse(list.begin(), list.end());
  if (order != ThreadOrder::random) return;
  for (std::size_t i = list.size(); i > 1; --i) {
    random_ ^= random_ << 13U;  // Marsaglia's xorshift
    random_ ^= random_ >> 17U;
    random_ ^= random_ << 5U;
    std::swap(list[i - 1], list[random_ % i]);
  }
}

void Block::run(unsigned threads, ThreadOrder order, const std::function<void()>& kernel) {
  order_.resize(threads);
  std::iota(order_.begin(), order_.end(), 0U);
  arrange(order_, order);
  next_ = 0;
  kernel_ = &kernel;
  while (next_ < order_.size()) resume(idle());
  while (!waiting_.empty()) {
    // Some threads have returned, so not all threads can reach the barrier.
    if (waiting_.size() != threads) give_up("a barrier that not all threads of a block reach");
    auto now = std::exchange(waiting_, {});
    arrange(now, order);
    for (auto& [fiber, position] : now) {
      machine.thread = position;
      resume(fiber);
    }
  }
}

Block::Fiber* Block::idle() {
  for (auto& f : fibers_)
    if (!f->busy) return f.get();
  fibers_.push_back(std::make_unique<Fiber>());
  return fibers_.back().get();
}
void Block::resume(Fiber* f) {
  current_ = f;
  if (_setjmp(scheduler_) != 0) {
    came(shadow_, nullptr, nullptr);
    return;
  }
  goes(&shadow_, f->stack.data(), f->stack.size());
  if (f->started) _longjmp(f->state, 1);
  f->started = true;
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack.data();
  f->context.uc_stack.ss_size = f->stack.size();
  makecontext(&f->context, &Block::enter, 0);
  setcontext(&f->context);
}
void Block::enter() {
  Block& b = instance();
  b.arrived(nullptr);
  for (;;) {
    Fiber* const me = b.current_;
    me->busy = true;
    while (b.next_ < b.order_.size()) {
      b.machine.thread = {b.order_[b.next_++], 0, 0};
      (*b.kernel_)();
    }
    me->busy = false;
    b.leave(me);
  }
}
void Block::leave(Fiber* me) {
  if (_setjmp(me->state) == 0) {
    goes(&me->shadow, stack_, stack_bytes_);
    _longjmp(scheduler_, 1);
  }
  arrived(me->shadow);
}
// A fibre's previous stack is the scheduler's.
void Block::arrived(void* shadow) { came(shadow, &stack_, &stack_bytes_); }
void Block::barrier() {
  Block& b = instance();
  Fiber* const me = b.current_;
  b.waiting_.emplace_back(me, b.machine.thread);
  b.leave(me);
}

}  // namespace tutti::emulator
