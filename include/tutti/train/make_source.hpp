// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>

namespace tutti {

// Whether images that do not change are kept in the device's memory. automatic: up to 1 GiB and a quarter of the free
// memory.
enum class OnDevice : std::uint8_t { automatic, yes, no };

namespace detail {

inline bool lies_on_device(Backend& backend, const AnyDataset& d, OnDevice wanted, const std::string& where) {
  if (wanted == OnDevice::no) return false;
  const bool asked = wanted == OnDevice::yes;
  if (!backend.gathers_images()) {
    if (asked)
      fail<UsageError>(where, {"auto or no with backend ", backend.name()}, "yes", "only --backend cuda supports it");
    return false;
  }
  const std::size_t bytes = resident_bytes(d), there = backend.memory().free_bytes();
  if (asked && bytes == 0)
    fail<UsageError>(where, {"auto or no for ", d.schema().name}, "yes", "its images are computed anew at each read");
  if (asked && bytes > there)
    fail<DeviceError>(where, {format_bytes(static_cast<double>(bytes)), " for ", d.schema().name},
                      {format_bytes(static_cast<double>(there)), " free"}, "leave the option out");
  // Leaves most of the memory for larger batches.
  return asked || (bytes > 0 && bytes <= std::min(std::size_t{1} << 30, there / 4));
}

}  // namespace detail

// Returns batches of a data set in the fastest form for the backend: from the backend's own memory, or from a loader
// with slots that a device reads directly. where: for messages. resident: the number of bytes in the backend's memory
// is added to it.
[[nodiscard]] inline std::unique_ptr<BatchSource> make_source(Backend& backend, const AnyDataset& d, LoaderOptions l,
                                                              OnDevice on_device = OnDevice::automatic,
                                                              std::size_t* resident = nullptr,
                                                              const std::string& where = "make_source") {
  const bool changes = l.mix || l.col_out.any() || !l.later.empty();
  if (changes && on_device == OnDevice::yes)
    fail<UsageError>(where, "auto or no with mixed images, ColOut and images of several sizes", "yes",
                     "the loader's threads make these on the host");
  if (!changes && detail::lies_on_device(backend, d, on_device, where)) {
    if (resident != nullptr) *resident += resident_bytes(d);
    return std::make_unique<ResidentSource>(backend, d, std::move(l));
  }
  if (backend.pins_memory()) {
    l.allocate = [&backend](std::size_t bytes) { return backend.allocate_pinned(bytes); };
    l.before_reuse = [&backend] { backend.wait_for_uploads(); };
  }
  return std::make_unique<Loader>(d, std::move(l));
}

}  // namespace tutti
