// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

// Parses the command lines of the programs with CLI11. The training programs have their own table of options, see
// trainer/cli.hpp.
namespace tutti::command_line {

// Called with the option as the user wrote it, for messages, and with its value, which is empty for a switch.
using Set = std::function<void(const std::string& option, const std::string& value)>;

struct Option {
  std::string names;  // with dashes: "-n,--num-workers"; additional names are in spellings.cpp
  std::string value;  // name of its value in the help; empty: a switch
  Set set;
  std::string help{}, group{};
  bool common = true;    // also listed by --help, not only by --help-all
  bool several = false;  // takes all words up to the next option; `set` is called for each
};

// The form of a program's command line, without the options.
struct Form {
  std::string program;
  std::string help{};                     // text of --help; if empty, it consists of title, usage, options and notes
  std::string title{}, usage{}, notes{};  // usage: the lines after "Usage: "
  // For the error about a word that begins with '-' and is not an option.
  std::string expected = "an option", hint = "--help lists all options";
  bool runs_command = false;    // the first word that is not an option starts the command line of another program
  bool double_dash = true;      // a word after "--" is not an option
  bool single_dash = true;      // "-" is a word and not an option
  bool passes_unknown = false;  // unknown options are words
};

struct Line {
  std::vector<std::string> words{};  // words that are not options, in order
  std::string text{};                // text to print for --help, --help-all or --version; otherwise empty
};

// Calls `set` of each option in `words`, in order, up to --help or --version. A name may contain - or _. A value is the
// next word, or follows '=' or the letter. Throws UsageError that names the invalid word.
[[nodiscard]] Line read(const std::vector<std::string>& words, const std::vector<Option>& options, const Form& form);

// Returns the line's words. Throws UsageError if a word is empty. `expected`: what each word must be.
[[nodiscard]] const std::vector<std::string>& words_of(const Line& line, const std::string& expected);

// Returns the name with '-' instead of '_'.
[[nodiscard]] std::string with_dashes(std::string name);

// Breaks the text into lines of at most `width` bytes.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width);

}  // namespace tutti::command_line
