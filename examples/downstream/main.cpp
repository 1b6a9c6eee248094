// SPDX-License-Identifier: MIT
// A project that uses tutti: trains a small ResNet on generated images with the fastest backend that it links. Exits
// with 0 if the net learns.
#include <iostream>

#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/tutti.hpp>
#if defined(TUTTI_HAS_ONEDNN)
#include <tutti/backends/onednn/onednn.hpp>
using Chosen = tutti::OnednnBackend;
#elif defined(TUTTI_HAS_EIGEN)
#include <tutti/backends/eigen/eigen.hpp>
using Chosen = tutti::EigenBackend;
#else
using Chosen = tutti::ReferenceBackend;
#endif

#include "report.hpp"

int main() try {
  using namespace tutti;
  Builder b(3, 8, 8);
  models::resnet_cifar(b, b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 8, .classes = 4});
  Loader loader(Synthetic({.size = 256, .height = 8, .width = 8, .classes = 4, .learnable = true}),
                {.placement = {.global_batch = 16}, .seed = 1});
  Chosen backend;
  Solo solo;
  Trainer trainer(backend, solo, b.graph(), {.optimizer = Sgd{0.9, true}});
  const Schedule schedule = schedule::Warmup(0.01, 0.1, 4, schedule::Cosine(0.1));
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < 16; ++step) {
    const Batch& batch = loader.next();
    const double lr = schedule({.step = step, .steps_per_epoch = 16, .total_steps = 16});
    last = trainer.step(batch, lr).wait().metrics.mean_loss();
    if (step == 0) first = last;
  }
  report(std::cout, backend.name(), first, last);
  return last < first ? 0 : 1;
} catch (const tutti::Error& e) {
  std::cerr << e.what() << '\n';
  return e.exit_code();
}
