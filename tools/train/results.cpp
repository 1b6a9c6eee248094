// SPDX-License-Identifier: MIT
#include "tools/train/results.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/utf8.hpp>

#include "tools/export/write.hpp"
#include "tools/predict/model_options.hpp"
#include "tools/report/read_run.hpp"

namespace tutti::train_tool {

namespace {

// Calls f and reports its error.
template <class F>
void careful(const std::string& what, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    std::fprintf(stderr, "warning: %s was not written: %s\n", what.c_str(), e.what());
  }
}

// Returns the last line of the log, which has the scores of the classes.
io::Json last_line(const io::Path& log) {
  const std::string text = io::read_text_file(log, std::size_t{1} << 30);
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) fail<DataError>(log.string(), "lines", "an empty file");
  const std::size_t begin = text.rfind('\n', end);
  const std::size_t from = begin == std::string::npos ? 0 : begin + 1;
  return io::parse_json(text.substr(from, end + 1 - from), log.string());
}

// Returns a name for a column of 24 characters.
std::string column(const std::string& name) {
  std::string text = predict_tool::shown(name);
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++characters) at += std::max<std::size_t>(io::utf8_length(text, at), 1);
  text.append(24 - std::min<std::size_t>(characters, 24), ' ');
  return text;
}

void print_scores(const io::Path& log) {
  constexpr std::size_t most = 30;
  const io::Json line = last_line(log);
  const io::Json* const classes = line.find("classes");
  if (classes == nullptr) return;
  const io::Json* const best = line.find("classes_best");
  std::printf("the %s evaluation, of step %lld: mean F1 %.3f\n",
              best == nullptr || best->as_bool("classes_best") ? "best" : "last",
              static_cast<long long>(line.at("classes_step").as_integer("classes_step")),
              line.at("mean_f1").as_double("mean_f1"));
  std::printf("  %-24s %6s %10s %7s %7s\n", "class", "images", "precision", "recall", "F1");
  std::size_t shown = 0;
  for (const io::Json& c : classes->as_array("classes")) {
    if (++shown > most) break;
    std::printf("  %s %6lld %10.3f %7.3f %7.3f\n", column(c.at("class").as_string("class")).c_str(),
                static_cast<long long>(c.at("images").as_integer("images")), c.at("precision").as_double("precision"),
                c.at("recall").as_double("recall"), c.at("f1").as_double("f1"));
  }
  if (shown > most) std::printf("  and %zu more, in report.html\n", classes->as_array("classes").size() - most);
}

// Writes a line for each of the worst-classified images: file, class, predicted class and its probability.
void write_worst(const io::Path& evaluation, const io::Path& to) {
  const io::Json from = io::parse_json(io::read_text_file(evaluation, std::size_t{1} << 26), evaluation.string(),
                                       {std::size_t{1} << 26, std::size_t{1} << 22, 8});
  const io::Json::Array& names = from.at("class_names").as_array("class_names");
  const auto name = [&](const io::Json& label) {
    const auto k = static_cast<std::size_t>(label.as_integer("label"));
    return k < names.size() ? names[k].as_string("class_names") : std::to_string(k);
  };
  std::string text;
  for (const io::Json& w : from.at("worst").as_array("worst")) {
    const io::Json* const path = w.find("path");
    char sure[32];
    std::snprintf(sure, sizeof sure, "%.1f %%", 100 * w.at("sure").as_double("sure"));
    text += (path != nullptr ? path->as_string("path") : "image " + std::to_string(w.at("index").as_integer("index"))) +
            ": is " + name(w.at("label")) + ", taken for " + name(w.at("said")) + " with " + sure + "\n";
  }
  io::atomic_write_file(to, text);
}

// Returns a word as a shell reads it. UTF-8 stays readable; other bytes and control characters become \xNN in $'...'.
std::string shell_word(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string quoted = "'", escaped = "$'";
  bool all_shown = true;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = std::max<std::size_t>(io::utf8_length(word, at), 1);
    const std::string character = word.substr(at, length);
    const bool is_text = io::utf8_length(word, at) > 0 && predict_tool::shown(character) == character;
    all_shown = all_shown && is_text;
    quoted += character == "'" ? "'\\''" : character;
    if (character == "'" || character == "\\") escaped += '\\';
    if (is_text) {
      escaped += character;
    } else {
      for (const char c : character) {
        char hex[8];
        std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        escaped += hex;
      }
    }
    at += length;
  }
  return (all_shown ? quoted : escaped) + "'";
}

// Returns the launcher's command before that of the program, or "LAUNCHER " if only a part of it is known.
std::string launcher() {
  const LaunchEnvironment start = read_launch_environment();
  if (!start.launched) return {};
  const bool ours = std::getenv("TUTTI_RANK") != nullptr, here = start.local_size == start.size && start.servers == 0;
  if (!ours || !here || start.elastic) return "LAUNCHER ";
  return "tutti-launch -n " + std::to_string(start.size) + (start.mpi ? " --launcher mpi " : " ");
}

// Returns the command that trains twice as long. words: those of the command so far.
std::string longer(const trainer::RunOptions& o, const std::vector<std::string>& words) {
  std::string text = launcher() + "tutti-train";
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    const auto replaced = {"--clear-log", "--epochs", "--max-steps", "--num-batches", "--num-epochs"};
    if (std::find(replaced.begin(), replaced.end(), name) == replaced.end()) {
      text += " " + shell_word(words[i]);
      continue;
    }
    const bool value_follows = words[i].size() == name.size() && i + 1 < words.size() && !words[i + 1].starts_with('-');
    if (value_follows) ++i;
  }
  return text + (o.num_batches > 0 ? " --num-batches " + std::to_string(2 * o.num_batches)
                                   : " --num-epochs " + std::to_string(2 * o.epochs));
}

void write_page(const io::Path& run, const report_tool::PageParts& parts) {
  std::vector<report_tool::RunData> runs{report_tool::read_run(run.string(), report_tool::images_of_each(1))};
  const std::string page = report_tool::make_page(parts, runs, runs.front().name, "");
  io::atomic_write_file(run / "report.html", page);
}

}  // namespace

void write_results(const trainer::RunOptions& o, const std::vector<std::string>& words,
                   const report_tool::PageParts& page) {
  const io::Path run = o.run_dir, logs = o.log_dir.empty() ? o.run_dir : o.log_dir;
  careful("the table of classes", [&] { print_scores(logs / "log.jsonl"); });
  careful((run / "report.html").string(), [&] { write_page(logs, page); });
  careful((run / "worst.txt").string(), [&] { write_worst(logs / "evaluation.json", run / "worst.txt"); });
  careful((run / "net.onnx").string(), [&] {
    export_tool::Options as;
    as.model.model = o.run_dir;
    as.out = (run / "net.onnx").string();
    (void)export_tool::write(as);
  });
  const std::string shown = predict_tool::shown(o.run_dir), quoted = shell_word(o.run_dir);
  const char *const folder = shown.c_str(), *const word = quoted.c_str();
  std::printf(
      "%s/report.html: curves, confusion matrix and the worst images; %s/worst.txt: their files\n"
      "predict:     tutti-predict %s IMAGE...\n"
      "export:      tutti-export %s FILE.onnx\n"
      "go on:       %s\n"
      "fine-tune:   tutti-train OTHER_FOLDER --pretrained %s\n",
      folder, folder, word, word, longer(o, words).c_str(), word);
}

}  // namespace tutti::train_tool
