// SPDX-License-Identifier: MIT
// Everything that uses CLI11, which takes seconds to compile, is in this file and in trainer/cli.cpp.
#include "tools/command_line/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/version.hpp>

#include "tools/command_line/spellings.hpp"

namespace tutti::command_line {

namespace {

class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(std::string usage) : usage_(std::move(usage)) { column_width(36); }
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: " + usage_ + "\n"; }

 private:
  std::string usage_;
};

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

std::string quoted(const std::string& text) { return "'" + printable(text) + "'"; }

// Registers the options with CLI11. all: with every name; the help then also lists the less common options.
std::map<const CLI::Option*, const Option*> add_options(CLI::App& app, const std::vector<Option>& options,
                                                        const std::string& program, bool all) {
  std::map<const CLI::Option*, const Option*> added;
  app.set_help_flag();  // CLI11's own help option would end the program with its own exit code
  for (const Option& o : options) {
    std::string names = o.names;
    const std::string_view first = std::string_view(o.names).substr(o.names.find("--") + 2);
    if (all)
      for (const std::string_view other : spellings_of(program, first)) names.append(",--").append(other);
    const std::string help = wrapped(o.help, 78);
    CLI::Option* const a = o.value.empty() ? app.add_flag(names, help)
                                           : app.add_option(
                                                    names, [](const CLI::results_t&) { return true; }, help)
                                                 ->type_name(o.value);
    a->take_all()->group(all || o.common ? o.group : "");
    added[a] = &o;
  }
  return added;
}

std::string help_of(const Form& form, const std::vector<Option>& options, bool all) {
  if (!form.help.empty()) return form.help;
  CLI::App app(form.title);
  app.formatter(std::make_shared<Formatter>(form.usage));
  (void)add_options(app, options, form.program, all);
  app.footer(form.notes);
  return app.help();
}

[[noreturn]] void unknown(const std::string& word, const std::string& name, const CLI::App& app, const Form& form) {
  std::vector<std::string> known;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& n : o->get_lnames()) known.push_back(n);
  constexpr std::size_t longest = 60;
  const bool may_be_near = name.size() > 2 && name.size() < longest;
  const std::string nearest = may_be_near ? nearest_word(std::string_view(name).substr(2), known) : "";
  fail<UsageError>("command line", form.expected, quoted(word) + ", which is not an option",
                   (nearest.empty() ? "" : "did you mean --" + nearest + "; ") +
                       (form.runs_command ? "the options of the command come after it; " : "") + form.hint);
}

}  // namespace

Line read(const std::vector<std::string>& words, const std::vector<Option>& own, const Form& form) {
  Line line;
  std::vector<Option> options = own;
  const auto shows_help = [&](bool all) {
    return [&, all](const std::string&, const std::string&) { line.text = help_of(form, options, all); };
  };
  const bool two_helps = std::any_of(own.begin(), own.end(), [](const Option& o) { return !o.common; });
  options.push_back({"-h,--help", "", shows_help(false),
                     two_helps ? "print the options that most jobs need" : "print this text", "Help"});
  if (two_helps) options.push_back({"--help-all", "", shows_help(true), "print all options", "Help"});
  const auto shows_version = [&](const std::string&, const std::string&) {
    line.text = form.program + " of tutti " + version + "\n";
  };
  options.push_back({"--version", "", shows_version, "print the version", "Help"});
  CLI::App app;
  const auto known = add_options(app, options, form.program, true);

  // Passes a name and its value to CLI11 as two words: after "--name=" CLI11 would take the next word as the value, and
  // after an unknown option it would continue.
  std::vector<std::string> for_cli11, written;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool mark = word == "--" && form.double_dash;
    if (mark || (!is_option(word) && form.runs_command)) {
      line.words.insert(line.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i + (mark ? 1 : 0)), words.end());
      break;
    }
    if (!is_option(word) && (word != "-" || form.single_dash)) {
      line.words.push_back(word);
      continue;
    }
    const bool is_long = word.starts_with("--");
    const std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
    const bool has_value = end < word.size();
    const std::string name = is_long ? with_dashes(word.substr(0, end)) : word.substr(0, 2);
    const CLI::Option* const found = app.get_option_no_throw(name);
    const bool takes_value = found != nullptr && !known.at(found)->value.empty();
    if (found == nullptr || (form.passes_unknown && !is_long && has_value && !takes_value)) {
      if (!form.passes_unknown) unknown(word, name, app, form);
      line.words.push_back(word);
      continue;
    }
    const Option& option = *known.at(found);
    const std::string where = is_long ? word.substr(0, end) : name + ", --" + found->get_lnames().front();
    if (has_value && !takes_value && !form.passes_unknown)
      fail<UsageError>(where, "no value", quoted(word.substr(end + 1)));
    if (takes_value && !has_value && i + 1 == words.size()) fail<UsageError>(where, "a value", "none", form.hint);
    const auto add = [&](const std::string& value) {
      written.push_back(where);
      for_cli11.push_back(name);
      if (takes_value) for_cli11.push_back(value);
    };
    add(!takes_value ? "" : has_value ? word.substr(is_long ? end + 1 : end) : words[++i]);
    while (option.several && i + 1 < words.size() && !is_option(words[i + 1])) add(words[++i]);
    if (&option >= options.data() + own.size()) break;  // --help or --version
  }

  app.parse(std::vector<std::string>(for_cli11.rbegin(), for_cli11.rend()));  // CLI11 takes the last word first
  std::map<const CLI::Option*, std::size_t> count;
  for (std::size_t k = 0; k < written.size(); ++k) {
    const CLI::Option* const o = app.parse_order()[k];
    const Option& option = *known.at(o);
    option.set(written[k], option.value.empty() ? "" : o->results()[count[o]++]);
  }
  return line;
}

const std::vector<std::string>& words_of(const Line& line, const std::string& expected) {
  for (const std::string& word : line.words)
    if (word.empty()) fail<UsageError>("command line", expected, "an empty word");
  return line.words;
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

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

}  // namespace tutti::command_line
