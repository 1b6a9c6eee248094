// SPDX-License-Identifier: MIT
#include "block.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
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

Block::Block() {
  machine.sync = &Block::barrier;
  machine.warp_sync = &Block::warp_barrier;
  machine.exchange = &Block::exchange;
}

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
  begin_interval();
  while (next_ < order_.size()) resume(idle());
  for (;;) {
    if (release_lanes()) continue;
    if (!lanes_.empty()) give_up("an operation of a warp that not all of its lanes reach");
    if (waiting_.empty()) return;
    // Some threads have returned, so not all threads can reach the barrier.
    if (waiting_.size() != threads) give_up("a barrier that not all threads of a block reach");
    auto now = std::exchange(waiting_, {});
    begin_interval();
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

void Block::begin_interval() {
  ++interval_;
  warp_intervals_.fill(0);
}

void Block::warp_barrier(std::uint32_t mask) { instance().wait_for_lanes(mask, 0, true); }
const std::uint32_t* Block::exchange(std::uint32_t mask, std::uint32_t value) {
  Block& b = instance();
  const unsigned warp = b.machine.thread.x / 32;
  b.wait_for_lanes(mask, value, false);
  return &b.exchanged_[std::size_t{32} * warp];
}
void Block::wait_for_lanes(std::uint32_t mask, std::uint32_t value, bool synchronises) {
  if ((mask >> machine.thread.x % 32 & 1U) == 0) give_up("a lane that its own operation leaves out");
  Fiber* const me = current_;
  lanes_.push_back({me, machine.thread, mask, value, synchronises});
  leave(me);
}
// Resumes the lanes of one operation that all of them have reached. Returns false if there is none.
bool Block::release_lanes() {
  for (const Lane& first : lanes_) {
    const auto belongs = [warp = first.position.x / 32, mask = first.mask, s = first.synchronises](const Lane& l) {
      return l.position.x / 32 == warp && l.mask == mask && l.synchronises == s;
    };
    std::vector<Lane> group;
    std::copy_if(lanes_.begin(), lanes_.end(), std::back_inserter(group), belongs);
    if (group.size() != static_cast<std::size_t>(std::popcount(first.mask))) continue;
    if (first.synchronises && ~first.mask == 0) ++warp_intervals_[first.position.x / 32];
    std::erase_if(lanes_, belongs);
    for (const Lane& l : group) exchanged_[l.position.x] = l.value;
    for (const Lane& l : group) {
      machine.thread = l.position;
      resume(l.fiber);
    }
    return true;
  }
  return false;
}

}  // namespace tutti::emulator
