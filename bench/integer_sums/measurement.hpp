// SPDX-License-Identifier: MIT
// Trains on CIFAR-10 with several logical ranks, and compares the exact sums with f64. Part of bench/integer_sums.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/host_step_finisher.hpp>
#include <tutti/engine/step/integer_sums.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>

#include "../common/models.hpp"
#include "arguments.hpp"

namespace tutti::bench {

// The training images, shuffled once, [n, 32, 32, 3].
struct Images {
  static constexpr std::size_t pixels = 3072, record = 1 + pixels;
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;

  explicit Images(const std::string& folder) {
    std::vector<std::vector<char>> files;
    for (int f = 1; f <= 5; ++f) {
      const std::string path = folder + "/data_batch_" + std::to_string(f) + ".bin";
      std::ifstream in(path, std::ios::binary);
      files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      if (files.back().size() < record) fail<DataError>(path, "records of CIFAR-10", "no file, or an empty one");
    }
    std::vector<const char*> records;
    for (const auto& f : files)
      for (std::size_t at = 0; at + record <= f.size(); at += record) records.push_back(f.data() + at);
    Rng r(7, Purpose::user);
    for (std::size_t i = records.size(); i > 1; --i)
      std::swap(records[i - 1], records[r.below(static_cast<std::uint32_t>(i))]);
    for (const char* const p : records) {
      labels.push_back(static_cast<std::uint8_t>(p[0]));
      for (std::size_t i = 0; i < pixels / 3; ++i)
        for (std::size_t c = 0; c < 3; ++c) images.push_back(static_cast<std::uint8_t>(p[1 + c * pixels / 3 + i]));
    }
  }
};

// The units of all blocks, if they were chosen with another room.
struct Room {
  std::int32_t steps = 0, share = 8;  // share: of the excess by which a level falls in a step, 1 / share
  std::vector<std::int32_t> levels{};
  int left = 0, left_late = 0;  // steps in which a sum would leave 32 bits; late: after the first 20

  [[nodiscard]] std::int32_t exponent(std::size_t block) const {
    return std::max(-149, (levels[block] + steps + 63) / 64 - integer_level::zero_exponent - 31);
  }
  // bounds: of the sums of a step. Levels that are unset do not count as left.
  void follow(const std::vector<double>& bounds, bool late) {
    levels.resize(bounds.size());
    bool leaves = false;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      if (levels[i] > 0) {
        leaves = leaves || std::ldexp(bounds[i], -exponent(i)) > 2147483647.0;
      }
      if (!(bounds[i] > 0)) {
        levels[i] = std::max(levels[i] - 2, levels[i] > 0 ? 1 : 0);
        continue;
      }
      const int e = std::ilogb(bounds[i]) - 40;
      const auto lowest = integer_level::level_of(static_cast<std::int64_t>(std::ceil(std::ldexp(bounds[i], -e))), e);
      levels[i] = std::max(lowest, levels[i] - std::max(2, (levels[i] - lowest) / share));
    }
    left += leaves ? 1 : 0;
    left_late += leaves && late ? 1 : 0;
  }
};

class Measurement {
 public:
  explicit Measurement(const Args& a)
      : a_(a),
        data_(a.data),
        backend_(backend_of(a)),
        model_(make_model(a.model)),
        e_((backend_->fix_division(), *backend_), model_.graph()) {
    TrainerOptions o;
    o.optimizer = a.optimizer == "adamw"  ? AnyOptimizer(Adamw{})
                  : a.optimizer == "lars" ? AnyOptimizer(Lars{})
                                          : AnyOptimizer(Sgd{});
    lr_ = a.optimizer == "adamw" ? 1e-3 : a.optimizer == "lars" ? 8 : 0.1;
    while (trainable_ < p().slices.size() && p().slices[trainable_].trainable) ++trainable_;
    for (const Value& v : e_.graph().values) {
      if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
      const bool state = v.storage == Storage::state;
      const Slice& s = *(state ? e_.states() : p()).find(v.name);
      initialize(static_cast<float*>(state ? e_.state_data() : e_.parameter_data()) + s.offset, s.shape, v.init, 1,
                 s.name);
    }
    e_.parameters_changed();
    optimizer_ = std::make_unique<OptimizerState>(*backend_, o, e_, trainable_);
    state_.weights = e_.parameter_data();
    state_.gradients = e_.gradient_data();
    for (std::size_t i = 0; i < optimizer_->slots().size(); ++i) state_.slots[i] = optimizer_->slots()[i].data();
    state_.count = p().count;
    finisher_ = std::make_unique<HostStepFinisher>(*backend_, state_, optimizer_->rules());
    finisher_->begin_generation(1);
    sums_ = std::make_unique<IntegerSums>(*backend_, p(), trainable_, e_.states().count, a.ranks);
    gradients_.assign(static_cast<std::size_t>(a.ranks), std::vector<float>(p().count));
    blocks_ = make_integer_blocks(p(), trainable_);
    bounds_.resize(blocks_.blocks.size());
    for (const int steps : {16, 32, 64, 96, 128, 192})
      for (const int share : {1 << 20, 8}) rooms_.push_back({steps, share});
  }

