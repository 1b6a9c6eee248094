// SPDX-License-Identifier: MIT
#include "tools/trainer/fine_tuning.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/utf8.hpp>
#include <tutti/nn/class_weights.hpp>
#include <tutti/nn/frozen_statistics.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer {

namespace detail {

namespace {

// Returns the number that `text` consists of, or a negative number for another text.
double number_of(std::string_view text) {
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : -1;
}

using Pair = std::pair<std::string, double>;

// Splits NAME=NUMBER at the last '='.
Pair pair_of(const char* option, const std::string& part, const char* form) {
  const std::size_t at = part.rfind('=');
  const double value = at == std::string::npos ? -1 : number_of(std::string_view(part).substr(at + 1));
  if (at == 0 || at == std::string::npos || !(value >= 0 && value <= 1e6))
    fail<UsageError>(option, form, "'" + printable(part) + "'");
  return {part.substr(0, at), value};
}

std::vector<Pair> rates_of(const RunOptions& o) {
  std::vector<Pair> all;
  for (const std::string& part : tutti::detail::split_at_commas(o.rate_of))
    all.push_back(pair_of("--rate-of", part, "PATTERN=FACTOR,..., e.g. fc=10,layer1=0.1"));
  return all;
}

std::vector<Pair> weights_in_file(const std::string& file) {
  if (!io::path_exists(file))
    fail<UsageError>("--class-weights", "auto, NAME=WEIGHT,... or a file with a line NAME WEIGHT for each class",
                     "'" + printable(file) + "', and no such file");
  const std::string text = io::read_text_file(file, std::size_t{1} << 24);
  std::vector<Pair> all;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    ++number;
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t blank = line.find_last_of(" \t");
    const double value = blank == line.npos ? -1 : number_of(line.substr(blank + 1));
    if (!(value >= 0 && value <= 1e6))
      fail<UsageError>("--class-weights", "a line NAME WEIGHT, with a weight from 0 to 1e6",
                       printable(file) + " line " + std::to_string(number) + ": '" +
                           printable(std::string(line.substr(0, 60))) + "'");
    std::string name(line.substr(0, blank));
    while (!name.empty() && (name.back() == ' ' || name.back() == '\t')) name.pop_back();
    all.emplace_back(std::move(name), value);
  }
  if (all.empty())
    fail<UsageError>("--class-weights", "a line NAME WEIGHT for each class", printable(file) + ", which has none");
  return all;
}

// Counts the training images of each class. Reads the images if the task cannot tell.
std::vector<std::int64_t> count_images(const Images& images, int classes) {
  if (images.class_counts) return images.class_counts();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(classes), 0);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(images.train.schema().image_bytes()));
  for (std::int64_t i = 0; i < images.train.size(); ++i) {
    std::int32_t label = 0;
    Rng rng(0, Purpose::user, 0, static_cast<std::uint64_t>(i));
    images.train.read(i, rng, Sample{image, label});
    if (label >= 0 && label < classes) ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

std::string weights_text(const std::vector<std::string>& names, const std::vector<float>& weights) {
  std::string text = "class weights:";
  constexpr std::size_t most = 12;
  for (std::size_t k = 0; k < weights.size() && k < most; ++k) {
    char value[32];
    std::snprintf(value, sizeof value, " %.3g", static_cast<double>(weights[k]));
    text += (k > 0 ? ", " : " ") + printable(names[k]) + value;
  }
  if (weights.size() > most) text += " and " + std::to_string(weights.size() - most) + " more";
  return text;
}

}  // namespace

std::vector<float> class_weights(const std::string& text, const std::vector<std::string>& names,
                                 const std::vector<std::int64_t>& images) {
  std::vector<float> weights(names.size(), 1.F);
  if (text == "auto") {
    double all = 0, classes = 0;
    for (const std::int64_t n : images) {
      all += static_cast<double>(n);
      classes += n > 0 ? 1 : 0;
    }
    for (std::size_t k = 0; k < weights.size() && k < images.size(); ++k)
      if (images[k] > 0) weights[k] = static_cast<float>(all / (classes * static_cast<double>(images[k])));
    return weights;
  }
  std::vector<Pair> given;
  if (text.find('=') != std::string::npos && !is_file(text))
    for (const std::string& part : tutti::detail::split_at_commas(text))
      given.push_back(pair_of("--class-weights", part, "auto, a file, or NAME=WEIGHT,..., e.g. cat=2,dog=0.5"));
  else
    given = weights_in_file(text);
  for (const auto& [name, value] : given) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      fail<UsageError>("--class-weights", "names of the " + std::to_string(names.size()) + " classes",
                       "'" + printable(name) + "'", "the nearest are " + tutti::detail::nearest_names(name, names));
    weights[static_cast<std::size_t>(at - names.begin())] = static_cast<float>(value);
  }
  if (std::all_of(weights.begin(), weights.end(), [](float w) { return w == 0; }))
    fail<UsageError>("--class-weights", "a weight above 0", "0 for each class");
  return weights;
}

