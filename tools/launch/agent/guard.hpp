// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

// The order that comes on standard input, as it came and decoded.
[[nodiscard]] std::pair<std::string, Order> read_order();

// `tutti-launch --exec-ranks`: runs the processes of this host.
int exec_ranks();

// `tutti-launch --exec-rank JOB [GENERATION]`, started by mpirun: the guard of this host has the order.
int exec_rank(const std::string& job, const std::string& generation);

}  // namespace tutti::launch
