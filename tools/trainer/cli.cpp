// SPDX-License-Identifier: MIT
// This translation unit has all code that uses CLI11, which takes seconds to compile.
#include "tools/trainer/cli.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <istream>
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

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/version.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/spellings.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/config_file.hpp"
#include "tools/trainer/environment.hpp"
#include "tools/trainer/folder_choices.hpp"
#include "tools/trainer/option_names.hpp"
#include "tools/trainer/option_table.hpp"
#include "tools/trainer/option_values.hpp"
#include "tools/trainer/preset.hpp"
#include "tools/trainer/recipes.hpp"
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer {
namespace {

using namespace detail;
using command_line::with_dashes, command_line::wrapped;

// Sets options that neither the command line nor a file has set.
struct FromEnvironment {
  const CLI::App& app;
  const std::map<std::string, VariableEntry>& found;
  std::vector<std::pair<std::string, std::string>>& used;
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T& field, const char*, Scope = Scope::job) {
    const auto at = found.find(name);
    if (at == found.end() || app.get_option(std::string("--") + name)->count() > 0) return;
    assign("environment " + at->second.variable, at->second.value, field);
    used.emplace_back(name, at->second.variable);
  }
};

// Lets CLI11 read the files of --config.
class ConfigReader : public CLI::Config {
 public:
  explicit ConfigReader(const KnownNames& names) : names_(names) {}
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
      static const std::set<std::string> elsewhere{"help", "help-all", "version", "config", "print-config"};
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
  const KnownNames& names_;
};

// Registers the table's options with CLI11. all: for --help-all, lists every option with all its names; --help lists
// the common options.
struct Register {
  CLI::App& app;
  Program program;
  bool all;
  std::string title{};
  void group(const char* t) { title = t; }
  template <class T>
  void operator()(const char* name, T& field, const char* help, Scope = Scope::job) {
    const std::string option = std::string("--") + name;
    std::string names = option;
    if (all)
      for (const std::string_view other : command_line::spellings_of(name_of(program), name))
        names.append(",--").append(other);
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
    // CLI11 does not list options of a group without a name.
    o->group(all || is_common(name) ? title : "")->take_last()->type_name(kind_of(field));
    if (option == "--resume") o->type_name("[=latest|best|PATH]");
  }
};

// Refuses every value except the neutral one.
void check_neutral(const std::string& where, const NeutralOption& n, const std::string& value) {
  const std::string neutral = n.value;
  double given = 0, wanted = 0;
  if (value == "none" || value == "None") return;
  assign(where, value, given);
  if (neutral.empty()) return;
  assign(where, neutral, wanted);
  if (given != wanted) fail<UsageError>(where, neutral + ", because small images are only cropped and mirrored", value);
}

void register_neutral(CLI::App& app, Program program, bool all) {
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
      (list.empty() || !all ? ""
                            : "Taken for older scripts, at their neutral value only:\n" + wrapped(list, 110) + "\n\n") +
      (all ? "" : "--help-all lists all options, with the names that they have in the scripts of other trainers.\n\n") +
      "Every long option may be written with - or _. Switches: --x, --no-x, --x 0, --x 1. The order of\n"
      "precedence is: command line, --config file, environment (TUTTI_BATCH_SIZE=64 is --batch-size 64, and so on\n"
      "for every option), default. Numbers count for the whole job (global) unless the text says \"per rank\".\n"
      "Exit codes: 0 done, 1 internal error, 2 usage, 3 data, 4 device, 5 communication, 6 loss not finite,\n"
      "130 and 143 interrupted with the state saved.");
}

struct WriteConfig {
  std::string text;
  void group(const char* title) { text += std::string(text.empty() ? "" : "\n") + "# " + title + "\n"; }
  template <class T>
  void operator()(const char* name, T& field, const char*, Scope = Scope::job) {
    text += (is_open(field) ? "# " : "") + std::string(name) + " = " + value_text(field) + "\n";
  }
};

struct Parsed {
  RunOptions options;
  bool print_config = false, help_or_version = false;
};

