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

// The question how a program's processes are to be started, see tutti/cluster/launch/launch_info.hpp: it is put on the
// host of rank 0, where the program lies and its GPUs are, before anything else runs.
namespace tutti::launch {

// What came of the question.
struct ProgramQuery {
  bool put = false;  // there is a program that may be asked, and it ran
  int code = 0;      // its exit code; -1: out of time or killed
  std::optional<LaunchInfo> answer{};
  std::vector<std::string> errors{};  // the lines of its standard error
};

// `tutti-launch --ask`: the order comes on standard input; says "asked CODE" and "answer ..." and "error ..." lines, or
// nothing where the program may not be asked.
int query_locally(const Order& order);

// Asks on the host of rank 0; nothing where nobody may be asked, or the host cannot be reached, which is told when the
// processes are to start there.
[[nodiscard]] ProgramQuery query_program(const Plan& plan, const Options& o, const SignalQueue& signals);

// What the program refuses is said once, and nothing runs.
void require_answer(const ProgramQuery& asked, const Plan& plan);

}  // namespace tutti::launch
