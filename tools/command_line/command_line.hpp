// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

// Command lines of the programs, which CLI11 parses. The training programs have a table of their own, see
// trainer/cli.hpp.
namespace tutti::command_line {

// Takes the option as it was written, for messages, and its value: empty if it is a switch.
using Set = std::function<void(const std::string& option, const std::string& value)>;

struct Option {
  std::string names;  // with dashes: "-n,--num-workers"; further ones are in spellings.cpp
  std::string value;  // what the help calls its value; empty: a switch
  Set set;
  std::string help{}, group{};
  bool common = true;    // --help lists it, not only --help-all
  bool several = false;  // takes all words up to the next option; `set` is called for each
};

// What a program's command line may contain besides its options.
struct Form {
  std::string program;
  std::string help{};                     // what --help prints; empty: title, usage, the options and notes
  std::string title{}, usage{}, notes{};  // usage: the lines after "Usage: "
  // Of the message about a word that begins with - and is no option.
  std::string expected = "an option", hint = "--help lists all options";
  bool runs_command = false;    // the first word that is no option starts the command line of another program
  bool double_dash = true;      // no word after "--" is an option
  bool single_dash = true;      // "-" is a word and no option
  bool passes_unknown = false;  // unknown options are words
};

struct Line {
  std::vector<std::string> words{};  // those that are no options, in their order
  std::string text{};                // what --help, --help-all or --version prints; empty: none was given
};

// Calls `set` of each option that `words` contain, in their order, up to --help or --version. A name is accepted with -
// or _, a value in the next word, after '=' or after the letter. UsageError names the word that is wrong.
[[nodiscard]] Line read(const std::vector<std::string>& words, const std::vector<Option>& options, const Form& form);

// The line's words. UsageError if one is empty: `expected` is what each must be.
[[nodiscard]] const std::vector<std::string>& words_of(const Line& line, const std::string& expected);

// The name with '-' in place of '_'.
[[nodiscard]] std::string with_dashes(std::string name);

// Breaks the text into lines of at most so many bytes.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width);

}  // namespace tutti::command_line
