// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Checks the values of options. Every error is a UsageError that names the option.
namespace tutti::trainer::detail {

std::string list_of(const std::vector<std::string>& words);

// Brings a word into its standard spelling. Upper case counts as lower case, and '-' counts as '_'. If there is no
// hint, the error suggests the most similar word.
void word(const char* option, std::string& value, const std::vector<std::string>& words,
          const std::vector<std::pair<std::string, std::string>>& synonyms = {}, const char* hint = "");

std::string text_of(double v);

void number(const char* option, double v, double low, double high);

void number(const char* option, std::int64_t v, std::int64_t low, std::int64_t high);

}  // namespace tutti::trainer::detail
