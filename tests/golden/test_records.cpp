// SPDX-License-Identifier: MIT
// Compares the nets of the records for CIFAR-10, and steps of their training, with PyTorch's numbers. README.md
// describes the file.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "engine/conformance.hpp"
#include "net_check.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t rows = testing::NetGolden::rows, size = 32, steps = 12, early = 4, warm = 3;
constexpr const char* names[] = {"airbench94", "airbench94_muon", "airbench96", "hive94"};

bool has_muon(const std::string& name) { return name == "hive94" || name == "airbench94_muon"; }

Graph net(const std::string& name, float smoothing = 0) {
  Builder b(3, size, size);
  auto o = name == "airbench96"        ? models::CifarFastOptions::airbench96()
           : name == "airbench94_muon" ? models::CifarFastOptions::airbench94_muon()
           : name == "hive94"          ? models::CifarFastOptions::hive94()
                                       : models::CifarFastOptions::airbench94();
  o.widths = {8, 16, 24};
  o.classes = testing::NetGolden::classes;
  o.label_smoothing = smoothing;
  models::cifar_fast(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), o);
  return std::move(b).take();
}

const io::Safetensors& golden() {
  static const auto file =
      io::Safetensors::open(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/golden" / "records.safetensors");
  return file;
}
std::vector<double> values(const std::string& name) {
  const auto r = golden().record(name);
  return testing::to_doubles({const_cast<std::byte*>(r.bytes.data()), r.dtype, r.shape});
}

// The script has rates and decays of a sum of losses.
TrainerOptions options(const std::string& name, DType precision) {
  TrainerOptions t;
  t.compute = precision;
  t.early = {.parameters = "whitening.bias", .steps = early};
  const double batch = rows;
  if (!has_muon(name)) {
    t.optimizer = Sgd{0.85, true};
    t.weight_decay = 0.001 / 0.02 / batch;
    t.ema_decay = std::pow(0.95, 5);
    t.ema = EmaSchedule::airbench(5, steps);
    return t;
  }
  const bool hive = name == "hive94";
  MuonUpdate rule{.momentum = hive ? 0.655 : 0.6, .steps = 3, .scale = MuonUpdate::Scale::none, .normalize = true};
  if (hive) {
    rule.a = 3.4576;
    rule.b = -4.7391;
    rule.c = 2.0843;
    rule.sparse_steps = steps;
  }
  t.optimizer = Muon{.rule = rule,
                     .rest_momentum = hive ? 0.825 : 0.85,
                     .rest_rate = 0.05 * batch / 0.1,
                     .rest_decay = 0.004 / 0.05 / batch};
  t.weight_decay = hive ? 0.05 : 0;
  t.early.of_steps = steps;
  return t;
}

// The rate of step `step`, from 0, for the mean of the losses.
double rate(const std::string& name, std::int64_t step) {
  const auto t = static_cast<double>(step);
  if (has_muon(name)) return 0.1 * (1 - t / steps);
  return 0.02 * rows * (step < warm ? 0.2 + 0.8 * t / warm : 1 - 0.93 * (t - warm) / (steps - warm));
}

void fill(Backend& backend, Executor& e) {
  const auto put = [&](const ArenaLayout& l, void* data) {
    for (const Slice& s : l.slices) {
      const auto from = testing::formula_values(s.name, s.shape);
      const auto write = [&](auto zero) {
        testing::modify<decltype(zero)>(backend, data, l.count, [&](auto* to) {
          for (std::size_t i = 0; i < s.count; ++i) to[s.offset + i] = static_cast<decltype(zero)>(from[i]);
        });
      };
      if (l.dtype == DType::f64)
        write(double{});
      else
        write(float{});
    }
  };
  put(e.parameters(), e.parameter_data());
  put(e.states(), e.state_data());
  e.parameters_changed();
}

void check_steps(Backend& backend, DType precision, const std::string& name, double tolerance) {
  CAPTURE(name);
  CAPTURE(backend.description());
  Solo solo;
  Trainer trainer(backend, solo, net(name, 0.2F), options(name, precision));
  fill(backend, trainer.executor());
  if (trainer.has_ema()) trainer.with_ema([&] { fill(backend, trainer.executor()); });
  const auto images = testing::formula_images(static_cast<std::size_t>(rows * size * size * 3));
  const std::vector<std::int32_t> labels{3, 5};
  const BatchView batch{images.data(), labels.data(), rows};
  const auto losses = values(name + ".losses");
  REQUIRE(losses.size() == steps);
  for (std::int64_t i = 0; i < steps; ++i)
    CHECK_MESSAGE(trainer.step(batch, rows, rate(name, i)).wait().metrics.mean_loss() ==
                      doctest::Approx(losses[static_cast<std::size_t>(i)]).epsilon(tolerance),
                  "step " << i + 1);
  for (const bool parameters : {true, false}) {
    const ArenaLayout& l = parameters ? trainer.executor().parameters() : trainer.executor().states();
    const void* const data = parameters ? trainer.executor().parameter_data() : trainer.executor().state_data();
    for (const Slice& s : l.slices) {
      const auto v = testing::fetch(
          backend, {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + s.offset * size_of(l.dtype), l.dtype,
                    s.shape});
      const auto expected = values(name + ".final." + s.name);
      const testing::Bits probe("probe." + s.name);
      double squares = 0, product = 0;
      for (std::size_t i = 0; i < v.size(); ++i) {
        squares += v[i] * v[i];
        product += v[i] * probe.uniform(i);
      }
      CHECK_MESSAGE(std::fabs(std::sqrt(squares) - expected[0]) <= tolerance * expected[0],
                    s.name << ": norm " << std::sqrt(squares) << ", expected " << expected[0]);
      CHECK_MESSAGE(std::fabs(product - expected[1]) <= tolerance * expected[0],
                    s.name << ": product " << product << ", expected " << expected[1]);
    }
  }
}

}  // namespace

TEST_CASE("logits and gradients of the records' nets are those of PyTorch") {
  const testing::NetGolden file("records.safetensors");
  ReferenceBackend reference;
  CpuBackend cpu;
  for (const std::string name : names) {
    file.check(reference, DType::f64, name, net(name), {1e-6, 1e-6, 1e-6});
    file.check(cpu, DType::f32, name, net(name), {1e-4, 1e-4, 2e-3});
  }
}

TEST_CASE("twelve steps of the records' training are those of PyTorch") {
  ReferenceBackend reference;
  for (const std::string name : names) check_steps(reference, DType::f64, name, 1e-6);
}
