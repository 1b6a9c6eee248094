// SPDX-License-Identifier: MIT
// ctest:
// Defines a small net, trains it on generated images and saves it: 01_net [RUN_FOLDER].
#include <cstdio>
#include <string>

#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/tutti.hpp>

// [net]
// A model is a function that records layers on a builder.
void small_net(tutti::Builder& b) {
  using namespace tutti;
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 16, .stride = 2}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::xavier_normal, 1}));
}
// [/net]

int main(int argc, char** argv) try {
  const std::string run_folder = argc > 1 ? argv[1] : "runs/01_net";
  // [train]
  tutti::Builder builder(3, 12, 12);  // channels, height, width
  small_net(builder);
  std::printf("%s", summary(builder.graph()).c_str());

  tutti::Synthetic images({.size = 512, .height = 12, .width = 12, .classes = 4, .learnable = true});
  tutti::Loader loader(images, {.placement = {.global_batch = 32}, .seed = 1});

  tutti::ReferenceBackend backend;  // simple loops; use tutti::OnednnBackend or tutti::EigenBackend for real work
  tutti::Solo solo;
  tutti::Trainer trainer(backend, solo, builder.graph(), {.optimizer = tutti::Sgd{0.9, true}});

  tutti::Schedule schedule = tutti::schedule::Cosine(0.1);
  for (int step = 0; step < 32; ++step) {
    const tutti::Batch& batch = loader.next();
    const double lr = schedule(tutti::SchedulePoint{.step = step, .steps_per_epoch = 16, .total_steps = 32});
    const auto result = trainer.step(batch, lr).wait();
    if (step % 8 == 7) std::printf("step %d: loss %.3f\n", step + 1, result.metrics.mean_loss());
  }
  trainer.commit();
  tutti::Checkpoints(run_folder).save(trainer);  // in the form that tutti-predict and tutti-export read
  // [/train]
} catch (const tutti::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
