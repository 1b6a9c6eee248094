// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <tutti/core/separate.hpp>

namespace tutti {

// The memory of a training on one rank, in bytes.
struct MemoryEstimate {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, states = 0, activations = 0, scratch = 0, packed = 0,
              committed = 0, batches = 0;
  [[nodiscard]] std::size_t total() const {
    return parameters + gradients + optimizer + states + activations + scratch + packed + committed + batches;
  }
};

// Formats one line: "memory: activations 3.1 MiB, ...".
[[nodiscard]] TUTTI_CORE_FUNCTION std::string to_string(const MemoryEstimate& m);

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/graph/summary.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION std::string to_string(const MemoryEstimate& m) {
  std::string out = "memory:";
  const auto item = [&](const char* name, std::size_t bytes, bool last = false) {
    out += std::string(" ") + name + ' ' + format_bytes(static_cast<double>(bytes)) + (last ? "" : ",");
  };
  item("activations", m.activations);
  item("weights", m.parameters + m.states);
  item("gradients", m.gradients);
  item("optimizer", m.optimizer);
  item("packed weights", m.packed);
  item("scratch", m.scratch);
  item("committed copy", m.committed);
  item("batches", m.batches);
  item("in all", m.total(), true);
  return out;
}

}  // namespace tutti
#endif
