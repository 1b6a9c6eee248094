// SPDX-License-Identifier: MIT
// Trains a ResNet on CIFAR-10, Fashion-MNIST or synthetic images: build/examples/train_cifar10 --help
#include "common/images.hpp"
#include "common/training_main.hpp"

int main(int argc, char** argv) {
  using namespace tutti::examples;
  Task task;
  task.schema = image_schema;
  task.images = load_images;
  task.preparation = image_preparation;
  return training_main(argc, argv, Program::train_cifar10, task);
}
