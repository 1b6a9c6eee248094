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

// What a run prints and checks before the first step.
namespace tutti::trainer {

inline void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

std::string versions(const Backend& backend, const RunOptions& o, int world);

void print_start(const Backend& backend, const RunOptions& o, int world);

// Returns the error message if the host's memory, which its ranks share, does not hold what the run takes.
[[nodiscard]] std::optional<std::string> memory_shortage(const MemoryEstimate& m, const RunOptions& o, int ranks_here);

// Throws DeviceError before the first step, not in the middle of it, if the memory is too small.
inline void check_memory(const MemoryEstimate& m, const RunOptions& o, int ranks_here) {
  if (const auto shortage = memory_shortage(m, o, ranks_here)) throw DeviceError(*shortage);
}

// Returns the memory that the run needs. Makes the largest plans, unless they need more than the host has and the run
// is a --dry-run.
MemoryEstimate memory_of(Trainer& trainer, const RunOptions& o, const Schema& seen);

// Loads weights on rank 0. The other ranks get them from it.
void load_pretrained(Trainer& trainer, const RunOptions& o);

// Prints what will be trained and the memory it takes: the table of layers with --dry-run, the totals always.
void print_net(const Graph& model, const MemoryEstimate& memory, const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
