// SPDX-License-Identifier: MIT
// All of CLI11, which takes seconds to compile, in one translation unit.
#include "cli.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/version.hpp>

#include "check.hpp"
#include "config_file.hpp"
#include "environment.hpp"
#include "option_table.hpp"

namespace tutti::examples {
namespace {

template <class N>
void parse_number(const std::string& option, const std::string& text, const char* kind, N& to) {
  N value{};
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || begin == end)
    fail<UsageError>(option, error == std::errc::result_out_of_range ? std::string(kind) + " in range" : kind,
                     "'" + text + "'");
  to = value;
}
void assign(const std::string&, const std::string& text, std::string& to) { to = text; }
void assign(const std::string& o, const std::string& text, std::int64_t& to) {
  parse_number(o, text, "an integer", to);
}
void assign(const std::string& o, const std::string& text, std::uint64_t& to) {
  parse_number(o, text, "an integer of 0 or more", to);
}
void assign(const std::string& o, const std::string& text, double& to) { parse_number(o, text, "a number", to); }
void assign(const std::string& option, const std::string& text, bool& to) {
  for (const char* yes : {"1", "true", "yes", "on"})
    if (text == yes) return void(to = true);
  for (const char* no : {"0", "false", "no", "off"})
    if (text == no) return void(to = false);
  fail<UsageError>(option, "0 or 1", "'" + text + "'");
}
template <class T>
void assign(const std::string& option, const std::string& text, std::optional<T>& to) {
  T value{};
  assign(option, text, value);
  to = value;
}

std::string kind_of(const std::string&) { return "TEXT"; }
std::string kind_of(bool) { return "[0|1]"; }
std::string kind_of(std::int64_t) { return "INT"; }
std::string kind_of(std::uint64_t) { return "INT"; }
std::string kind_of(double) { return "NUMBER"; }
template <class T>
std::string kind_of(const std::optional<T>&) {
  return kind_of(T{});
}

// A value as a configuration file has it.
std::string value_text(const std::string& v) { return examples::quoted(v); }
std::string value_text(bool v) { return v ? "true" : "false"; }
std::string value_text(std::int64_t v) { return std::to_string(v); }
std::string value_text(std::uint64_t v) { return std::to_string(v); }
std::string value_text(double v) { return detail::text_of(v); }
template <class T>
std::string value_text(const std::optional<T>& v) {
  return v ? value_text(*v) : "auto";
}
bool is_open(const auto&) { return false; }
template <class T>
bool is_open(const std::optional<T>& v) {
  return !v;
}

// Every name, with '-' only, and the first name of its option; which of them are switches.
struct Names {
  std::map<std::string, std::string> all{
      {"help", "help"}, {"version", "version"}, {"config", "config"}, {"print-config", "print-config"}};
  std::set<std::string> switches{"print-config"};
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T&, const char*, std::initializer_list<const char*> others) {
    std::vector<std::string> names(others.begin(), others.end());
    names.emplace_back(name);
    for (const auto& n : names) all[n] = name;
    if (std::is_same_v<T, bool>) switches.insert(names.begin(), names.end());
  }
};

// Refuses two names of one option with different values: one of the two would have no effect.
class OneName {
 public:
  void add(const std::string& where, const std::string& first, const std::string& name, const std::string& value) {
    const auto [at, fresh] = said_.try_emplace(first, name, value);
    if (!fresh && at->second.first != name && at->second.second != value)
      fail<UsageError>(where + "--" + name,
                       "what --" + at->second.first + " says, another name of this option, '" + at->second.second + "'",
                       "'" + value + "'", "give one of the two");
    at->second = {name, value};
  }

 private:
  std::map<std::string, std::pair<std::string, std::string>> said_;
};

Names all_names(Program program) {
  Names names;
  RunOptions o = defaults_of(program);
  describe(o, names);
  for (const auto& n : neutral_options(program)) names.all[n.name] = n.name;
  return names;
}

std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t swapped = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, swapped});
    }
  }
  return row.back();
}

