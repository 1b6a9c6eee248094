// SPDX-License-Identifier: MIT
#include "tools/trainer/option_names.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/core/printable.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/trainer/option_table.hpp"

namespace tutti::trainer::detail {

void OneName::add(const std::string& where, const std::string& first, const std::string& name,
                  const std::string& value) {
  const auto [at, fresh] = said_.try_emplace(first, name, value);
  if (!fresh && at->second.first != name && at->second.second != value)
    fail<UsageError>(
        where + "--" + name,
        "the value of --" + at->second.first + ", another name of this option, '" + printable(at->second.second) + "'",
        "'" + printable(value) + "'", "give one of the two");
  at->second = {name, value};
}

KnownNames all_names(Program program) {
  KnownNames names;
  names.program = program;
  RunOptions o = defaults_of(program);
  describe(o, names);
  for (const auto& n : neutral_options(program)) names.all[n.name] = n.name;
  return names;
}

namespace {

// Returns the name that was probably meant, or an empty text.
std::string nearest_name(const std::string& name, const KnownNames& names) {
  // Names of other trainers that are similar to a wrong name here.
  for (const auto& [other, ours] : {std::pair{"learning-rate", "lr"}, {"batch", "batch-size"}})
    if (name == other && names.all.contains(ours)) return ours;
  std::vector<std::string> known;
  for (const auto& [word, first] : names.all) known.push_back(word);
  return nearest_word(name, known);
}

}  // namespace

void unknown(const std::string& where, const std::string& name, const KnownNames& names) {
  const std::string nearest = nearest_name(name, names);
  fail<UsageError>(where, "an option", "--" + printable(name) + ", which is not an option",
                   nearest.empty()   ? "--help-all lists all options"
                   : nearest == name ? "it is allowed on the command line only"
                                     : "did you mean --" + nearest);
}

std::vector<std::string> normalised(int argc, char** argv, const KnownNames& names) {
  std::vector<std::string> out;
  OneName one;
  const auto add = [&](const std::string& given, const std::string& said) {
    const bool fits_memory = names.all.at(given) == "batch-size" && said == "auto";
    const std::string name = fits_memory ? "batch-auto" : given, value = fits_memory ? "true" : said;
    const std::string& first = names.all.at(name);
    one.add("", first, name, value);
    // An empty value stays a separate word: after '=' CLI11 would take the next argument instead.
    out.push_back("--" + first + (value.empty() ? "" : "=" + value));
    if (value.empty()) out.emplace_back();
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "-h") {
      out.emplace_back("--help");
      continue;
    }
    static const std::map<std::string, std::string> letters{
        {"-m", "model"}, {"-b", "batch-size"}, {"-j", "num-data-workers"}};
    if (const auto letter = letters.find(argument); letter != letters.end() && names.all.contains(letter->second)) {
      if (i + 1 == argc) fail<UsageError>(argument, "a value", "none");
      add(letter->second, argv[++i]);
      continue;
    }
    if (!argument.starts_with("--"))
      fail<UsageError>("command line", "--options with one value each", "'" + printable(argument) + "'",
                       i > 1 && std::string(argv[i - 1]) == "--resume" ? "write the value of --resume after '='"
                       : names.program == Program::tutti_train ? "the folder is the first word: tutti-train FOLDER"
                                                               : "--help-all lists all options");
    const std::size_t equals = argument.find('=');
    std::string name = command_line::with_dashes(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    const bool known = names.all.contains(name);
    if (!known && name.starts_with("no")) {
      const std::string positive = name.substr(name.starts_with("no-") ? 3 : 2);
      if (names.switches.contains(positive)) {
        if (value) fail<UsageError>("--" + name, "no value", printable(*value));
        add(positive, "false");
        continue;
      }
    }
    if (!known) unknown("command line", name, names);
    if (names.switches.contains(name) && !value) {
      value = "true";
      const std::string next = i + 1 < argc ? argv[i + 1] : "";
      if (!next.empty() && !next.starts_with("-")) {
        value = next;
        ++i;
      }
    }
    if (name == "resume" && !value) value = "latest";
    if (!value && (name == "help" || name == "help-all" || name == "version")) {
      out.push_back("--" + name);
      continue;
    }
    const bool none_left = i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--");
    // A list of GPUs that the shell removed counts as empty, as one in quotes.
    if (!value && none_left && name == "gpus") value = "";
    if (!value && none_left)
      fail<UsageError>("--" + name, "a value", i + 1 == argc ? "none" : "the option " + printable(argv[i + 1]));
    add(name, value ? *value : std::string(argv[++i]));
  }
  return out;
}

std::map<std::string, VariableEntry> options_in_environment(Program program, const KnownNames& names) {
  static const std::set<std::string> elsewhere{"help", "help-all", "version", "print-config"};
  std::map<std::string, VariableEntry> found;
  OneName one;
  for (const VariableEntry& e : environment_entries()) {
    const bool capitals = variable_of_option(e.option) == e.variable;
    if (!capitals || !names.all.contains(e.option) || elsewhere.contains(e.option)) {
      const std::string nearest = capitals ? nearest_name(e.option, names) : e.option;
      fail<UsageError>(
          "environment " + e.variable,
          "an option of " + std::string(name_of(program)) + " in upper case, such as TUTTI_BATCH_SIZE", "none",
          (nearest.empty() ? "" : "did you mean " + variable_of_option(nearest) + "; ") + "unset " + e.variable);
    }
    const std::string& first = names.all.at(e.option);
    one.add("environment " + e.variable + ": ", first, e.option, e.value);
    found[first] = e;
  }
  return found;
}

}  // namespace tutti::trainer::detail
