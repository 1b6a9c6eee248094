// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "options.hpp"

// Options by environment: TUTTI_BATCH_SIZE=64 is --batch-size 64, below the command line and the file of --config. A
// variable that nobody knows is an error, so that a slip of the pen in a job's definition is no run with other numbers.
namespace tutti::examples {

// Variables TUTTI_* that are no options: what launchers tell the processes they start, what the library reads itself,
// and what building and testing tutti uses.
inline constexpr std::string_view own_variables[] = {
    "TUTTI_FOUNDERS",     "TUTTI_GENERATION", "TUTTI_KEEP",        "TUTTI_KEPT",          "TUTTI_ASK",
    "TUTTI_STATE_DIR",    "TUTTI_CONTROL",    "TUTTI_ELASTIC",     "TUTTI_HOST",          "TUTTI_JOB",
    "TUTTI_LOCAL_RANK",   "TUTTI_LOCAL_SIZE", "TUTTI_RANK",        "TUTTI_REPORT",        "TUTTI_ROLE",
    "TUTTI_ROOT",         "TUTTI_ROOT_PORTS", "TUTTI_SECRET",      "TUTTI_SERVERS",       "TUTTI_SERVERS_RESTART",
    "TUTTI_SIZE",         "TUTTI_WORKERS",    "TUTTI_ISA",         "TUTTI_BUILD_DIR",     "TUTTI_CXX",
    "TUTTI_EIGEN_NATIVE", "TUTTI_GPU_BUILD",  "TUTTI_INSTALL",     "TUTTI_SANITIZE",      "TUTTI_FUZZ_SECONDS",
    "TUTTI_SOURCE",       "TUTTI_SOURCE_DIR", "TUTTI_STAND_IN",    "TUTTI_SYSTEM_PYTHON", "TUTTI_TEST_MARK",
    "TUTTI_WERROR",       "TUTTI_TRACE",      "TUTTI_CHANGE_CORES"};

struct VariableEntry {
  std::string variable, option, value;  // TUTTI_BATCH_SIZE, batch-size, 64
};

// "batch-size" of "TUTTI_BATCH_SIZE", and back.
[[nodiscard]] inline std::string option_of_variable(std::string_view variable) {
  std::string name(variable.substr(std::string_view("TUTTI_").size()));
  for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}
[[nodiscard]] inline std::string variable_of_option(std::string_view option) {
  std::string name = "TUTTI_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// The variables of this process that may be options, by name; empty ones count as not set.
[[nodiscard]] inline std::vector<VariableEntry> environment_entries() {
  std::vector<VariableEntry> found;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::size_t equals = entry.find('=');
    const std::string_view variable = entry.substr(0, equals);
    if (!variable.starts_with("TUTTI_") || equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    if (std::find(std::begin(own_variables), std::end(own_variables), variable) != std::end(own_variables)) continue;
    found.push_back({std::string(variable), option_of_variable(variable), std::string(entry.substr(equals + 1))});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.variable < b.variable; });
  return found;
}

// Runs f; where it complains about an option that a variable gave, the complaint names the variable too.
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

}  // namespace tutti::examples
