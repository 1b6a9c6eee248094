// SPDX-License-Identifier: MIT
#include "tools/data/options.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>

#include "tools/data/shard_writer.hpp"

namespace tutti::data_tool {

namespace detail {

std::int64_t integer(const std::string& name, const std::string& text, std::int64_t low, std::int64_t high) {
  std::int64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || end != text.data() + text.size() || v < low || v > high)
    fail<UsageError>(name, "an integer from " + std::to_string(low) + " to " + std::to_string(high),
                     "'" + text.substr(0, 60) + "'");
  return v;
}

std::vector<Option> option_table(Options& o) {
  const auto text = [](std::string& to) {
    return [&to](const std::string& name, const std::string& v) {
      if (v.empty()) fail<UsageError>(name, "a value", "an empty one");
      to = v;
    };
  };
  const auto number = [](auto& to, std::int64_t low, std::int64_t high) {
    return [&to, low, high](const std::string& name, const std::string& v) {
      to = static_cast<std::remove_reference_t<decltype(to)>>(integer(name, v, low, high));
    };
  };
  const auto flag = [](bool& to, bool value = true) {
    return [&to, value](const std::string&, const std::string&) { to = value; };
  };
  const auto ignored = [](const std::string& name, const std::string& v) { (void)integer(name, v, 0, 1 << 20); };
  constexpr std::int64_t many = packed::most_shards;
  return {
      {{"-i", "--input", "--input-dir"}, "cr", true, text(o.in)},
      {{"-o", "--output", "--output-dir"}, "cr", true, text(o.out)},
      {{"--raw-data-dir"}, "p", true, text(o.in)},
      {{"--local-scratch-dir"}, "p", true, text(o.out)},
      {{"--imagenet-username"}, "p", true, text(o.username)},
      {{"--imagenet-access-key"}, "p", true, text(o.access_key)},
      {{"--to"},
       "c",
       true,
       [&o](const std::string& n, const std::string& v) {
         (void)form_of(v, n);
         o.to = v;
       }},
      {{"--from"},
       "c",
       true,
       [&o](const std::string& n, const std::string& v) {
         o.from = v == "folder" ? imagenet::Form::image_folder : form_of(v, n);
       }},
      {{"-s", "--split", "--subset-name"},
       "crv",
       true,
       [&o](const std::string& n, const std::string& v) {
         if (v != "train" && v != "validation" && v != "val" && v != "test" && v != "both")
           fail<UsageError>(n, "train, validation or both", "'" + v.substr(0, 60) + "'");
         o.split = v;
       }},
      {{"-d", "--dataset-name"},
       "r",
       true,
       [&o](const std::string& n, const std::string& v) {
         if (v != "imagenet" && v != "flowers") fail<UsageError>(n, "imagenet or flowers", "'" + v.substr(0, 60) + "'");
         o.dataset = v;
       }},
      {{"-r", "--resize", "--size"}, "cr", true, number(o.rules.size, 1, 1 << 14)},
      {{"-R", "--stretch"}, "cr", false, flag(o.rules.stretch)},
      {{"-Q", "--quality"}, "cr", true, number(o.rules.quality, 1, 100)},
      {{"--keep-format"}, "c", false, flag(o.rules.keep_format)},
      {{"--shards"}, "cp", true, number(o.shards, 1, many)},
      {{"--validation-shards"}, "cp", true, number(o.validation_shards, 1, many)},
      {{"--seed"},
       "cp",
       true,
       [&o](const std::string& n, const std::string& v) {
         o.seed = static_cast<std::uint64_t>(integer(n, v, 0, INT64_MAX));
       }},
      {{"--no-shuffle", "--noshuffle"}, "c", false, flag(o.shuffle, false)},
      {{"--classes"}, "crvi", true, number(o.classes, 1, 1 << 24)},
      {{"--start-offset", "--first-shard"}, "cr", true, number(o.start, 0, many)},
      {{"--last-shard"},
       "cr",
       true,
       [&o](const std::string& n, const std::string& v) { o.last = integer(n, v, 0, many); }},
      {{"-f", "--force"}, "cpr", false, flag(o.force)},
      {{"--threads", "--num-preprocess-threads"},
       "cprv",
       true,
       [&o](const std::string& n, const std::string& v) {
         const auto k = static_cast<int>(integer(n, v, 0, 1024));
         o.threads = k > 0 ? k : usable_cores();
       }},
      {{"--num-intra-threads"}, "r", true, ignored},
      {{"--num-inter-threads"}, "r", true, ignored},
      {{"--decode"}, "v", false, flag(o.decode)},
      {{"-h", "--help"}, "cprvi", false, flag(o.help)},
  };
}

void check(Options& o) {
  const bool writes = o.command == Command::convert || o.command == Command::resize;
  if (writes && o.in.empty()) fail<UsageError>("command line", "-i, the folder to read", "none");
  if (writes && o.out.empty()) fail<UsageError>("command line", "-o, the folder to write", "none");
  if (o.command == Command::preprocess) {
    if (o.out.empty()) fail<UsageError>("command line", "--local_scratch_dir, the folder to write", "none");
    if (o.username.empty() != o.access_key.empty())
      fail<UsageError>("command line", "--imagenet_username and --imagenet_access_key", "one of them");
    if (o.in.empty() && o.username.empty())
      fail<UsageError>("command line", "--raw_data_dir, the folder to read", "none",
                       "or --imagenet_username and --imagenet_access_key, with which it is fetched");
    if (o.in.empty()) o.in = (io::Path(o.out) / "raw_data").string();
  }
  if ((o.command == Command::verify || o.command == Command::info) && o.in.empty())
    fail<UsageError>("command line", "a folder", "none");
  if (o.command == Command::resize) {
    if (o.split.empty()) o.split = "train";
    if (o.split == "both") fail<UsageError>("-s", "train or validation", "both");
    if (o.rules.size == 0) o.rules.size = 480;
    if (o.dataset.empty() && has(o.in, "imagenet")) o.dataset = "imagenet";
    if (o.dataset.empty() && has(o.in, "flowers")) o.dataset = "flowers";
    if (o.dataset.empty() && o.classes == 0)
      fail<UsageError>("-d", "imagenet or flowers, here or in the path of the input", "neither", "or --classes N");
    if (o.classes == 0) o.classes = o.dataset == "imagenet" ? 1000 : 5;
  }
  if (o.last && *o.last < o.start)
    fail<UsageError>("--last-shard", "--first-shard, " + std::to_string(o.start) + ", or a later one",
                     std::to_string(*o.last));
  if (o.rules.stretch && o.rules.size == 0) fail<UsageError>("--stretch", "-r N with it", "none");
}

}  // namespace detail

