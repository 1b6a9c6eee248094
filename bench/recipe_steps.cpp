// SPDX-License-Identifier: MIT
// Runs steps of a recipe with a small net, for bench/baselines/recipes.py, which compares them with the recipe's
// original.
//
//   recipe_steps list PROGRAM             prints a line NAME BATCH EPOCHS for each recipe of train_imagenet or
//   train_cifar10 recipe_steps begin OUT WORDS...       writes images, labels, initial state and rates to a safetensors
//   file recipe_steps rates OUT WORDS...       writes the rates of the whole run with 8 steps an epoch, and the
//   average's decay recipe_steps steps IN OUT TYPE PLANT WORDS...
//                                         does each step from the state <step>/<name> of IN in f32, f64 or bf16, and
//                                         writes the state after it, and that of a free run. PLANT: -, or STEP:FACTOR
//                                         for a rate
//
// WORDS: train_imagenet or train_cifar10, and its options.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>

#include "common/recipe_steps.hpp"
#include "tools/trainer/recipes.hpp"

using namespace tutti;

namespace {

using bench::recipe_rows, bench::recipe_side, bench::recipe_steps;

// The tensors of a file to write, with their bytes.
class Tensors {
 public:
  template <class T>
  void add(std::string name, const Shape& shape, std::span<const T> values) {
    add(std::move(name), dtype_of<T>, shape, std::as_bytes(values));
  }
  void add(std::string name, DType type, const Shape& shape, std::span<const std::byte> bytes) {
    const auto& own = bytes_.emplace_back(bytes.begin(), bytes.end());
    records_.push_back({std::move(name), type, shape, own});
  }
  void add(const std::string& prefix, const std::vector<StateSpan>& state) {
    for (const StateSpan& s : state) add(prefix + s.name, s.dtype, s.shape, s.bytes);
  }
  void write(const std::string& file) const { io::save_safetensors(file, records_); }

 private:
  std::list<std::vector<std::byte>> bytes_;
  std::vector<io::TensorRecord> records_;
};

void begin(const std::string& out, const trainer::RunOptions& o) {
  std::vector<std::uint8_t> before, images;
  std::vector<std::int32_t> labels, second;
  std::vector<float> share;
  ReferenceBackend backend;
  bench::RecipeSteps steps(backend, o, DType::f64);
  std::vector<double> rates;
  for (std::int64_t n = 0; n < recipe_steps; ++n) {
    const bench::RecipeBatch b = bench::recipe_batch(o, n);
    before.insert(before.end(), b.before.begin(), b.before.end());
    images.insert(images.end(), b.images.begin(), b.images.end());
    labels.insert(labels.end(), b.labels.begin(), b.labels.end());
    for (const MixedLabel& m : b.mixed) {
      second.push_back(m.second);
      share.push_back(m.share);
    }
    rates.push_back(steps.rate(n));
  }
  const Shape rows{recipe_steps, recipe_rows}, pixels{recipe_steps, recipe_rows, recipe_side, recipe_side, 3};
  Tensors all;
  all.add<std::uint8_t>("before", pixels, before);
  all.add<std::uint8_t>("images", pixels, images);
  all.add<std::int32_t>("labels", rows, labels);
  all.add<std::int32_t>("second", rows, second);
  all.add<float>("share", rows, share);
  all.add<double>("rates", Shape{recipe_steps}, rates);
  all.add("state/", steps.state());
  all.write(out);
}

void rates(const std::string& out, const trainer::RunOptions& o) {
  constexpr std::int64_t per_epoch = 8;
  const std::int64_t images = per_epoch * o.global_batch_size;
  const Schedule schedule = trainer::fit_options(o, images).schedule;
  std::vector<double> all;
  for (std::int64_t n = 0; n < per_epoch * o.epochs; ++n)
    all.push_back(schedule(SchedulePoint{n, per_epoch, per_epoch * o.epochs, o.global_batch_size, 1}));
  const TrainerOptions t = trainer::trainer_options(o, images);
  const double average[] = {t.ema_decay, static_cast<double>(t.ema.every)};
  Tensors file;
  file.add<double>("rates", Shape{static_cast<std::int64_t>(all.size())}, all);
  file.add<double>("average", Shape{2}, average);
  file.write(out);
}

struct Names {
  std::vector<std::pair<std::string, std::span<const std::byte>>> sorted;
  explicit Names(const io::Safetensors& file) {
    for (const auto& e : file.entries()) sorted.emplace_back(e.name, e.bytes);
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  [[nodiscard]] const std::span<const std::byte>* find(const std::string& name) const {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                                     [](const auto& entry, const std::string& n) { return entry.first < n; });
    return at != sorted.end() && at->first == name ? &at->second : nullptr;
  }
};

void steps(const std::string& in, const std::string& out, const std::string& type, const std::string& plant,
           const trainer::RunOptions& o) {
  std::optional<std::pair<std::int64_t, double>> factor;
  if (const std::size_t colon = plant.find(':'); colon != plant.npos)
    factor = {std::strtoll(plant.c_str(), nullptr, 10), std::strtod(plant.c_str() + colon + 1, nullptr)};
  const bool reference = type == "f64";
  const DType compute = reference ? DType::f64 : type == "bf16" ? DType::bf16 : DType::f32;
  BackendOptions on;
  on.threads = 1;
  on.gpu = false;
  const auto backend = make_backend(reference ? "reference" : "auto", on);
  bench::RecipeSteps run(*backend, o, compute, factor);
  const auto file = io::Safetensors::open(in);
  const Names names(file);
  Tensors all;
  std::vector<double> losses;
  // A tensor that the file does not have keeps zeros, and the comparison reports it.
  const auto from = [&](std::int64_t n) {
    run.set_state(n, [&](const StateSpan& s) {
      const auto* bytes = names.find(std::to_string(n) + "/" + s.name);
      if (bytes != nullptr && bytes->size() == s.bytes.size())
        std::memcpy(s.bytes.data(), bytes->data(), bytes->size());
    });
  };
  for (std::int64_t n = 0; n < recipe_steps; ++n) {
    from(n);
    losses.push_back(run.step(n));
    all.add(std::to_string(n) + "/", run.state());
  }
  all.add<double>("loss", Shape{recipe_steps}, losses);
  losses.clear();
  from(0);
  for (std::int64_t n = 0; n < recipe_steps; ++n) losses.push_back(run.step(n));
  all.add("free/", run.state());
  all.add<double>("free.loss", Shape{recipe_steps}, losses);
  all.write(out);
}

int work(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  const std::string command = a.empty() ? "" : a[0];
  const auto rest = [&](std::size_t n) {
    return bench::recipe_options({a.begin() + static_cast<std::ptrdiff_t>(n), a.end()});
  };
  if (command == "list" && a.size() == 2) {
    const bool large = a[1] == "train_imagenet";
    for (const trainer::Recipe& r :
         trainer::recipes_of(large ? trainer::Program::train_imagenet : trainer::Program::train_cifar10))
      std::printf("%s %lld %lld\n", r.name, static_cast<long long>(r.batch), static_cast<long long>(r.epochs));
  } else if (command == "begin" && a.size() > 2) {
    begin(a[1], rest(2));
  } else if (command == "rates" && a.size() > 2) {
    rates(a[1], rest(2));
  } else if (command == "steps" && a.size() > 5) {
    steps(a[1], a[2], a[3], a[4], rest(5));
  } else {
    fail<UsageError>("recipe_steps", "list, begin, rates or steps, with the words that its source file lists",
                     "'" + command + "' with " + std::to_string(argc - 1) + " words");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] { return work(argc, argv); });
}
