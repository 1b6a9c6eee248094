// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

// The command line of tutti_step.
namespace tutti::bench {

inline constexpr const char* help_text =
    "usage: tutti_step [--model NET] [--batch 128]\n"
    "                  [--precision f32|bf16|f16] [--dump FILE]\n"
    "                  [--backend auto|onednn|eigen|cuda] [--threads 0] [--seconds 5] [--profile]\n"
    "                  [--convolution auto|direct|winograd|tune] [--reuse-weights]\n"
    "                  [--device 0] [--tf32 | --no-tf32] [--autotune] [--fusion auto|on|off] [--recompute]\n"
    "                  [--no-graph] [--nccl]\n"
    "NET: resnet20, resnet56, resnet110, resnet18, resnet50-32, cifar_fast or wrn28_10, or for images of 224x224:\n"
    "resnet50, resnext50_32x4d, wide_resnet50_2, resnet50d, seresnet50, mobilenet_v2 or convnext_tiny.\n"
    "resnet50-32: ResNet-50 with the stem for 224x224 on images of 32x32, in ten classes. Only cuda has f16 and the\n"
    "options of the last two lines. --no-graph starts each op of a step separately; --nccl sums the gradients of one "
    "rank "
    "over\n"
    "NCCL. --profile prints the time of each kind of op, on the processor. --dump writes the weights, images and "
    "labels\n"
    "of its start, and the logits, the loss and the weights of one step, as safetensors, without a measurement.\n"
    "--reuse-weights: as in a process with several logical ranks.\n";

struct Args {
  std::string model = "resnet20", precision = "f32", backend = "auto", fusion = "auto", convolution = "auto", dump;
  int batch = 128, threads = 0, device = 0;
  double seconds = 5;
  std::optional<bool> tf32;  // as in CudaOptions
  bool profile = false, autotune = false, recompute = false, graph = true, nccl = false;
  bool reuse_weights = false;
};

inline DType dtype_of_words(const std::string& precision) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    if (precision == name_of(t)) return t;
  fail<UsageError>("--precision", "f32, bf16 or f16", precision);
}

inline Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto number = [&](const std::string& text, double least) {
      char* end = nullptr;
      const double v = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0' || !(v >= least && v <= 1e6))
        fail<UsageError>(flag, "a number", "'" + text + "'");
      return v;
    };
    if (flag == "--help") {
      std::fputs(help_text, stdout);
      std::exit(0);
    }
    bool known = true;
    if (flag == "--profile")
      a.profile = true;
    else if (flag == "--reuse-weights")
      a.reuse_weights = true;
    else if (flag == "--tf32")
      a.tf32 = true;
    else if (flag == "--no-tf32")
      a.tf32 = false;
    else if (flag == "--autotune")
      a.autotune = true;
    else if (flag == "--recompute")
      a.recompute = true;
    else if (flag == "--no-graph")
      a.graph = false;
    else if (flag == "--nccl")
      a.nccl = true;
    else
      known = false;
    if (known) continue;
    if (i + 1 == argc) fail<UsageError>("tutti_step", "an option of --help, or a value after it", "'" + flag + "'");
    const std::string value = argv[++i];
    if (flag == "--model")
      a.model = value;
    else if (flag == "--fusion")
      a.fusion = value;
    else if (flag == "--dump")
      a.dump = value;
    else if (flag == "--convolution")
      a.convolution = value;
    else if (flag == "--precision")
      a.precision = value;
    else if (flag == "--backend")
      a.backend = value;
    else if (flag == "--batch")
      a.batch = static_cast<int>(number(value, 1));
    else if (flag == "--threads")
      a.threads = static_cast<int>(number(value, 0));
    else if (flag == "--device")
      a.device = static_cast<int>(number(value, 0));
    else if (flag == "--seconds")
      a.seconds = number(value, 0);
    else
      fail<UsageError>("tutti_step", "an option of --help", "'" + flag + "'");
  }
  if (!a.dump.empty() && a.backend == "cuda") fail<UsageError>("--dump", "a backend of the processor", a.backend);
  if (a.nccl && a.backend != "cuda") fail<UsageError>("--nccl", "--backend cuda", a.backend);
  return a;
}

}  // namespace tutti::bench
