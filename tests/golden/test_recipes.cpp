// SPDX-License-Identifier: MIT
// takes long
// Compares 20 steps of the recipes with those of their originals in PyTorch. README.md describes the file.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors.hpp>

#include "bench/common/recipe_steps.hpp"

using namespace tutti;

namespace {

using Rate = std::optional<std::pair<std::int64_t, double>>;

const io::Safetensors& golden() {
  static const auto file =
      io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / "recipes.safetensors");
  return file;
}
const io::Json::Object& recipes() {
  static const io::Json all = [] {
    for (const auto& [key, value] : golden().metadata())
      if (key == "recipes") return io::parse_json(value, "recipes.safetensors");
    return io::Json::object();
  }();
  return all.as_object();
}
std::vector<double> values(const std::string& name) { return golden().record(name).copy_values<double>(); }

std::vector<std::string> words_of(const io::Json& list) {
  std::vector<std::string> words;
  for (const io::Json& w : list.as_array()) words.push_back(w.as_string());
  return words;
}

trainer::RunOptions options(const std::vector<std::string>& words) {
  ::unsetenv("TUTTI_DATA");
  return bench::recipe_options(words);
}

// Returns the weights, or their averages with the prefix "ema.", without statistics.
std::map<std::string, std::vector<double>> weights(const std::vector<StateSpan>& state, std::string_view prefix) {
  std::map<std::string, std::vector<double>> found;
  for (const StateSpan& s : state) {
    const std::string_view name = s.name;
    if (!name.starts_with(prefix) || name.find("running_") != name.npos) continue;
    if (prefix.empty() && (name.starts_with("ema.") || name.starts_with("momentum.") || name.starts_with("exp_avg")))
      continue;
    const auto* v = reinterpret_cast<const double*>(s.bytes.data());
    found[std::string(name.substr(prefix.size()))].assign(v, v + s.bytes.size() / sizeof(double));
  }
  return found;
}
double distance(const std::map<std::string, std::vector<double>>& a,
                const std::map<std::string, std::vector<double>>& b) {
  double squares = 0;
  for (const auto& [name, v] : a)
    for (std::size_t i = 0; i < v.size(); ++i) squares += (v[i] - b.at(name)[i]) * (v[i] - b.at(name)[i]);
  return std::sqrt(squares);
}

// Returns a description of the first step that differs from the original's, or an empty text.
std::string first_difference(const std::string& name, const std::vector<std::string>& words, const Rate& rate = {}) {
  ReferenceBackend backend;
  const trainer::RunOptions o = options(words);
  bench::RecipeSteps run(backend, o, DType::f64, rate);
  const bool averages = golden().find(name + ".average") != nullptr;
  if (averages != (run.trainer_options().ema_decay > 0)) return averages ? "no average" : "an average";
  const auto losses = values(name + ".loss"), changes = values(name + ".change");
  const auto distances = averages ? values(name + ".average") : std::vector<double>();
  auto before = weights(run.state(), "");
  for (std::int64_t n = 0; n < bench::recipe_steps; ++n) {
    const auto at = static_cast<std::size_t>(n);
    const auto off = [&](const char* what, double got, double expected) {
      if (std::fabs(got - expected) <= 1e-8 * std::fabs(expected)) return std::string();
      return std::string(what) + " of step " + std::to_string(n) + ": " + std::to_string(got) + ", expected " +
             std::to_string(expected);
    };
    if (const auto text = off("loss", run.step(n), losses[at]); !text.empty()) return text;
    const auto state = run.state();
    auto after = weights(state, "");
    if (const auto text = off("change", distance(before, after), changes[at]); !text.empty()) return text;
    if (averages)
      if (const auto text = off("average", distance(weights(state, "ema."), after), distances[at]); !text.empty())
        return text;
    before = std::move(after);
  }
  return {};
}

}  // namespace

TEST_CASE("losses, changes of the weights and averages of the recipes are those of their originals") {
  REQUIRE(recipes().size() >= 20);
  for (const io::Json::Member& member : recipes()) {
    const std::string& name = member.first;
    const io::Json& recipe = member.second;
    if (recipe.find("steps") == nullptr) continue;
    CAPTURE(name);
    CHECK(first_difference(name, words_of(*recipe.find("steps"))) == "");
  }
}

TEST_CASE("a wrong decay, average, smoothing, momentum or rate of a recipe is a difference") {
  for (const io::Json::Member& member : recipes()) {
    const std::string& name = member.first;
    const io::Json& recipe = member.second;
    if (recipe.find("steps") == nullptr) continue;
    CAPTURE(name);
    const auto words = words_of(*recipe.find("steps"));
    CHECK(first_difference(name, words, std::pair<std::int64_t, double>{3, 1.001}) != "");
    for (const io::Json::Member& planted : recipe.at("planted", name).as_object()) {
      CAPTURE(planted.first);
      auto wrong = words;
      for (const std::string& w : words_of(planted.second)) wrong.push_back(w);
      CHECK(first_difference(name, wrong) != "");
    }
  }
}

TEST_CASE("the rates of the whole run of a recipe are those of its original") {
  constexpr std::int64_t per_epoch = 8;
  for (const io::Json::Member& member : recipes()) {
    const std::string& name = member.first;
    const io::Json& recipe = member.second;
    CAPTURE(name);
    const trainer::RunOptions o = options(words_of(*recipe.find("whole")));
    const std::int64_t every = recipe.at("every", name).as_integer(), total = per_epoch * o.epochs;
    const Schedule rate = trainer::fit_options(o, per_epoch * o.global_batch_size).schedule;
    const auto expected = values(name + ".rates");
    REQUIRE(static_cast<std::int64_t>(expected.size()) == (total + every - 1) / every);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i) * every;
      CHECK(rate(SchedulePoint{step, per_epoch, total, o.global_batch_size, 1}) ==
            doctest::Approx(expected[i]).epsilon(1e-12));
    }
  }
}
