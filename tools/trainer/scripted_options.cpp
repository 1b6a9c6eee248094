// SPDX-License-Identifier: MIT
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer {

void apply_scripted_defaults(RunOptions& o, const RunOptions& said) {
  if (is_scripted(said)) {
    o.run_dir = "/tmp/cifar10_train";
    o.batch_size = 128;
    o.max_steps = 1'000'000;
    o.epochs = 0;  // as many as the steps take
    o.save_seconds = 60;
    o.save_period = 0;
    o.evaluate_every = 0;
  }
}

}  // namespace tutti::trainer
