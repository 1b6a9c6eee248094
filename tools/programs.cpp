// SPDX-License-Identifier: MIT
// The programs that train, predict and export as one, which is a third as large as all of them: its first argument is
// the name of a program, the others are that program's. A wheel has it in their place (infra/package/wheel.py).
#include <cstdio>
#include <string_view>

#define main train_cifar10
#include "examples/train_cifar10.cpp"
#undef main
#define main train_imagenet
#include "examples/train_imagenet.cpp"
#undef main
#define main tutti_train
#include "tutti_train.cpp"
#undef main
#define main tutti_export
#include "tutti_export.cpp"
#undef main
// Last, because it names namespaces for the whole file.
#define main tutti_predict
#include "tutti_predict.cpp"
#undef main

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  int (*program)(int, char**) = nullptr;
  if (name == "train_cifar10") program = ::train_cifar10;
  if (name == "train_imagenet") program = ::train_imagenet;
  if (name == "tutti-train") program = ::tutti_train;
  if (name == "tutti-predict") program = ::tutti_predict;
  if (name == "tutti-export") program = ::tutti_export;
  if (program) return program(argc - 1, argv + 1);
  std::fprintf(stderr,
               "tutti-programs: [arguments] expected a program, got %s. hint: train_cifar10, train_imagenet, "
               "tutti-train, tutti-predict or tutti-export.\n",
               argc > 1 ? argv[1] : "no argument");
  return 2;
}
