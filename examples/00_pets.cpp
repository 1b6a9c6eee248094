// SPDX-License-Identifier: MIT
// Trains a net of your own on folders of images, pets/train/CLASS and pets/val/CLASS, alone or in as many processes as
// tutti-launch, mpirun or srun start. When it is started again, it continues from its newest checkpoint.
// [train]
#include <tutti/backends/make.hpp>
#include <tutti/program.hpp>

using namespace tutti;

int main() {
  return run_main([] {
    Job job;  // the fastest backend, and the processes that were started
    ImageFolder train("pets/train"), test("pets/val");
    Model net(train.schema());
    auto x = net.conv_bn(net.images(), {.out = 16});
    for (int c : {32, 64, 128}) x = net.residual(x, {.out = c, .stride = 2});
    net.classifier(x);
    fit(job, net,
        {.train = train,
         .test = test,
         .batch = 64,
         .epochs = 20,
         .optimizer = Sgd{.momentum = 0.9},
         .schedule = Cosine(0.1),
         .run = "runs/pets"});
  });
}
// [/train]
