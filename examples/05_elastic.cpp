// SPDX-License-Identifier: MIT
// A training program that lets workers join and leave: tutti-launch --elastic -n 2 05_elastic [RUN_FOLDER].
#include <cstdio>
#include <memory>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

namespace {

// [elastic]
void train(const std::string& run_folder) {
  const auto backend = make_backend();
  auto strategy = make_strategy("auto", {.backend = backend.get()});  // elastic under tutti-launch --elastic

  Builder net(3, 16, 16);
  models::resnet_cifar(net, net.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 8, .classes = 4});
  Trainer trainer(*backend, strategy, net.graph(), {.optimizer = Sgd{0.9, true}, .micro_batch = 16});

  // Do slow work, such as loading data, here: before this worker joins the others.
  const Synthetic images({.size = 512, .height = 16, .width = 16, .classes = 4, .learnable = true});
  // Called when the run begins, and whenever workers have joined or left.
  const MakeSources sources = [&](const FitOptions& o, int rank, int size) {
    Sources made;
    made.train = std::make_unique<Loader>(
        images, LoaderOptions{.placement = {.global_batch = o.global_batch, .rank = rank, .world = size}, .seed = 1});
    return made;
  };

  Checkpoints checkpoints(run_folder);
  ProgressDisplay progress;
  Coordinator coordinator(trainer, {.checkpoints = &checkpoints, .listeners = {&progress}});
  FitOptions how{.epochs = 3, .global_batch = 32, .schedule = schedule::Cosine(0.1)};
  how.batch_per_worker = 16;  // the global batch, and so the rate, follows the number of workers
  how.ramp_steps = 8;
  fit(trainer, sources, coordinator, how);
}
// [/elastic]

}  // namespace

int main(int argc, char** argv) try {
  train(argc > 1 ? argv[1] : "runs/05_elastic");
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