// Parses the arguments. Starts with the defaults that the preset, the recipe and the kind of command set.
Parsed parse(std::vector<std::string> arguments, Program program, const RunOptions& said, const KnownNames& names) {
  Parsed parsed;
  parsed.options = defaults_of(program);
  apply_scripted_defaults(parsed.options, said);
  apply_preset(parsed.options, said.preset);
  apply_recipe(parsed.options, said.recipe);
  if (program == Program::tutti_train) choose_for_folder(parsed.options, said);
  // The epochs of a preset, a recipe or a choice give way to the user's number of steps.
  if (traits_of(program).as_horovod && said.num_batches > 0) parsed.options.epochs = 0;
  // The warm-up of a recipe or a choice gives way to a schedule that begins with a rise of its own.
  if (has_own_rise(said) && !said.warmup_epochs) parsed.options.warmup_epochs.reset();
  const RunOptions start = parsed.options;
  const std::string name = name_of(program);
  CLI::App app(traits_of(program).title, name);
  app.get_formatter()->column_width(44);
  app.set_help_flag("--help,-h", "list the options that most runs need");
  app.add_flag_callback(
      "--help-all", [] {}, "list all options");
  // CLI11 has its own --help-all, which is about subcommands.
  const bool all = std::find(arguments.begin(), arguments.end(), "--help-all") != arguments.end();
  if (all) arguments.emplace_back("--help");
  app.set_version_flag("--version", name + " of tutti " + version, "print the version");
  describe(parsed.options, Register{app, program, all});
  register_neutral(app, program, all);
  app.config_formatter(std::make_shared<ConfigReader>(names));
  app.set_config("--config", "", "file of options, one \"name = value\" on each line")->type_name("FILE")->take_last();
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option_function<std::string>(
         "--print-config", [&](const std::string& v) { assign("--print-config", v, parsed.print_config); },
         "print all options as a file for --config, and stop")
      ->configurable(false)
      ->type_name("");
  try {
    // CLI11 takes the last words first.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::Success& e) {
    app.exit(e);
    parsed.help_or_version = true;
  } catch (const CLI::FileError&) {
    constexpr std::string_view begin = "--config=";
    const auto last =
        std::find_if(arguments.rbegin(), arguments.rend(), [&](const auto& a) { return a.starts_with(begin); });
    std::error_code ignored;
    const std::string file = last != arguments.rend() ? last->substr(begin.size()) : "";
    fail<UsageError>(
        "--config", "a file that can be read",
        (std::filesystem::exists(file, ignored) ? "no file at '" : "no file at '") + printable(file) + "'");
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
  // Such a default would contradict the user's --augmentation.
  if (start.crop_area > 0 && said.crop_area == 0 && parsed.options.augmentation == "horovod")
    parsed.options.crop_area = 0;
  if (!said.recipe.empty()) note_overrides(parsed.options, start, defaults_of(program));
  return parsed;
}

}  // namespace

std::optional<RunOptions> parse_command_line(int argc, char** argv, Program program) {
  const KnownNames names = all_names(program);
  std::vector<std::string> arguments = normalised(argc, argv, names);
  const auto given = [&](const char* option) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const auto& a) { return a.starts_with(option); });
  };
  const char* config = std::getenv("TUTTI_CONFIG");
  if (config != nullptr && *config != '\0' && !given("--config="))
    arguments.insert(arguments.begin(), std::string("--config=") + config);
  Parsed parsed = parse(arguments, program, {}, names);
  if (parsed.help_or_version) return std::nullopt;
  if (parsed.options.recipe == "list") {
    std::fputs(recipe_list(program).c_str(), stdout);
    return std::nullopt;
  }
  // Parses again, starting with the values that the preset and the recipe set, because explicit options override these.
  if (const RunOptions& o = parsed.options;
      !o.preset.empty() || !o.recipe.empty() || is_scripted(o) || program == Program::tutti_train)
    parsed = parse(arguments, program, RunOptions(o), names);
  if (parsed.print_config) {
    RunOptions checked = parsed.options;
    // A variable may be for another version of the program.
    std::vector<std::string> every;
    for (const auto& w : known_strategies()) every.emplace_back(w.word);
    naming_variables(checked, [&] { check(checked, {.built = every}); });
    for (const auto& [option, variable] : parsed.options.from_environment)
      std::printf("# %s comes from the environment's %s\n", option.c_str(), variable.c_str());
    std::fputs(config_text(parsed.options).c_str(), stdout);
    return std::nullopt;
  }
  // Scripts of the Horovod trainer write its options with '_', as its parser requires, and read its table.
  parsed.options.as_table = std::any_of(argv + std::min(argc, 1), argv + argc, [](const char* argument) {
    const std::string_view name = std::string_view(argument).substr(0, std::string_view(argument).find('='));
    return name.starts_with("--") && name.find('_') != name.npos;
  });
  return parsed.options;
}

std::string config_text(const RunOptions& options) {
  WriteConfig writer;
  RunOptions copy = options;
  describe(copy, writer);
  return writer.text;
}

}  // namespace tutti::trainer
