// SPDX-License-Identifier: MIT
// A training program with evaluation, checkpoints and resume, on the fastest backend: 04_train [RUN_FOLDER [STRATEGY]].
// Start it alone, with mpirun -np 2 or with tutti-launch -n 2.
#include <cstdio>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/train/server_weights.hpp>
#include <tutti/tutti.hpp>

using namespace tutti;

namespace {

// [train]
void train(const std::string& run_folder, const std::string& strategy_word) {
  const auto backend = make_backend();  // "auto", "cuda", "onednn", "eigen" or "reference"

  Builder net(3, 16, 16);  // channels, height, width
  models::resnet_cifar(net, net.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 8, .classes = 4});
  const Synthetic images({.size = 512, .height = 16, .width = 16, .classes = 4, .learnable = true});
  const Synthetic held_out({.size = 128, .height = 16, .width = 16, .classes = 4, .learnable = true, .first = 512});
  const TrainerOptions options{.optimizer = Sgd{0.9, true}, .weight_decay = 5e-4};
  FitOptions how{.epochs = 3, .global_batch = 32, .schedule = schedule::Cosine(0.1)};

  // A process that was started as a server serves in this call until the workers have finished, and then exits.
  auto strategy = make_strategy(
      strategy_word,
      {.backend = backend.get(), .make_weights = server_weights(*backend, net.graph(), options, how, images.size())});
  const int rank = strategy.rank(), ranks = strategy.size();
  if (rank == 0) std::printf("%d ranks: %s\n", ranks, strategy.name().c_str());

  Trainer trainer(*backend, strategy, net.graph(), options);
  Loader training(images, {.placement = {.global_batch = 32, .rank = rank, .world = ranks}, .seed = 1});
  // Rank 0 evaluates alone if workers do not wait for each other, as with ps_async.
  const bool alone = strategy.owns_weights();
  Loader test(held_out, {.placement = {.global_batch = 64, .rank = alone ? 0 : rank, .world = alone ? 1 : ranks},
                         .shuffle = false,
                         .one_pass = true});

  Checkpoints checkpoints(run_folder);
  if (checkpoints.resume(trainer) && rank == 0)
    std::printf("going on after step %lld\n", static_cast<long long>(trainer.counters().step));

  how.after_epoch = [rank](const EpochReport& r) {
    if (rank == 0)
      std::printf("epoch %lld: loss %.3f, test top-1 %.1f %%\n", static_cast<long long>(r.epoch), r.train_loss,
                  100 * r.test->top1);
  };
  fit(trainer, training, test, checkpoints, how);
}
// [/train]

}  // namespace

int main(int argc, char** argv) try {
  train(argc > 1 ? argv[1] : "runs/04_train", argc > 2 ? argv[2] : "auto");
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
