// SPDX-License-Identifier: MIT
#pragma once

namespace tutti {

// Call this in a loop that polls for some microseconds before it sleeps. Do not call sched_yield() in such a loop:
// Linux 6.18 takes a whole time slice, milliseconds, from a thread that yields while other threads want its core.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits some tens of cycles; yield does nothing on most processors
#endif
}

}  // namespace tutti
