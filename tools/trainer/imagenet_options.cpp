// SPDX-License-Identifier: MIT
#include "tools/trainer/imagenet_options.hpp"

namespace tutti::trainer {

RunOptions imagenet_defaults() {
  RunOptions o;
  o.program = Program::train_imagenet;
  o.dataset = "imagenet";
  o.augmentation = "horovod";
  o.data_nthreads = 5;
  o.zero_gamma = true;
  o.batch_size = 256;
  o.epochs = 0;
  o.run_dir = "imagenet_resnet";
  o.save_steps = 1000;
  o.disp_batches = 50;
  o.decay_biases = true;
  o.evaluate_every.reset();
  o.loss_scale = "1024";
  o.fp16 = true;
  return o;
}

}  // namespace tutti::trainer