  void run() {
    std::printf("%s, %s, %d logical ranks, batch %d, %zu blocks\n\n", a_.model.c_str(), a_.optimizer.c_str(), a_.ranks,
                a_.batch, bounds_.size());
    std::printf("| step | loss | f32: median (worst) | integers: median (worst) | integers / f32, worst tensor |\n");
    std::printf("|---|---|---|---|---|\n");
    int repeats = 0;
    for (int i = 0; i < a_.steps; ++i) {
      const double loss = compute(i);
      bound();
      const bool shows = i == 0 || i == 9 || i == 49 || i + 1 == a_.steps;
      if (shows) exact();
      if (shows && i > 0)
        for (const Room& r : rooms_) errors_of_room(r, i);
      for (Room& r : rooms_) r.follow(bounds_, i >= 20);
      repeats += sum() - 1;
      if (shows) report(i, loss);
      update(i);
    }
    std::printf(
        "\n| room, octaves | a level falls by | steps that leave it, per 100: steps 1 to 20 | later | error / f32's, "
        "median of tensors "
        "(steps shown above, from the second) |\n|---|---|---|---|---|\n");
    for (const Room& r : rooms_)
      std::printf("| %.2f | %s | %.1f | %.2f | %s |\n", r.steps / 64.0,
                  r.share > 1000 ? "2" : "2, or an eighth of the excess",
                  100.0 * (r.left - r.left_late) / std::min(a_.steps, 20),
                  a_.steps > 20 ? 100.0 * r.left_late / (a_.steps - 20) : 0.0,
                  room_errors_[static_cast<std::size_t>(&r - rooms_.data())].c_str());
    std::printf("\n%d repetitions in %d steps with the room of this build\n\n", repeats, a_.steps);
  }

 private:
  [[nodiscard]] const ArenaLayout& p() const { return e_.parameters(); }