Options parse_options(const std::vector<std::string>& words) {
  Options o;
  if (words.empty()) fail<UsageError>("command line", "a command", "none", "--help shows all");
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help" || words[0] == "--version") {
    (words[0] == "--version" ? o.version : o.help) = true;
    return o;
  }
  constexpr std::string_view names[] = {"convert", "preprocess", "resize", "verify", "info"};
  const auto command = std::find(std::begin(names), std::end(names), words[0]);
  if (command == std::end(names))
    fail<UsageError>("command line", "convert, preprocess, resize, verify or info", "'" + words[0].substr(0, 60) + "'");
  o.command = static_cast<Command>(command - std::begin(names));
  const char letter = (*command)[0];
  const auto table = detail::option_table(o);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word[0] != '-') {
      if (o.command != Command::verify && o.command != Command::info)
        fail<UsageError>("command line", "an option", "'" + word.substr(0, 60) + "'");
      if (!o.in.empty()) fail<UsageError>("command line", "one folder", "'" + word.substr(0, 60) + "' too");
      o.in = word;
      continue;
    }
    std::string name = word, value;
    bool has_value = false;
    if (word.starts_with("--")) {
      const auto equals = word.find('=');
      has_value = equals != std::string::npos;
      name = word.substr(0, equals);
      std::replace(name.begin(), name.end(), '_', '-');
      if (has_value) value = word.substr(equals + 1);
    } else if (word.size() > 2) {
      name = word.substr(0, 2);
      has_value = true;
      value = word.substr(2);
    }
    const auto option = std::find_if(table.begin(), table.end(), [&](const auto& t) {
      return std::find(t.names.begin(), t.names.end(), name) != t.names.end() &&
             t.commands.find(letter) != std::string_view::npos;
    });
    if (option == table.end()) {
      std::vector<std::string> known;
      for (const auto& t : table)
        if (t.commands.find(letter) != std::string_view::npos)
          for (const auto& n : t.names)
            if (std::string_view(n).size() > 2) known.emplace_back(std::string(n).substr(2));
      const std::string nearest = name.size() > 2 ? nearest_word(std::string_view(name).substr(2), known) : "";
      fail<UsageError>("command line", "an option of " + words[0], "'" + word.substr(0, 60) + "', which is none",
                       nearest.empty() ? "--help lists all" : "did you mean --" + nearest);
    }
    if (has_value && !option->takes_value) fail<UsageError>(name, "no value", "'" + value.substr(0, 60) + "'");
    if (option->takes_value && !has_value) {
      if (++i == words.size()) fail<UsageError>(name, "a value", "none");
      value = words[i];
    }
    option->set(name, value);
    if (o.help) return o;
  }
  detail::check(o);
  return o;
}

}  // namespace tutti::data_tool
