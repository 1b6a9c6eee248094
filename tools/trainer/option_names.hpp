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

// The names of options, and their forms on a command line and in the environment.
namespace tutti::trainer::detail {

// Maps every name, with '-' only, to the first name of its option; and lists the switches.
struct KnownNames {
  std::map<std::string, std::string> all{{"help", "help"},
                                         {"help-all", "help-all"},
                                         {"version", "version"},
                                         {"config", "config"},
                                         {"print-config", "print-config"}};
  std::set<std::string> switches{"print-config"};
  Program program = Program::train_cifar10;  // the program that has the options
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T&, const char*, Scope = Scope::job) {
    std::vector<std::string> names{name};
    for (const std::string_view other : command_line::spellings_of(name_of(program), name)) names.emplace_back(other);
    for (const auto& n : names) all[n] = name;
    if (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) switches.insert(names.begin(), names.end());
  }
};

// Refuses two names of one option with different values, because one of the two would have no effect.
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

// Returns the variables that are options, by each option's first name. Throws UsageError that names a variable that is
// not an option.
std::map<std::string, VariableEntry> options_in_environment(Program program, const KnownNames& names);

}  // namespace tutti::trainer::detail
