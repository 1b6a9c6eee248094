// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>

#include <tutti/io/json/json.hpp>

#include "tools/trainer/option_groups.hpp"
#include "tools/trainer/options.hpp"

// The options in the form of logs and checkpoints.
namespace tutti::trainer {

// Returns the options by their names on the command line.
io::Json options_json(const RunOptions& options);

// Returns the scope of each option.
std::map<std::string, Scope> scopes_of(const RunOptions& options);

}  // namespace tutti::trainer
