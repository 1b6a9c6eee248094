// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <tutti/data/batch_source.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/train/resident_source.hpp>

#include "options.hpp"

// Where a run takes its batches from.
namespace tutti::examples {

namespace detail {

// Whether the images go to the backend's memory, once and whole.
inline bool fits_on_device(Backend& backend, const AnyDataset& d, const RunOptions& o) {
  if (o.data_on_device == "no") return false;
  const bool asked = o.data_on_device == "yes";
  if (!backend.gathers_images()) {
    if (asked)
      fail<UsageError>("--data-on-device", "auto or no with backend " + backend.name(), "yes",
                       "it is for --backend cuda");
    return false;
  }
  const std::size_t bytes = resident_bytes(d), there = backend.memory().free_bytes();
  if (asked && bytes == 0)
    fail<UsageError>("--data-on-device", "auto or no for " + d.schema().name, "yes",
                     "its images are made anew each time they are read");
  if (asked && bytes > there)
    fail<DeviceError>("--data-on-device", format_bytes(static_cast<double>(bytes)) + " for " + d.schema().name,
                      format_bytes(static_cast<double>(there)) + " free", "leave it out");
  // Most of the memory is for larger batches.
  return asked || (bytes > 0 && bytes <= std::min(std::size_t{1} << 30, there / 4));
}

}  // namespace detail

// Batches of a data set. `resident`: counts the bytes that lie in the backend's memory.
inline std::unique_ptr<BatchSource> make_source(Backend& backend, const AnyDataset& d, LoaderOptions l,
                                                const RunOptions& o, std::size_t& resident) {
  if (detail::fits_on_device(backend, d, o)) {
    resident += resident_bytes(d);
    return std::make_unique<ResidentSource>(backend, d, std::move(l));
  }
  // Slots that the device reads by itself, as long as it takes.
  if (backend.pins_memory()) {
    l.allocate = [&backend](std::size_t bytes) { return backend.allocate_pinned(bytes); };
    l.before_reuse = [&backend] { backend.wait_for_uploads(); };
  }
  return std::make_unique<Loader>(d, std::move(l));
}

}  // namespace tutti::examples
