// SPDX-License-Identifier: MIT
#pragma once

#include <sys/resource.h>

namespace tutti::io {

// Raises the limit of open descriptors of this process and its children to the hard limit, if the system allows it. For
// processes that serve many connections, because other processes decide how many.
inline void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tutti::io
