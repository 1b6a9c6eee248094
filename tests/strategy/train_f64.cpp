// SPDX-License-Identifier: MIT
// Trains a small net without batch norm in f64 on CIFAR-10. The steps are the same for any number of workers:
//   tutti-launch --elastic -n N train_f64 RUN_FOLDER [IMAGES [EPOCHS [PAUSE]]]
// IMAGES: number of training images to use, from the first one. PAUSE: ms after each step. Data: $TUTTI_DATA. A worker
// leaves on SIGTERM.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

namespace {

Graph net() {
  Builder b(3, 32, 32);
  ValueId x = b.normalize({125, 123, 114}, {1 / 63.F, 1 / 62.F, 1 / 67.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 4, .stride = 4}));
  x = b.relu("relu2", nn::conv(b, "conv2", x, {.out = 8, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 10, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

int train(const std::string& run_folder, std::int64_t images, std::int64_t epochs, std::int64_t pause) {
  const StopSignals signals;
  const auto backend = make_backend("reference");
  auto strategy = make_strategy("auto", {.backend = backend.get()});
  TrainerOptions options{.compute = DType::f64, .optimizer = Sgd{0.9, true}, .micro_batch = 16};
  options.ema_decay = 0.99;
  Trainer trainer(*backend, strategy, net(), options);

  const char* data = std::getenv("TUTTI_DATA");
  if (data == nullptr) fail<UsageError>("train_f64", "TUTTI_DATA, the folder of CIFAR-10", "none");
  // The crop and the mirroring of an image depend on the image's number and the epoch.
  const Augmented train_set(load_cifar10(data, Split::train).first(images), Augment::cifar());
  const MakeSources sources = [&](const FitOptions& o, int rank, int size) {
    LoaderOptions how{.placement = {.global_batch = o.global_batch, .rank = rank, .world = size}, .seed = 1};
    how.threads = 0;
    Sources made;
    made.train = std::make_unique<Loader>(train_set, how);
    return made;
  };

  io::make_directories(run_folder);
  Checkpoints checkpoints(run_folder);
  ProgressDisplay progress;
  CoordinatorOptions duties{.checkpoints = &checkpoints, .listeners = {&progress}};
  duties.audit = run_folder;
  duties.open = [&](bool) {
    std::vector<std::unique_ptr<FitListener>> opened;
    const auto complain = [&](const std::string& w) { progress.warning(w); };
    opened.push_back(std::make_unique<RunLog>(run_folder, 5, complain, trainer.counters().generation));
    return opened;
  };
  Coordinator coordinator(trainer, duties);
  FitOptions how{.epochs = epochs, .global_batch = 32, .schedule = schedule::Cosine(0.05), .report_every = 1};
  how.after_step = [pause](const FitStep&) { std::this_thread::sleep_for(std::chrono::milliseconds(pause)); };
  how.leave_requested = [] { return StopSignals::stop_requested(); };
  const FitResult result = fit(trainer, sources, coordinator, how);
  return result.interrupted ? StopSignals::exit_code() : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) fail<UsageError>("train_f64", "a run folder", "nothing");
  const auto number = [&](int i, std::int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  return train(argv[1], number(2, 50000), number(3, 5), number(4, 0));
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
