// SPDX-License-Identifier: MIT
// Trains a ResNet on ImageNet, or on any images in one of its forms: build/examples/train_imagenet --help
#include "common/imagenet.hpp"
#include "common/training_main.hpp"

int main(int argc, char** argv) {
  using namespace tutti::examples;
  return training_main(argc, argv, Program::train_imagenet, imagenet_task());
}