// The name that is meant, as far as one can tell; else nothing.
std::string nearest_name(const std::string& name, const Names& names) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const auto& known : names.all)
    if (const std::size_t d = distance(name, known.first); d < least) {
      least = d;
      nearest = known.first;
    }
  return nearest;
}

[[noreturn]] void unknown(const std::string& where, const std::string& name, const Names& names) {
  const std::string nearest = nearest_name(name, names);
  fail<UsageError>(where, "an option", "--" + name + ", which is none",
                   nearest.empty() ? "--help lists all options" : "did you mean --" + nearest);
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Brings all arguments into the form --name=value or --name, value with each option's first name: '_' in a name becomes
// '-'; switches --x, --no-x, --nox and --x 1 become --x=true and the like; --resume alone becomes --resume=latest.
std::vector<std::string> normalised(int argc, char** argv, const Names& names) {
  std::vector<std::string> out;
  OneName one;
  const auto add = [&](const std::string& name, const std::string& value) {
    const std::string& first = names.all.at(name);
    one.add("", first, name, value);
    // Stand apart when empty: after '=' CLI11 would take the next argument instead.
    out.push_back("--" + first + (value.empty() ? "" : "=" + value));
    if (value.empty()) out.emplace_back();
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "-h") {
      out.emplace_back("--help");
      continue;
    }
    if ((argument == "-m" && names.all.contains("model")) || (argument == "-b" && names.all.contains("batch-size"))) {
      if (i + 1 == argc) fail<UsageError>(argument, "a value", "none");
      add(argument == "-m" ? "model" : "batch-size", argv[++i]);
      continue;
    }
    if (!argument.starts_with("--"))
      fail<UsageError>("command line", "--options with one value each", "'" + argument + "'",
                       i > 1 && std::string(argv[i - 1]) == "--resume" ? "--resume takes its value after '='"
                                                                       : "--help lists all options");
    const std::size_t equals = argument.find('=');
    std::string name = with_dashes(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    const bool known = names.all.contains(name);
    if (!known && name.starts_with("no")) {
      const std::string positive = name.substr(name.starts_with("no-") ? 3 : 2);
      if (names.switches.contains(positive)) {
        if (value) fail<UsageError>("--" + name, "no value", *value);
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
    if (!value && (name == "help" || name == "version")) {
      out.push_back("--" + name);
      continue;
    }
    const bool none_left = i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--");
    // A list of GPUs that the shell left out is as empty as one in quotes.
    if (!value && none_left && name == "gpus") value = "";
    if (!value && none_left)
      fail<UsageError>("--" + name, "a value", i + 1 == argc ? "none" : std::string("the option ") + argv[i + 1]);
    add(name, value ? *value : std::string(argv[++i]));
  }
  return out;
}

// The variables that are options, by each option's first name. UsageError names one that is none.
std::map<std::string, VariableEntry> options_in_environment(Program program, const Names& names) {
  static const std::set<std::string> elsewhere{"help", "version", "print-config"};
  std::map<std::string, VariableEntry> found;
  OneName one;
  for (const VariableEntry& e : environment_entries()) {
    const bool capitals = variable_of_option(e.option) == e.variable;
    if (!capitals || !names.all.contains(e.option) || elsewhere.contains(e.option)) {
      const std::string nearest = capitals ? nearest_name(e.option, names) : e.option;
      fail<UsageError>(
          "environment " + e.variable,
          "an option of " + std::string(name_of(program)) + " in capitals, as TUTTI_BATCH_SIZE", "none",
          (nearest.empty() ? "" : "did you mean " + variable_of_option(nearest) + "; ") + "unset " + e.variable);
    }
    const std::string& first = names.all.at(e.option);
    one.add("environment " + e.variable + ": ", first, e.option, e.value);
    found[first] = e;
  }
  return found;
}

// Sets what neither the command line nor a file has said.
struct FromEnvironment {
  const CLI::App& app;
  const std::map<std::string, VariableEntry>& found;
  std::vector<std::pair<std::string, std::string>>& used;
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T& field, const char*, std::initializer_list<const char*>) {
    const auto at = found.find(name);
    if (at == found.end() || app.get_option(std::string("--") + name)->count() > 0) return;
    assign("environment " + at->second.variable, at->second.value, field);
    used.emplace_back(name, at->second.variable);
  }
};

// Lets CLI11 read the files of --config.
class ConfigReader : public CLI::Config {
 public:
  explicit ConfigReader(const Names& names) : names_(names) {}
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }
  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> found;
    std::set<std::string> seen;
    OneName one;
    for (const ConfigEntry& e : parse_config(in)) {
      CLI::ConfigItem item;
      item.name = with_dashes(e.name);
      item.inputs = {e.value};
      const std::string where = "--config line " + std::to_string(e.line);
      static const std::set<std::string> elsewhere{"help", "version", "config", "print-config"};
      if (!names_.all.contains(item.name) || elsewhere.contains(item.name)) unknown(where, item.name, names_);
      if (!seen.insert(item.name).second) fail<UsageError>(where, "each option once", item.name + " again");
      const std::string& first = names_.all.at(item.name);
      one.add(where + ": ", first, item.name, e.value);
      item.name = first;
      found.push_back(std::move(item));
    }
    return found;
  }

 private:
  const Names& names_;
};

