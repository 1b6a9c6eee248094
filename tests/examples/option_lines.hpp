// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "data/temp_folder.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"

namespace tutti::trainer::lines {

using test::message_of;

inline std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> list;
  for (std::string w; in >> w;) list.push_back(w);
  return list;
}

inline std::optional<RunOptions> parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train_cifar10");
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

// Parses and checks a command line.
inline RunOptions options(const std::string& line, int processes = 1) {
  auto o = parse(words(line));
  REQUIRE(o);
  check(*o, {processes});
  return *o;
}

inline std::string error(const std::string& line, int processes = 1) {
  return message_of<UsageError>([&] { options(line, processes); });
}

struct NoEnvironment {
  NoEnvironment() { ::unsetenv("TUTTI_DATA"); }
};
inline const NoEnvironment no_environment;

}  // namespace tutti::trainer::lines