void check_fine_tuning(RunOptions& o) {
  (void)rates_of(o);
  number("--patience", o.patience, 0, 1'000'000);
  number("--find-lr-steps", o.find_lr_steps, 20, 100'000);
  if (!o.find_lr && o.find_lr_steps != RunOptions().find_lr_steps)
    fail<UsageError>("--find-lr-steps", "--find-lr together with it", std::to_string(o.find_lr_steps), "leave it out");
  if (o.patience > 0 && o.evaluate_every == 0)
    fail<UsageError>("--patience", "evaluations while training", "--evaluate-every 0", "leave one of the two out");
  if (o.patience > 0 && o.strategy == "ps_async")
    fail<UsageError>("--patience", "0 with --strategy ps_async, because only one worker evaluates",
                     std::to_string(o.patience), "--strategy ps can end a run early");
  if (o.patience > 0 && !o.evaluate_every) o.evaluate_every = 1;
  const bool changes = o.strategy == "ps_async" || o.elastic_batch == "worker";
  if (o.find_lr && changes)
    fail<UsageError>("--find-lr", "ranks that do each step together", o.strategy, "find the rate with one process");
  if (o.find_lr && (o.eval_only || o.test_io))
    fail<UsageError>("--find-lr", "no --eval and no --test-io together with it", "one of them");
}

}  // namespace detail

void group_parameters(Graph& model, const RunOptions& o) {
  for (const auto& [pattern, factor] : detail::rates_of(o)) {
    if (factor == 0) fail<UsageError>("--rate-of", "factors over 0", pattern + "=0", "--freeze " + pattern);
    (void)scale_rate(model, pattern, factor, "--rate-of");
  }
  if (!o.decay_of.empty())
    for (const ValueId v : find_parameters(model, o.decay_of, "--decay-of")) model[v].decay = true;
  if (!o.freeze.empty()) (void)freeze(model, o.freeze, "--freeze");
  if (!o.early_parameters.empty()) (void)find_parameters(model, o.early_parameters, "--early-parameters");
}

std::string of_other_classes(const RunOptions& o, const Schema& seen) {
  if (o.eval_only || seen.class_names.empty()) return {};
  const auto card = interchange::open_model(o.pretrained).card;
  if (!card || card->classes.size() != seen.class_names.size() || card->classes == seen.class_names) return {};
  return "the classifier was loaded too, and it is that of other classes: " + printable(card->classes.front()) +
         " ...; it learns yours";
}

Graph trained_net(const Graph& model, const RunOptions& o, const Schema& seen, const Backend& backend, Images& images) {
  Graph net = model;
  const auto require_host = [&](const char* option) {
    if (backend.name() == "cuda")
      fail<UsageError>(option, "a backend on the processor", "cuda", "leave the option out, or use --gpus ''");
  };
  if (!o.freeze.empty()) {
    std::int64_t frozen = 0, all = 0;
    for (const Value& v : net.values) {
      if (v.storage != Storage::parameter) continue;
      all += v.shape.numel();
      frozen += v.trainable ? 0 : v.shape.numel();
    }
    images.notes.push_back("--freeze: " + std::to_string(frozen) + " of " + std::to_string(all) + " parameters stay");
  }
  if (o.freeze_statistics) {
    require_host("--freeze-statistics");
    images.notes.push_back("--freeze-statistics: " + std::to_string(freeze_statistics(net)) +
                           " batch norms use their running statistics");
  }
  if (!o.class_weights.empty() && !o.eval_only) {
    require_host("--class-weights");
    std::vector<std::string> names = seen.class_names;
    for (int k = static_cast<int>(names.size()); k < seen.classes; ++k) names.push_back(std::to_string(k));
    const auto counts =
        o.class_weights == "auto" ? detail::count_images(images, seen.classes) : std::vector<std::int64_t>();
    std::vector<float> weights = detail::class_weights(o.class_weights, names, counts);
    images.notes.push_back(detail::weights_text(names, weights));
    weigh_classes(net, std::move(weights));
  }
  return net;
}

void require_classes_of(const io::Path& checkpoint, const RunOptions& o, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const auto card = interchange::open_model(checkpoint.string()).card;
  if (!card || card->classes.empty()) return;
  std::vector<std::string> now;
  for (const std::string& name : names) now.push_back(utf8_text(name));
  if (card->classes == now) return;
  const auto first = [](const std::vector<std::string>& all) {
    std::string text;
    for (std::size_t k = 0; k < all.size() && k < 4; ++k) text += (k > 0 ? ", " : "") + printable(all[k]);
    return text + (all.size() > 4 ? ", ..." : "");
  };
  fail<UsageError>(o.traits().as_horovod ? "--log-dir" : "--run-dir",
                   "the folder of a run with the classes of these images, " + first(now),
                   printable(o.run_dir) + " with the classes " + first(card->classes),
                   "name another folder; there --pretrained " + printable(o.run_dir) + " begins from its weights");
}

}  // namespace tutti::trainer
