// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

// Reads the order from standard input. Returns its bytes and the decoded order.
[[nodiscard]] std::pair<std::string, Order> read_order();

// `tutti-launch --exec-ranks`: runs the processes of this host.
int exec_ranks();

// `tutti-launch --exec-rank JOB [GENERATION]`: mpirun starts it. It reads the order from the file that the guard of
// this host wrote.
int exec_rank(const std::string& job, const std::string& generation);

}  // namespace tutti::launch
