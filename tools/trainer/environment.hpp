// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/trainer/options.hpp"

// Options from the environment: TUTTI_BATCH_SIZE=64 means --batch-size 64. The command line and the file of --config
// have precedence. An unknown TUTTI_* variable is an error, so that typing errors in a job's definition are noticed.
namespace tutti::trainer {

// Variables TUTTI_* that are not options: those that launchers set for the processes they start, those that the library
// reads itself, and those for the build and the tests of tutti.
inline constexpr std::string_view own_variables[] = {
    "TUTTI_FOUNDERS",     "TUTTI_GENERATION", "TUTTI_KEEP",        "TUTTI_KEPT",          "TUTTI_ASK",
    "TUTTI_STATE_DIR",    "TUTTI_CONTROL",    "TUTTI_ELASTIC",     "TUTTI_HOST",          "TUTTI_JOB",
    "TUTTI_LOCAL_RANK",   "TUTTI_LOCAL_SIZE", "TUTTI_RANK",        "TUTTI_REPORT",        "TUTTI_ROLE",
    "TUTTI_ROOT",         "TUTTI_ROOT_PORTS", "TUTTI_SECRET",      "TUTTI_SERVERS",       "TUTTI_SERVERS_RESTART",
    "TUTTI_SIZE",         "TUTTI_WORKERS",    "TUTTI_ISA",         "TUTTI_BUILD_DIR",     "TUTTI_CXX",
    "TUTTI_EIGEN_NATIVE", "TUTTI_GPU_BUILD",  "TUTTI_INSTALL",     "TUTTI_SANITIZE",      "TUTTI_FUZZ_SECONDS",
    "TUTTI_SOURCE",       "TUTTI_SOURCE_DIR", "TUTTI_STAND_IN",    "TUTTI_SYSTEM_PYTHON", "TUTTI_TEST_MARK",
    "TUTTI_WERROR",       "TUTTI_TRACE",      "TUTTI_CHANGE_CORES"};

// One variable that may be an option.
struct VariableEntry {
  std::string variable, option, value;  // TUTTI_BATCH_SIZE, batch-size, 64
};

[[nodiscard]] std::string variable_of_option(std::string_view option);

// Returns the variables of this process that may be options, by name. Empty variables count as not set.
[[nodiscard]] std::vector<VariableEntry> environment_entries();

// Runs f. If it throws UsageError about an option that a variable has set, the message names the variable too.
template <class F>
void naming_variables(const RunOptions& o, F&& f) {
  const auto given = o.from_environment;
  try {
    f();
  } catch (const UsageError& e) {
    const std::string message = e.what();
    for (const auto& [option, variable] : given)
      if (message.starts_with("[--" + option + "]"))
        throw UsageError(message + " --" + option + " comes from the environment's " + variable + ".");
    throw;
  }
}

}  // namespace tutti::trainer