  // The gradients of each logical rank; each begins with the same running statistics.
  double compute(int step) {
    const std::size_t n = e_.states().count;
    const std::vector<float> before(static_cast<const float*>(e_.state_data()),
                                    static_cast<const float*>(e_.state_data()) + n);
    states_after_.assign(gradients_.size(), std::vector<float>(n));
    double loss = 0;
    const std::int64_t all = a_.batch;
    for (std::size_t v = 0; v < gradients_.size(); ++v) {
      std::memcpy(e_.state_data(), before.data(), n * sizeof(float));
      const std::int64_t first = all * static_cast<std::int64_t>(v) / a_.ranks,
                         end = all * static_cast<std::int64_t>(v + 1) / a_.ranks;
      const std::size_t batches = data_.labels.size() / static_cast<std::size_t>(all);
      const std::size_t at =
          static_cast<std::size_t>(step) % batches * static_cast<std::size_t>(all) + static_cast<std::size_t>(first);
      loss += e_.train({data_.images.data() + at * Images::pixels, data_.labels.data() + at, end - first},
                       {1, 1.0 / static_cast<double>(all)})
                  .loss;
      std::memcpy(gradients_[v].data(), e_.gradient_data(), p().bytes());
      std::memcpy(states_after_[v].data(), e_.state_data(), n * sizeof(float));
    }
    return loss / static_cast<double>(all);
  }
  void bound() {
    for (std::size_t b = 0; b < bounds_.size(); ++b) {
      const IntegerBlock& k = blocks_.blocks[b];
      bounds_[b] = 0;
      for (const auto& g : gradients_) {
        float most = 0;
        for (std::size_t i = k.begin; i < k.begin + k.count; ++i) most = std::max(most, std::fabs(g[i]));
        bounds_[b] += static_cast<double>(most);
      }
    }
  }
  void exact() {
    exact_.assign(p().count, 0);
    floats_.assign(p().count, 0);
    for (const auto& g : gradients_)
      for (std::size_t i = 0; i < exact_.size(); ++i) {
        exact_[i] += static_cast<double>(g[i]);
        floats_[i] += g[i];
      }
  }
  // Returns the number of attempts.
  int sum() {
    for (int attempt = 1;; ++attempt) {
      sums_->begin(attempt > 1);
      auto* const arena = static_cast<float*>(e_.gradient_data());
      for (std::size_t v = 0; v < gradients_.size(); ++v) {
        std::memcpy(arena, gradients_[v].data(), p().bytes());
        if (v + 1 < gradients_.size())
          sums_->add(arena);
        else
          sums_->convert(0, trainable_, arena);
        sums_->end_rank(states_after_[v].data());
      }
      (void)sums_->tail();
      const SumCheck c = sums_->check();
      if (c == SumCheck::not_finite) fail<NotFiniteError>("step", "finite gradients", "others");
      if (c == SumCheck::repeat) continue;
      sums_->restore(arena);
      sums_->take_states(e_.state_data());
      return attempt;
    }
  }
  template <class Get>
  [[nodiscard]] double error(const Slice& s, Get&& get) const {
    double e = 0, n = 0;
    for (std::size_t i = s.offset; i < s.offset + s.count; ++i) {
      e += (get(i) - exact_[i]) * (get(i) - exact_[i]);
      n += exact_[i] * exact_[i];
    }
    return n > 0 ? std::sqrt(e / n) : 0;
  }
  static double median(std::vector<double> v) {
    if (v.empty()) return 0;
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
  void report(int step, double loss) {
    const auto* const got = static_cast<const float*>(e_.gradient_data());
    std::vector<double> f32, integers;
    double worst = 0;
    std::string name;
    for (std::size_t k = 0; k < trainable_; ++k) {
      const Slice& s = p().slices[k];
      const double x = error(s, [&](std::size_t i) { return static_cast<double>(floats_[i]); }),
                   y = error(s, [&](std::size_t i) { return static_cast<double>(got[i]); });
      if (x == 0 && y == 0) continue;
      f32.push_back(x);
      integers.push_back(y);
      if (x > 0 && y / x > worst) {
        worst = y / x;
        name = s.name;
      }
    }
    const auto most = [](const std::vector<double>& v) {
      return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
    };
    std::printf("| %d | %.3f | %.1e (%.1e) | %.1e (%.1e) | %.2f %s |\n", step + 1, loss, median(f32), most(f32),
                median(integers), most(integers), worst, name.c_str());
    std::fflush(stdout);
  }
  void errors_of_room(const Room& r, int) {
    std::vector<double> ratios;
    std::vector<double> sums(p().count);
    for (std::size_t b = 0; b < bounds_.size(); ++b) {
      const IntegerBlock& k = blocks_.blocks[b];
      if (r.levels[b] == 0) continue;
      const int exponent = r.exponent(b);
      for (const auto& g : gradients_)
        for (std::size_t i = k.begin; i < k.begin + k.count; ++i)
          sums[i] += std::ldexp(std::rint(std::ldexp(static_cast<double>(g[i]), -exponent)), exponent);
    }
    for (std::size_t k = 0; k < trainable_; ++k) {
      const Slice& s = p().slices[k];
      const double x = error(s, [&](std::size_t i) { return static_cast<double>(floats_[i]); });
      if (x > 0)
        ratios.push_back(error(s, [&](std::size_t i) { return static_cast<double>(static_cast<float>(sums[i])); }) / x);
    }
    room_errors_.resize(rooms_.size());
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f", median(ratios));
    std::string& to = room_errors_[static_cast<std::size_t>(&r - rooms_.data())];
    to += (to.empty() ? "" : ", ") + std::string(text.data());
  }
  void update(int step) {
    struct Alone final : Exchange {
      void send(std::size_t, FunctionRef<void()>) override {}
      void wait_on_host() override {}
      void wait_on_device() override {}
    } alone;
    const double warm = std::min(1.0, (step + 1) / 20.0);
    StepNumbers n;
    n.lr = lr_ * warm;
    n.step = step + 1;
    finisher_->send(static_cast<std::uint64_t>(step), n);
    finisher_->begin();
    finisher_->add(nullptr, true, true);
    finisher_->update(alone);
    e_.parameters_changed();
  }

  Args a_;
  Images data_;
  std::unique_ptr<Backend> backend_;
  Builder model_;
  Executor e_;
  double lr_ = 0;
  std::size_t trainable_ = 0;
  std::unique_ptr<OptimizerState> optimizer_;
  ModelState state_;
  std::unique_ptr<HostStepFinisher> finisher_;
  std::unique_ptr<IntegerSums> sums_;
  IntegerBlocks blocks_;
  std::vector<std::vector<float>> gradients_, states_after_;
  std::vector<double> bounds_, exact_;
  std::vector<float> floats_;
  std::vector<Room> rooms_;
  std::vector<std::string> room_errors_;
};

}  // namespace tutti::bench