std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin + 1), text.size());
    if (column + (end - begin) > width) {
      out += '\n';
      column = 0;
      if (text[begin] == ' ') ++begin;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end;
  }
  return out;
}

// Registers the table's options with CLI11.
struct Register {
  CLI::App& app;
  std::string title{};
  void group(const char* t) { title = t; }
  template <class T>
  void operator()(const char* name, T& field, const char* help, std::initializer_list<const char*> others) {
    std::string names = std::string("--") + name;
    for (const char* other : others) names += std::string(",--") + other;
    const std::string option = std::string("--") + name;
    std::string text = help;
    if constexpr (!std::is_same_v<T, std::string>) {
      if (!is_open(field) && !std::is_same_v<T, bool>) text += "  [" + value_text(field) + "]";
      if (std::is_same_v<T, bool>) text += value_text(field) == "true" ? "  [1]" : "";
    } else if (!field.empty()) {
      text += "  [" + field + "]";
    }
    text = wrapped(text, 76);
    CLI::Option* o = app.add_option_function<std::string>(
        names, [option, &field](const std::string& v) { assign(option, v, field); }, text);
    o->group(title)->take_last()->type_name(kind_of(field));
    if (option == "--resume") o->type_name("[=latest|best|PATH]");
  }
};

// Refuses what is not its neutral value.
void check_neutral(const std::string& where, const NeutralOption& n, const std::string& value) {
  const std::string neutral = n.value;
  double given = 0, wanted = 0;
  if (value == "none" || value == "None") return;
  assign(where, value, given);
  if (neutral.empty()) return;
  assign(where, neutral, wanted);
  if (given != wanted) fail<UsageError>(where, neutral + ", because small images are only cropped and mirrored", value);
}

void register_neutral(CLI::App& app, Program program) {
  std::string list;
  for (const NeutralOption& n : neutral_options(program)) {
    const std::string name = std::string("--") + n.name;
    app.add_option_function<std::string>(
           name, [name, n](const std::string& v) { check_neutral(name, n, v); }, "")
        ->group("")
        ->take_last();
    list += (list.empty() ? "" : " ") + name;
  }
  app.footer(
      "Taken for older scripts, at their neutral value only:\n" + wrapped(list, 110) +
      "\n\nEvery long option may be written with - or _. Switches: --x, --no-x, --x 0, --x 1. The order of\n"
      "precedence is: command line, --config file, environment (TUTTI_BATCH_SIZE=64 is --batch-size 64, and so on\n"
      "for every option), default. Numbers count for the whole job (global) unless the text says \"per rank\".\n"
      "Exit codes: 0 done, 1 internal error, 2 usage, 3 data, 4 device, 5 communication, 6 loss not finite,\n"
      "130 and 143 interrupted with the state saved.");
}

