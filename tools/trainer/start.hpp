// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/train/detail/trainer/memory_estimate.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/options.hpp"

// Functions that print and check the run before the first step.
namespace tutti::trainer {

inline void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

std::string versions(const Backend& backend, const RunOptions& o, int world);

// Returns the error message if the run needs more memory than the host has, which its ranks share.
[[nodiscard]] std::optional<std::string> memory_shortage(const MemoryEstimate& m, const RunOptions& o, int ranks_here);

// Throws DeviceError if the memory is too small, so that the run does not fail in the middle of the first step.
inline void check_memory(const MemoryEstimate& m, const RunOptions& o, int ranks_here) {
  if (const auto shortage = memory_shortage(m, o, ranks_here)) throw DeviceError(*shortage);
}

// Returns the memory that the run needs. Makes the largest plans, except for a --dry-run that needs more memory than
// the host has.
MemoryEstimate memory_of(Trainer& trainer, const RunOptions& o, const Schema& seen);

// Loads weights on rank 0, which sends them to the other ranks.
void load_pretrained(Trainer& trainer, const RunOptions& o);

// Prints the net and the memory that it needs: the table of layers with --dry-run, the totals always.
void print_net(const Graph& model, const MemoryEstimate& memory, const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
