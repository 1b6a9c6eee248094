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
  machine.yield = &Block::yield;
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

void Block::begin(unsigned threads, ThreadOrder order) {
  work_ = {};
  work_.how = order;
  work_.order.resize(threads);
  std::iota(work_.order.begin(), work_.order.end(), 0U);
  arrange(work_.order, order);
  begin_interval();
}

// Runs the block to its end, or until it waits for another block; returns whether it has ended.
bool Block::advance() {
  for (auto& [fiber, position] : std::exchange(work_.yielding, {})) {
    machine.thread = position;
    resume(fiber);
  }
  while (work_.next < work_.order.size()) resume(idle());
  for (;;) {
    if (release_lanes()) continue;
    if (!work_.yielding.empty()) return false;
    if (!work_.lanes.empty()) give_up("an operation of a warp that not all of its lanes reach");
    if (work_.waiting.empty()) return true;
    // Some threads have returned, so not all threads can reach the barrier.
    if (work_.waiting.size() != work_.order.size()) give_up("a barrier that not all threads of a block reach");
    auto now = std::exchange(work_.waiting, {});
    begin_interval();
    arrange(now, work_.how);
    for (auto& [fiber, position] : now) {
      machine.thread = position;
      resume(fiber);
    }
  }
}

void Block::run(unsigned threads, ThreadOrder order, const std::function<void()>& kernel) {
  kernel_ = &kernel;
  begin(threads, order);
  if (!advance()) give_up("a thread that waits for another block, in a launch that is not cooperative");
}

void Block::run_together(unsigned threads, unsigned blocks, const std::function<void()>& kernel,
                         const std::function<void(unsigned)>& enter, const std::function<void(unsigned)>& leave) {
  kernel_ = &kernel;
  std::vector<Work> works(blocks);
  std::vector<char> begun(blocks, 0), ended(blocks, 0);
  for (std::size_t left = blocks, before = events_ + 1; left > 0;) {
    if (before == events_) give_up("blocks that wait for each other without an end");
    before = events_;
    for (unsigned i = 0; i < blocks; ++i) {
      if (ended[i] != 0) continue;
      enter(i);
      std::swap(work_, works[i]);
      if (begun[i] == 0) begin(threads, static_cast<ThreadOrder>(i % 3));
      begun[i] = 1;
      if (advance()) {
        ended[i] = 1;
        --left;
        ++events_;
      }
      std::swap(work_, works[i]);
      leave(i);
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
    while (b.work_.next < b.work_.order.size()) {
      b.machine.thread = {b.work_.order[b.work_.next++], 0, 0};
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
  b.work_.waiting.emplace_back(me, b.machine.thread);
  b.leave(me);
}

void Block::yield() {
  Block& b = instance();
  Fiber* const me = b.current_;
  b.work_.yielding.emplace_back(me, b.machine.thread);
  b.leave(me);
}

void Block::begin_interval() {
  work_.interval = ++intervals_;
  work_.warp_intervals.fill(0);
  ++events_;
}

void Block::warp_barrier(std::uint32_t mask) { instance().wait_for_lanes(mask, 0, true); }
const std::uint32_t* Block::exchange(std::uint32_t mask, std::uint32_t value) {
  Block& b = instance();
  const unsigned warp = b.machine.thread.x / 32;
  b.wait_for_lanes(mask, value, false);
  return &b.work_.exchanged[std::size_t{32} * warp];
}
void Block::wait_for_lanes(std::uint32_t mask, std::uint32_t value, bool synchronises) {
  if ((mask >> machine.thread.x % 32 & 1U) == 0) give_up("a lane that its own operation leaves out");
  Fiber* const me = current_;
  work_.lanes.push_back({me, machine.thread, mask, value, synchronises});
  leave(me);
}
// Resumes the lanes of one operation that all of them have reached. Returns false if there is none.
bool Block::release_lanes() {
  for (const Lane& first : work_.lanes) {
    const auto belongs = [warp = first.position.x / 32, mask = first.mask, s = first.synchronises](const Lane& l) {
      return l.position.x / 32 == warp && l.mask == mask && l.synchronises == s;
    };
    std::vector<Lane> group;
    std::copy_if(work_.lanes.begin(), work_.lanes.end(), std::back_inserter(group), belongs);
    if (group.size() != static_cast<std::size_t>(std::popcount(first.mask))) continue;
    if (first.synchronises && ~first.mask == 0) ++work_.warp_intervals[first.position.x / 32];
    std::erase_if(work_.lanes, belongs);
    for (const Lane& l : group) work_.exchanged[l.position.x] = l.value;
    for (const Lane& l : group) {
      machine.thread = l.position;
      resume(l.fiber);
    }
    return true;
  }
  return false;
}

}  // namespace tutti::emulator
