// SPDX-License-Identifier: MIT
#include "tools/trainer/recipes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/core/printable.hpp>

#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/check_values.hpp"
#include "tools/trainer/cifar_recipes.hpp"
#include "tools/trainer/imagenet_recipes.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe_finetune.hpp"

namespace tutti::trainer {

namespace {

// The net and the numbers come from Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU". 1000 divides the
// number of CIFAR-10's images, so that all batches have the same size.
void fast(RunOptions& o) {
  o.network = "cifar_fast";
  o.depth = 8;
  o.epochs = 10;
  o.batch_size = 1000;
  o.mom = 0.85;
  o.wd = 0.0153 / 11.5;
  o.label_smoothing = 0.2;
  o.pad_size = 2;
  o.pad_mode = "reflect";
  // For a pixel x, (x - 128) / 64 is exact in bfloat16. Constant padding of 128 becomes zero for the whitening layer.
  o.rgb_mean = "128";
  o.rgb_std = "64";
  o.fill_value = 128;
  o.precision = "bf16";
  o.any_half = true;
  o.tta = 2;
  o.ema_decay = 0.97;  // replaces Jordan's lookahead
  // Evaluates only at the end.
  o.evaluate_every = o.save_period = 1'000'000;
}

// The schedule is a triangle: the rate rises from a fifth of the peak to the peak in the first 23 % of the run, and
// falls to 7 %.
void complete_fast(RunOptions& o) {
  if (!o.warmup_epochs && !detail::has_own_rise(o)) o.warmup_epochs = 0.23 * static_cast<double>(o.epochs);
  if (!o.warmup_lr) {
    o.warmup_lr = 0.2 * *o.lr;
    o.derived.emplace_back("warmup-lr");
  }
  if (o.lr_end || (o.lr_schedule != "auto" && o.lr_schedule != "linear")) return;
  o.lr_end = 0.07 * *o.lr;
  o.derived.emplace_back("lr-end");
}

const Recipe* find(Program p, const std::string& name, std::vector<Recipe>& all) {
  all = recipes_of(p);
  const auto at = std::find_if(all.begin(), all.end(), [&](const Recipe& r) { return r.name == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace

std::vector<Recipe> recipes_of(Program p) {
  std::vector<Recipe> all{{.name = "fast",
                           .source = "after KellerJordan/cifar10-airbench, airbench94",
                           .published = "94.0 % top-1",
                           .epochs = 10,
                           .program = Program::train_cifar10,
                           .apply = fast,
                           .rate = 1.5 * 1000 / 1024,
                           .batch = 1000,
                           .rule = RateRule::linear,
                           .complete = complete_fast,
                           .differs = "an average of the weights in place of lookahead; a net of tutti"}};
  add_cifar_recipes(all);
  add_imagenet_recipes(all);
  const Program options = p == Program::tutti_train ? Program::train_imagenet : p;
  std::erase_if(all, [options](const Recipe& r) { return r.program != options; });
  all.push_back({.name = "finetune",
                 .source = "tutti, for --pretrained weights and few images",
                 .published = "other accuracies for other images",
                 .epochs = 15,
                 .program = options,
                 .apply = recipe_finetune,
                 .complete = detail::fill_finetune});
  return all;
}

std::string recipe_list(Program p) {
  std::string text;
  for (const Recipe& r : recipes_of(p)) {
    char line[512];
    std::snprintf(line, sizeof line, "%-16s %4g epochs  %s\n%-16s %s\n", r.name,
                  static_cast<double>(r.epochs) - 1 + r.last_epoch, r.published, "", r.source);
    text += line;
    if (!r.differs.empty()) text += std::string(17, ' ') + "differs: " + r.differs + "\n";
  }
  return text;
}

void apply_recipe(RunOptions& o, const std::string& name) {
  if (name.empty()) return;
  std::vector<Recipe> all;
  const Recipe* const r = find(o.program, name, all);
  if (r == nullptr) {
    std::vector<std::string> names;
    for (const Recipe& known : all) names.emplace_back(known.name);
    const std::string near = nearest_word(name, names);
    fail<UsageError>("--recipe", detail::list_of(names) + ", or list, which describes them",
                     "'" + printable(name) + "'", near.empty() ? "" : "did you mean " + near);
  }
  if (!o.preset.empty()) fail<UsageError>("--recipe", "no --preset together with it", o.preset);
  o.recipe = name;
  r->apply(o);
}

void fill_recipe(RunOptions& o) {
  if (o.recipe.empty()) return;
  std::vector<Recipe> all;
  const Recipe* const found = find(o.program, o.recipe, all);
  if (found == nullptr) return;
  const Recipe& r = *found;
  if (r.rate > 0 && o.lr) {
    o.notes.push_back("--recipe " + o.recipe + ": --lr " + detail::text_of(*o.lr) + " replaces its rate, " +
                      detail::text_of(r.rate) + " for " + std::to_string(r.batch) + " images per update");
  } else if (r.rate > 0) {
    const double share = static_cast<double>(o.global_batch_size) / static_cast<double>(r.batch);
    const double factor = r.rule == RateRule::linear ? share : r.rule == RateRule::root ? std::sqrt(share) : 1;
    o.lr = r.rate * factor;
    o.derived.emplace_back("lr");
    if (o.global_batch_size != r.batch)
      o.notes.push_back("--recipe " + o.recipe + ": " + std::to_string(o.global_batch_size) +
                        " images per update in place of " + std::to_string(r.batch) + ", so the rate is " +
                        detail::text_of(*o.lr) + " in place of " + detail::text_of(r.rate) +
                        (r.rule == RateRule::linear ? " (proportional to the batch)"
                         : r.rule == RateRule::root ? " (proportional to the root of the batch)"
                                                    : " (it does not follow the batch)"));
  }
  if (r.complete != nullptr) r.complete(o);
}

void note_overrides(RunOptions& o, const RunOptions& without, const RunOptions& defaults) {
  if (o.recipe.empty()) return;
  const io::Json given = options_json(o), recipe = options_json(without), usual = options_json(defaults);
  std::string list;
  for (const auto& [name, value] : recipe.as_object()) {
    const std::string set = io::write_json(value), said = io::write_json(*given.find(name));
    // The rate follows the batch, and fill_recipe() says how.
    if (name == "recipe" || name == "batch-size" || set == said || set == io::write_json(*usual.find(name))) continue;
    list += (list.empty() ? "" : ", ") + ("--" + name) + " " + said + " (not " + set + ")";
  }
  if (!list.empty()) o.notes.push_back("--recipe " + o.recipe + ": other values were given: " + list);
}

}  // namespace tutti::trainer