struct WriteConfig {
  std::string text;
  void group(const char* title) { text += std::string(text.empty() ? "" : "\n") + "# " + title + "\n"; }
  template <class T>
  void operator()(const char* name, T& field, const char*, std::initializer_list<const char*>) {
    text += (is_open(field) ? "# " : "") + std::string(name) + " = " + value_text(field) + "\n";
  }
};

struct Parsed {
  RunOptions options;
  bool print_config = false, help_or_version = false;
};

// Parses over the defaults that the preset and the recipe give.
Parsed parse(const std::vector<std::string>& arguments, Program program, const std::string& preset,
             const std::string& recipe, const Names& names) {
  Parsed parsed;
  parsed.options = defaults_of(program);
  apply_preset(parsed.options, preset);
  apply_recipe(parsed.options, recipe);
  const std::string name = name_of(program);
  CLI::App app(program == Program::train_cifar10 ? "Trains a ResNet on small images." : "Trains a ResNet on ImageNet.",
               name);
  app.get_formatter()->column_width(44);
  app.set_help_flag("--help,-h", "print this text");
  app.set_version_flag("--version", name + " of tutti " + version, "print the version");
  describe(parsed.options, Register{app});
  register_neutral(app, program);
  app.config_formatter(std::make_shared<ConfigReader>(names));
  app.set_config("--config", "", "file of options, one \"name = value\" a line")->type_name("FILE")->take_last();
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option_function<std::string>(
         "--print-config", [&](const std::string& v) { assign("--print-config", v, parsed.print_config); },
         "print all options as a file for --config, and stop")
      ->configurable(false)
      ->type_name("");
  try {
    // CLI11 takes them last first.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::Success& e) {
    app.exit(e);
    parsed.help_or_version = true;
  } catch (const CLI::ParseError& e) {
    std::string message = e.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    throw UsageError("[command line] " + message);
  }
  if (parsed.help_or_version) return parsed;
  const auto environment = options_in_environment(program, names);
  auto& used = parsed.options.from_environment;
  describe(parsed.options, FromEnvironment{app, environment, used});
  for (const NeutralOption& n : neutral_options(program))
    if (const auto at = environment.find(n.name); at != environment.end())
      check_neutral("environment " + at->second.variable, n, at->second.value);
  for (const auto& [option, variable] : used) {
    if (option == "data" || option == "data-dir")
      parsed.options.data_dir_from_environment = true;
    else
      parsed.options.notes.push_back("--" + option + " comes from the environment's " + variable);
  }
  return parsed;
}

}  // namespace

std::optional<RunOptions> parse_command_line(int argc, char** argv, Program program) {
  const Names names = all_names(program);
  std::vector<std::string> arguments = normalised(argc, argv, names);
  const auto given = [&](const char* option) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const auto& a) { return a.starts_with(option); });
  };
  const char* config = std::getenv("TUTTI_CONFIG");
  if (config != nullptr && *config != '\0' && !given("--config="))
    arguments.insert(arguments.begin(), std::string("--config=") + config);
  Parsed parsed = parse(arguments, program, "", "", names);
  if (parsed.help_or_version) return std::nullopt;
  // Once more over the values of the preset or recipe, which the explicit ones override.
  if (const RunOptions& o = parsed.options; !o.preset.empty() || !o.recipe.empty()) {
    const std::string preset = o.preset, recipe = o.recipe;
    parsed = parse(arguments, program, preset, recipe, names);
  }
  if (parsed.print_config) {
    RunOptions checked = parsed.options;
    // What it says may be meant for another build.
    std::vector<std::string> every;
    for (const auto& w : tutti::detail::strategy_rows()) every.emplace_back(w.word);
    naming_variables(checked, [&] { check(checked, 1, every); });
    for (const auto& [option, variable] : parsed.options.from_environment)
      std::printf("# %s comes from the environment's %s\n", option.c_str(), variable.c_str());
    std::fputs(config_text(parsed.options).c_str(), stdout);
    return std::nullopt;
  }
  return parsed.options;
}

std::string config_text(const RunOptions& options) {
  WriteConfig writer;
  RunOptions copy = options;
  describe(copy, writer);
  return writer.text;
}

}  // namespace tutti::examples
