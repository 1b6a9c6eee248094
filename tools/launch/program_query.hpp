// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster/launch/launch_info.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/plan.hpp"

// Asks a program how its processes should be started, see tutti/cluster/launch/launch_info.hpp. The query runs on the
// host of rank 0, which has the program and its GPUs, before anything else runs.
namespace tutti::launch {

// Result of the query.
struct ProgramQuery {
  bool put = false;  // the program allows the query, and it ran
  int code = 0;      // its exit code
  std::optional<LaunchInfo> answer{};
  std::vector<std::string> errors{};  // lines of its standard error
};

// `tutti-launch --ask`: reads the order from standard input. If the program may be queried, prints "asked CODE" and
// "answer ..." and "error ..." lines.
int query_locally(const Order& order);

// Queries the program on the host of rank 0. The result is empty if the program does not allow the query or the host
// cannot be reached; the latter is reported when the processes start.
[[nodiscard]] ProgramQuery query_program(const Plan& plan, const Options& o, const SignalQueue& signals);

// Prints the errors of a program that refused its options, and throws its exit code. No process was started yet.
void require_answer(const ProgramQuery& asked, const Plan& plan);

}  // namespace tutti::launch
