// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/backends/cuda/cudnn/kernel_choices.hpp>

#include "backends/cuda_emulator.hpp"

// The CUDA backend on the emulated GPU, with loops instead of the libraries' convolutions and matrix products.
namespace tutti::testing {

using cuda::ConvPass;
using cuda::ConvProblem;
using cuda::LinearPass;
using cuda::LinearProblem;

inline float get(const void* p, DType t, std::int64_t i) {
  switch (t) {
    case DType::f32:
      return static_cast<const float*>(p)[i];
    case DType::bf16:
      return static_cast<const bf16*>(p)[i];
    default:
      return static_cast<const f16*>(p)[i];
  }
}
inline void put(void* p, DType t, std::int64_t i, double v) {
  switch (t) {
    case DType::f32:
      static_cast<float*>(p)[i] = static_cast<float>(v);
      break;
    case DType::bf16:
      static_cast<bf16*>(p)[i] = bf16(v);
      break;
    default:
      static_cast<f16*>(p)[i] = f16(v);
  }
}

// Replaces cuDNN. Images are NHWC; weights and their gradients are KRSC.
class LoopConvolutions {
 public:
  // If it is set, each problem has two kernels, which round differently. It returns whether the second one is the
  // faster one in a measurement of this rank. Without a measurement, the first one is chosen.
  static inline std::function<bool()> second_is_faster{};
  static inline std::string kind_of_device = "emulated";
  // In this process: choices, those of them by a measurement, and runs of each kernel.
  static inline std::size_t chosen = 0, measured = 0, first_runs = 0, second_runs = 0;

  LoopConvolutions(cuda::Device&, const cuda::ConvolutionOptions&) {}
  [[nodiscard]] std::string choices() const { return choices_.text(kind_of_device); }
  [[nodiscard]] bool take_choices(std::string_view text) {
    const auto taken = choices_.take(kind_of_device, text);
    choices_.report(taken);
    if (taken.changed > 0) made_.clear();
    return taken.changed > 0;
  }
  [[nodiscard]] std::size_t workspace_bytes(ConvPass pass, const ConvProblem& p) {
    cuda::require_consistent(p);
    return takes_second(pass, p) ? 1024 : 512;
  }
  void run(ConvPass pass, const ConvProblem& p, const void* a, const void* b, void* out, void* workspace,
           cudaStream_t) {
    REQUIRE(p.in_channels % 4 == 0);
    REQUIRE(p.out_channels % cuda::vector_of(p.type) == 0);
    const bool second = second_is_faster && made_.at(name_of(pass, p));  // chosen by workspace_bytes()
    emulator::Device::instance().submit([=] {
      std::memset(workspace, 0xff, second ? 1024 : 512);
      ++(second ? second_runs : first_runs);
      compute(pass, p, a, b, out, second ? 1 + 1e-5 : 1);
    });
  }

 private:
  [[nodiscard]] static std::string name_of(ConvPass pass, const ConvProblem& p) {
    return cuda::to_string(pass) + " " + cuda::to_string(p);
  }
  [[nodiscard]] bool takes_second(ConvPass pass, const ConvProblem& p) {
    if (!second_is_faster) return false;
    const std::string problem = name_of(pass, p);
    const auto [at, first] = made_.try_emplace(problem, false);
    if (!first) return at->second;
    if (const auto* choice = choices_.find(problem)) return at->second = choice->text == "second";
    const bool measures = !choices_.must_guess(problem);
    at->second = measures && second_is_faster();
    measured += measures ? 1 : 0;
    ++chosen;
    choices_.record(problem, {measures, at->second ? "second" : "first"});
    return at->second;
  }
  static void compute(ConvPass pass, const ConvProblem& p, const void* a, const void* b, void* out, double scale) {
    const std::int64_t taps = p.kernel_h * p.kernel_w, weights = p.out_channels * taps * p.in_channels;
    std::vector<double> sums(
        static_cast<std::size_t>(pass == ConvPass::forward ? p.rows * p.out_height * p.out_width * p.out_channels
                                 : pass == ConvPass::backward_data ? p.rows * p.in_height * p.in_width * p.in_channels
                                                                   : weights));
    for (std::int64_t n = 0; n < p.rows; ++n)
      for (std::int64_t i = 0; i < p.out_height; ++i)
        for (std::int64_t j = 0; j < p.out_width; ++j)
          for (std::int64_t t = 0; t < taps; ++t) {
            const std::int64_t h = i * p.stride_h - p.pad_top + t / p.kernel_w,
                               w = j * p.stride_w - p.pad_left + t % p.kernel_w;
            if (h < 0 || w < 0 || h >= p.in_height || w >= p.in_width) continue;
            const std::int64_t x = ((n * p.in_height + h) * p.in_width + w) * p.in_channels,
                               y = ((n * p.out_height + i) * p.out_width + j) * p.out_channels;
            for (std::int64_t k = 0; k < p.out_channels; ++k)
              for (std::int64_t c = 0; c < p.in_channels; ++c) {
                const std::int64_t at = (k * taps + t) * p.in_channels + c;
                if (pass == ConvPass::forward)
                  sums[static_cast<std::size_t>(y + k)] +=
                      static_cast<double>(get(a, p.type, x + c)) * static_cast<double>(get(b, p.type, at));
                else if (pass == ConvPass::backward_data)
                  sums[static_cast<std::size_t>(x + c)] +=
                      static_cast<double>(get(a, p.type, y + k)) * static_cast<double>(get(b, p.type, at));
                else
                  sums[static_cast<std::size_t>(at)] +=
                      static_cast<double>(get(a, p.type, x + c)) * static_cast<double>(get(b, p.type, y + k));
              }
          }
    for (std::size_t i = 0; i < sums.size(); ++i) put(out, p.type, static_cast<std::int64_t>(i), sums[i] * scale);
  }

