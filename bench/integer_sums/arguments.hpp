// SPDX-License-Identifier: MIT
// The options of bench/integer_sums.cpp.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/core/error.hpp>

namespace tutti::bench {

inline constexpr const char* help_text =
    "usage: integer_sums --data FOLDER [--model resnet20] [--optimizer sgd|adamw|lars] [--ranks 4] [--batch 128]\n"
    "                    [--steps 300] [--backend onednn] [--threads 2]\n"
    "       integer_sums --speed [--backend onednn] [--threads 1]\n"
    "FOLDER holds CIFAR-10's data_batch_1.bin to data_batch_5.bin. A step's rows are divided among the logical "
    "ranks.\n";

struct Args {
  std::string data, model = "resnet20", optimizer = "sgd", backend = "onednn";
  int ranks = 4, batch = 128, steps = 300, threads = 2;
  bool speed = false;
};

inline Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::fputs(help_text, stdout);
      std::exit(0);
    }
    if (flag == "--speed") {
      a.speed = true;
      continue;
    }
    if (i + 1 == argc) fail<UsageError>(flag, "a value", "none");
    const std::string value = argv[++i];
    const auto number = [&] {
      const int n = std::atoi(value.c_str());
      if (n < 1) fail<UsageError>(flag, "a number of 1 or more", {"'", value, "'"});
      return n;
    };
    if (flag == "--data")
      a.data = value;
    else if (flag == "--model")
      a.model = value;
    else if (flag == "--optimizer")
      a.optimizer = value;
    else if (flag == "--backend")
      a.backend = value;
    else if (flag == "--ranks")
      a.ranks = number();
    else if (flag == "--batch")
      a.batch = number();
    else if (flag == "--steps")
      a.steps = number();
    else if (flag == "--threads")
      a.threads = number();
    else
      fail<UsageError>(flag, "an option of --help", flag);
  }
  return a;
}

inline std::unique_ptr<Backend> backend_of(const Args& a) {
  BackendOptions o;
  o.threads = a.threads;
  return make_backend(a.backend, o);
}

}  // namespace tutti::bench
