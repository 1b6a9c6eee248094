// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/command_line/spellings.hpp"
#include "tools/trainer/environment.hpp"
#include "tools/trainer/option_groups.hpp"

// Which names options have, and how they are written on a command line and in the environment.
namespace tutti::trainer::detail {

// Every name, with '-' only, and the first name of its option; which of them are switches.
struct KnownNames {
  std::map<std::string, std::string> all{{"help", "help"},
                                         {"help-all", "help-all"},
                                         {"version", "version"},
                                         {"config", "config"},
                                         {"print-config", "print-config"}};
  std::set<std::string> switches{"print-config"};
  Program program = Program::train_cifar10;  // whose options they are
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T&, const char*, Scope = Scope::job) {
    std::vector<std::string> names{name};
    for (const std::string_view other : command_line::spellings_of(name_of(program), name)) names.emplace_back(other);
    for (const auto& n : names) all[n] = name;
    if (std::is_same_v<T, bool>) switches.insert(names.begin(), names.end());
  }
};

// Refuses two names of one option with different values: one of the two would have no effect.
class OneName {
 public:
  void add(const std::string& where, const std::string& first, const std::string& name, const std::string& value);

 private:
  std::map<std::string, std::pair<std::string, std::string>> said_;
};

KnownNames all_names(Program program);

[[noreturn]] void unknown(const std::string& where, const std::string& name, const KnownNames& names);

// Brings all arguments into the form --name=value or --name, value with each option's first name: '_' in a name becomes
// '-'; switches --x, --no-x, --nox and --x 1 become --x=true and the like; --resume alone becomes --resume=latest.
std::vector<std::string> normalised(int argc, char** argv, const KnownNames& names);

// The variables that are options, by each option's first name. UsageError names one that is none.
std::map<std::string, VariableEntry> options_in_environment(Program program, const KnownNames& names);

}  // namespace tutti::trainer::detail
