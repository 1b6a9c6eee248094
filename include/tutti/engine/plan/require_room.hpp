// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/backend.hpp>

namespace tutti {

// The memory that a run with a batch needs, in bytes of the backend's memory.
struct RoomRequest {
  std::int64_t rows = 0;
  std::size_t wanted = 0;
  std::size_t own = 0;    // allocated by earlier runs and usable by this one
  std::size_t model = 0;  // parameters, gradients and running statistics
};

// Throws DeviceError if a run needs more memory than is free, before it allocates any, and names the largest batch that
// fits. wanted_by(rows): the bytes that a run with fewer rows needs. Backends on the host report no limit.
inline void require_room(Backend& b, const RoomRequest& r, FunctionRef<std::size_t(std::int64_t rows)> wanted_by) {
  const std::size_t available = b.memory().free_bytes();
  if (available == Memory::unlimited) return;
  const std::size_t room = available + r.own;
  if (r.wanted <= room) return;
  // A training run allocates parameters, gradients and optimizer state first.
  const std::size_t allocated = b.memory().allocated_bytes();
  const std::size_t held = allocated > 0 ? allocated - r.own : r.model;
  const std::string also = b.memory_hint();
  std::int64_t fits = 0;
  for (std::int64_t low = 1, high = r.rows - 1; low <= high;) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool enough = wanted_by(middle) <= room;
    (enough ? low : high) = enough ? middle + 1 : middle - 1;
    if (enough) fits = middle;
  }
  const auto mib = [](std::size_t n) { return (n + 0xfffff) >> 20; };
  std::string hint = "not even one row fits: end other programs that use the device";
  if (fits > 0)
    hint = concat(
        {"at most about ", fits, " rows fit: use --batch-size", also.empty() ? ", or " : ", ", "--precision bf16"});
  if (!also.empty()) hint += concat({fits > 0 ? ", or " : ", or use ", also});
  fail<DeviceError>(b.name(),
                    {mib(r.wanted), " MiB of memory in addition to the ", mib(held),
                     " MiB of parameters, gradients and optimizer state for a batch of ", r.rows},
                    {mib(room), " MiB free"}, hint);
}

}  // namespace tutti
