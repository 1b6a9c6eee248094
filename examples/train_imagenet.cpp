// SPDX-License-Identifier: MIT
// Trains a ResNet on ImageNet, or on your own images in a supported format: build/examples/train_imagenet --help
#include "tools/trainer/imagenet.hpp"
#include "tools/trainer/training_main.hpp"

int main(int argc, char** argv) {
  using namespace tutti::trainer;
  return training_main(argc, argv, Program::train_imagenet, imagenet_task());
}
