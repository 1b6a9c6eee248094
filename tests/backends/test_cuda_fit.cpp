// SPDX-License-Identifier: MIT
// Tests the training loop on an emulated GPU (cuda_emulator.hpp): its reports, and the GPU's utilisation in the log.
#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/step_cases.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
CudaOptions options(bool graph = true) { return testing::emulated_options(graph); }
bool skipped() { return testing::no_emulator(); }

using testing::small_net;

}  // namespace

namespace {

struct Recorder : FitListener {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  void step(const StepReport& r) override { steps.push_back(r); }
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
};

template <class B>
Recorder fitted(B& backend, FitOptions o, FitListener* another = nullptr, std::int64_t micro_batch = 0) {
  // The test opens it before the backend searches for a library of this name: the loader returns the open library.
  static void* const nvml = ::dlopen(TUTTI_STAND_IN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(nvml != nullptr);
  Solo solo;
  TrainerOptions as;
  as.ema_decay = 0.9;
  as.micro_batch = micro_batch;
  Trainer t(backend, solo, small_net(), as);
  Synthetic images({.size = 44, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
  Synthetic held({.size = 20, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 1000});
  Loader train(images, {.placement = {8, 0, 1}, .seed = 9, .threads = 1}),
      test(held, {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true, .threads = 1});
  Recorder r;
  o.global_batch = 8;
  o.epochs = 2;
  std::vector<FitListener*> listeners{&r};
  if (another != nullptr) listeners.push_back(another);
  Coordinator coordinator(t, {.listeners = listeners});
  fit(t, train, &test, coordinator, o);
  CHECK(t.counters().samples == 88);
  return r;
}

}  // namespace

TEST_CASE("the training loop reports the losses of the reference backend and fetches them only for reports") {
  if (skipped()) return;
  for (const std::int64_t micro_batch : {8, 4}) {
    FitOptions o;
    o.report_every = 4;
    Emulated backend(options());
    ReferenceBackend reference;
    const Recorder a = fitted(backend, o, nullptr, micro_batch), b = fitted(reference, o, nullptr, micro_batch);
    REQUIRE(a.steps.size() == b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      CHECK(a.steps[i].step == b.steps[i].step);
      CHECK(a.steps[i].train_loss == doctest::Approx(b.steps[i].train_loss).epsilon(1e-3));
    }
    REQUIRE(a.epochs.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(a.epochs[i].train_loss == doctest::Approx(b.epochs[i].train_loss).epsilon(1e-3));
      CHECK(a.epochs[i].train_top1 == doctest::Approx(b.epochs[i].train_top1).epsilon(0.05));
      CHECK(a.epochs[i].test->loss == doctest::Approx(b.epochs[i].test->loss).epsilon(1e-3));
      CHECK(a.epochs[i].test_ema->loss == doctest::Approx(b.epochs[i].test_ema->loss).epsilon(1e-3));
    }
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("the log contains the utilisation of the GPU") {
  if (skipped()) return;
  FitOptions o;
  o.report_every = 1;
  const test::TempFolder folder;
  {
    RunLog log(folder.path(), 3, [](const std::string& c) { FAIL_CHECK(c); });
    Emulated backend(options());
    fitted(backend, o, &log);
    CHECK(backend.utilisation().has_value());
  }
  // The stand-in's utilisation grows with each request. The log omits the value before the first step. Each later row
  // has its own value, and an epoch has the mean of its rows.
  double first = 0, last = 0;
  int epochs = 0;
  std::ifstream in(folder / "log.jsonl");
  for (std::string text; std::getline(in, text);) {
    const io::Json line = io::parse_json(text, "log.jsonl");
    REQUIRE_MESSAGE(line.find("gpu_utilisation") != nullptr, text);
    const double told = line.at("gpu_utilisation").as_double();
    if (line.at("event").as_string() == "step") {
      if (last > 0) CHECK(told == doctest::Approx(last + 0.01));
      last = told;
      if (first == 0) first = told;
    } else {
      ++epochs;
      CHECK(told == doctest::Approx((first + last) / 2));
      first = 0;
    }
  }
  CHECK(epochs == 2);

  ReferenceBackend reference;
  const Recorder none = fitted(reference, o);
  for (const auto& r : none.steps) CHECK_FALSE(r.gpu_utilisation);
  for (const auto& r : none.epochs) CHECK_FALSE(r.gpu_utilisation);
  cudaDeviceProp elsewhere{};
  CHECK_FALSE(cuda::Utilisation(elsewhere)());
  emulator::Device::instance().graph_launches = 0;
}
