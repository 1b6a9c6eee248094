// SPDX-License-Identifier: MIT
#include "tools/predict/words.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::predict_tool {

Option word(std::string_view name, std::string& to, std::vector<std::string> words) {
  return {name, true, [name, &to, words = std::move(words)](const std::string& v) {
            if (std::find(words.begin(), words.end(), v) == words.end()) {
              std::string all;
              for (std::size_t i = 0; i < words.size(); ++i)
                all += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
              fail<UsageError>(name, all, "'" + printable(v) + "'");
            }
            to = v;
          }};
}

Option per_channel(std::string_view name, std::vector<float>& to, float low) {
  return {name, true, [=, &to](const std::string& v) {
            to.clear();
            for (std::size_t at = 0; at <= v.size();) {
              const std::size_t end = std::min(v.find(',', at), v.size());
              to.push_back(number_of(name, v.substr(at, end - at), low, 255.0F));
              at = end + 1;
            }
            if (to.size() == 1) to.resize(3, to[0]);
            if (to.size() != 3) fail<UsageError>(name, "one value or three", "'" + printable(v) + "'");
          }};
}

std::vector<std::string> read_words(const std::vector<std::string>& words, const std::vector<Option>& options) {
  std::vector<std::string> others;
  bool only_others = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& w = words[i];
    if (only_others || !w.starts_with("-") || w == "-") {
      if (w.empty()) fail<UsageError>("command line", "a file or a folder", "an empty word");
      others.push_back(w);
      continue;
    }
    if (w == "--") {
      only_others = true;
      continue;
    }
    const std::size_t equals = w.find('=');
    std::string name = w.substr(0, equals);
    std::replace(name.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(name.size())), name.end(), '_',
                 '-');
    const auto o = std::find_if(options.begin(), options.end(), [&](const Option& k) { return k.name == name; });
    if (o == options.end()) fail<UsageError>("command line", "an option", printable(w), "--help lists all options");
    if (!o->takes_value) {
      if (equals != w.npos) fail<UsageError>(name, "no value", printable(w));
      o->set("");
      continue;
    }
    if (equals == w.npos && i + 1 == words.size()) fail<UsageError>(name, "a value", "none");
    const std::string value = equals == w.npos ? words[++i] : w.substr(equals + 1);
    if (value.empty()) fail<UsageError>(name, "a value", "an empty one");
    o->set(value);
  }
  return others;
}

}  // namespace tutti::predict_tool