  cuda::KernelChoices choices_;
  std::map<std::string, bool> made_;
};

// Replaces cuBLASLt. bias: whether LoopGemms adds the bias; the library does not always do so.
class LoopGemms {
 public:
  static inline bool bias = true;
  LoopGemms(cuda::Device&, const cuda::GemmOptions&) {}
  [[nodiscard]] std::size_t workspace_bytes(LinearPass, const LinearProblem&, bool) { return 256; }
  bool run(LinearPass pass, const LinearProblem& p, const void* a, const void* b, void* with, void* out,
           void* workspace, cudaStream_t) {
    const bool see_to = bias && with != nullptr;
    emulator::Device::instance().submit([=] {
      std::memset(workspace, 0xff, 256);
      compute(pass, p, a, b, see_to ? static_cast<float*>(with) : nullptr, out);
    });
    return see_to;
  }

 private:
  static void compute(LinearPass pass, const LinearProblem& p, const void* a, const void* b, float* with, void* out) {
    const auto product = [&](std::int64_t i, std::int64_t j) {
      return static_cast<double>(get(a, p.type, i)) * static_cast<double>(get(b, p.type, j));
    };
    const DType type = pass == LinearPass::backward_weights || p.wide ? DType::f32 : p.type;
    const std::int64_t in = p.inputs, outs = p.outputs;
    if (pass == LinearPass::forward)
      for (std::int64_t n = 0; n < p.rows; ++n)
        for (std::int64_t o = 0; o < outs; ++o) {
          double sum = with != nullptr ? static_cast<double>(with[o]) : 0;
          for (std::int64_t i = 0; i < in; ++i) sum += product(n * in + i, o * in + i);
          put(out, type, n * outs + o, sum);
        }
    else if (pass == LinearPass::backward_data)
      for (std::int64_t n = 0; n < p.rows; ++n)
        for (std::int64_t i = 0; i < in; ++i) {
          double sum = 0;
          for (std::int64_t o = 0; o < outs; ++o) sum += product(n * outs + o, o * in + i);
          put(out, type, n * in + i, sum);
        }
    else
      for (std::int64_t o = 0; o < outs; ++o) {
        double total = 0;
        for (std::int64_t n = 0; n < p.rows; ++n) total += static_cast<double>(get(b, p.type, n * outs + o));
        if (with != nullptr) with[o] = static_cast<float>(total);
        for (std::int64_t i = 0; i < in; ++i) {
          double sum = 0;
          for (std::int64_t n = 0; n < p.rows; ++n) sum += product(n * in + i, n * outs + o);
          put(out, type, o * in + i, sum);
        }
      }
  }
};

using Emulated = cuda::BasicCudaBackend<LoopConvolutions, LoopGemms>;

inline CudaOptions emulated_options(bool graph = false) {
  CudaOptions o;
  o.graph = graph;
  // Only this process uses this folder. Each backend finds the kernels that an earlier backend compiled.
  o.kernel_folder = emulator::folder() / "cache";
  return o;
}

inline bool no_emulator() {
  const char* const named = std::getenv("TUTTI_CXX");
  const std::string compiler = named != nullptr && *named != 0 ? named : "c++";
  static const bool there = std::system((compiler + " --version > /dev/null 2>&1").c_str()) == 0;
  if (!there) std::puts("SKIP: no C++ compiler to compile the kernels with");
  return !there;
}

}  // namespace tutti::testing

namespace tutti {
#if !defined(TUTTI_SOURCE_EMULATED)
extern
#endif
    template class cuda::BasicCudaBackend<testing::LoopConvolutions, testing::LoopGemms>;
}  // namespace tutti
