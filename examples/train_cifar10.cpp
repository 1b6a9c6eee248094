// SPDX-License-Identifier: MIT
// Trains a ResNet on CIFAR-10, Fashion-MNIST or synthetic images: build/examples/train_cifar10 --help
#include "tools/trainer/images.hpp"
#include "tools/trainer/training_main.hpp"

int main(int argc, char** argv) {
  using namespace tutti::trainer;
  Task task;
  task.schema = image_schema;
  task.images = load_images;
  task.preparation = image_preparation;
  return training_main(argc, argv, Program::train_cifar10, task);
}
