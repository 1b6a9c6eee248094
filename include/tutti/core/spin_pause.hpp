// SPDX-License-Identifier: MIT
#pragma once

namespace tutti {

// In a loop that asks again and again for some microseconds before it sleeps. Such a loop does not call sched_yield():
// Linux 6.18 takes a whole slice, milliseconds, off a thread that yields while others want its core.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace tutti
