// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/trainer/options.hpp"

// The recipes of --recipe: published ways to train, as defaults of options. An option that the user gives wins.
namespace tutti::trainer {

enum class RateRule : std::uint8_t {
  none,    // the recipe sets no rate, or its rate does not depend on the batch
  linear,  // the rate is proportional to the batch
  root     // the rate is proportional to the root of the batch
};

struct Recipe {
  const char *name = "", *source = "";
  const char* published = "";  // accuracy of its authors
  std::int64_t epochs = 0;
  Program program = Program::train_imagenet;
  // Sets the defaults, except for those that depend on other options.
  std::function<void(RunOptions&)> apply{};
  double rate = 0;         // peak rate for an update of `batch` images
  std::int64_t batch = 0;  // images of an update
  RateRule rule = RateRule::none;
  // Sets the defaults that depend on other options; the rate and the batch are set. May be empty.
  std::function<void(RunOptions&)> complete{};
  std::string differs{};  // from the original, for --recipe list; empty: nothing is known
  double last_epoch = 1;  // share of the last epoch that is trained
};

// Returns all recipes of a program. Each file with recipes has a function that adds its own.
[[nodiscard]] std::vector<Recipe> recipes_of(Program p);

// Returns the text of --recipe list.
[[nodiscard]] std::string recipe_list(Program p);

// Sets the defaults of a recipe. Throws UsageError for an unknown name.
void apply_recipe(RunOptions& o, const std::string& name);

// Sets the defaults that depend on the batch, the rate first, and adds a note that says how the rate was scaled.
void fill_recipe(RunOptions& o);

// Adds a note with the options that contradict the recipe. without: the options that the recipe alone would set.
// defaults: those without a recipe.
void note_overrides(RunOptions& o, const RunOptions& without, const RunOptions& defaults);

}  // namespace tutti::trainer
