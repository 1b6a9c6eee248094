// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>

#include "backends/emulated_cuda.hpp"

namespace tutti::testing {

using cuda::FusedPass;

// Replaces cuDNN with its fusions: loops. A test sets what the library supports.
class FusingConvolutions : public LoopConvolutions {
 public:
  static inline std::set<FusedPass> refused;
  static inline std::map<FusedPass, int> asked, started;
  static inline bool fused_is_faster = true, norm_is_faster = false;
  static inline int norms = 0;  // number of batch norms that were started
  static inline int trials = 0;
  static void reset() {
    refused.clear();
    asked.clear();
    started.clear();
    fused_is_faster = true;
    norm_is_faster = false;
    norms = 0;
    trials = 0;
  }

  using LoopConvolutions::LoopConvolutions;
  [[nodiscard]] std::optional<std::size_t> fused_workspace_bytes(FusedPass pass, const ConvProblem& p) {
    cuda::require_consistent(p);
    ++asked[pass];
    if (refused.count(pass) != 0) return {};
    return 768;
  }
  void run_fused(FusedPass pass, const ConvProblem& p, const cuda::FusedOperands& o, void* workspace,
                 cudaStream_t stream) {
    ++started[pass];
    auto room = std::make_shared<std::vector<char>>();
    const void* a = o.a;
    if (pass == FusedPass::activated_statistics || pass == FusedPass::activated_backward_weights) {
      REQUIRE(o.scale != nullptr);
      room->resize(static_cast<std::size_t>(p.rows * p.in_height * p.in_width * p.in_channels) * size_of(p.type));
      a = room->data();
      submit([=] {
        std::memset(workspace, 0xff, 768);
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(room->size() / size_of(p.type)); ++i) {
          const std::int64_t c = i % p.in_channels;
          const float v = get(o.a, p.type, i) * get(o.scale, p.type, c) + get(o.bias, p.type, c);
          put(room->data(), p.type, i, v < 0 ? 0 : v);
        }
      });
    }
    run(plain_pass(pass), p, a, o.b, o.out, workspace, stream);
    submit([room] { (void)room; });  // keeps the memory until the stream has reached this point
    if (pass == FusedPass::statistics || pass == FusedPass::activated_statistics) submit([=] { statistics(p, o); });
    if (pass == FusedPass::backward_data_norm) submit([=] { backward(p, o); });
  }
  template <class One, class Other>
  [[nodiscard]] bool no_slower(const std::string& what, One&& one, Other&& other) {
    CHECK(!what.empty());
    ++trials;
    one();
    other();
    emulator::Device::instance().finish();  // as a measurement of time does
    return what.starts_with("tutti's batch norm") ? !norm_is_faster : fused_is_faster;
  }
  [[nodiscard]] std::shared_ptr<cuda::FusedKernel<cuda::BatchNormAddRelu>> kernel(const cuda::BatchNormAddRelu& f) {
    return std::make_shared<NormKernel<cuda::BatchNormAddRelu>>(f);
  }
  [[nodiscard]] std::shared_ptr<cuda::FusedKernel<cuda::BatchNormAddReluBackward>> kernel(
      const cuda::BatchNormAddReluBackward& f) {
    return std::make_shared<NormKernel<cuda::BatchNormAddReluBackward>>(f);
  }

 private:
  // Computes a batch norm by loops over the values of each channel.
  template <class F>
  struct NormKernel : cuda::FusedKernel<F> {
    explicit NormKernel(const F& f) : what(f) {}
    [[nodiscard]] std::size_t workspace_bytes() const override { return 256; }
    void run(const typename F::Operands& o, void* workspace, cudaStream_t) override {
      ++norms;
      submit([=, f = what] {
        std::memset(workspace, 0xff, 256);
        norm(f, o);
      });
    }
    F what;
  };
  static void norm(const cuda::BatchNormAddRelu& f, const cuda::BatchNormAddRelu::Operands& o) {
    const auto& p = f.problem;
    const std::int64_t all = p.rows * p.height * p.width * p.channels;
    const double n = static_cast<double>(all / p.channels), m = static_cast<double>(f.momentum);
    for (std::int64_t c = 0; c < p.channels; ++c) {
      double sum = 0, squares = 0;
      const auto x = [&](std::int64_t i) { return static_cast<double>(get(o.x, p.type, i)); };
      for (std::int64_t i = c; i < all; i += p.channels) sum += x(i);
      const double mean = sum / n;
      for (std::int64_t i = c; i < all; i += p.channels) squares += (x(i) - mean) * (x(i) - mean);
      const double inv_std = 1 / std::sqrt(squares / n + static_cast<double>(f.epsilon));
      o.mean[c] = static_cast<float>(mean);
      o.inv_std[c] = static_cast<float>(inv_std);
      o.running_mean[c] = static_cast<float>((1 - m) * static_cast<double>(o.running_mean[c]) + m * mean);
      o.running_variance[c] =
          static_cast<float>((1 - m) * static_cast<double>(o.running_variance[c]) + m * squares / (n - 1));
      for (std::int64_t i = c; i < all; i += p.channels) {
        double y = (x(i) - mean) * inv_std * static_cast<double>(o.scale[c]) + static_cast<double>(o.bias[c]);
        if (f.residual) y += static_cast<double>(get(o.residual, p.type, i));
        put(o.y, p.type, i, f.relu && y < 0 ? 0 : y);
      }
    }
  }
  static void norm(const cuda::BatchNormAddReluBackward& f, const cuda::BatchNormAddReluBackward::Operands& o) {
    const auto& p = f.problem;
    const std::int64_t all = p.rows * p.height * p.width * p.channels;
    const double n = static_cast<double>(all / p.channels);
    for (std::int64_t c = 0; c < p.channels; ++c) {
      const double mean = static_cast<double>(o.mean[c]), inv_std = static_cast<double>(o.inv_std[c]),
                   scale = static_cast<double>(o.scale[c]), bias = static_cast<double>(o.bias[c]);
      const auto normal = [&](std::int64_t i) { return (static_cast<double>(get(o.x, p.type, i)) - mean) * inv_std; };
      const auto incoming = [&](std::int64_t i) {
        const bool on = !f.relu || normal(i) * scale + bias > 0;
        return on ? static_cast<double>(get(o.dy, p.type, i)) : 0;
      };
      double sum = 0, dot = 0;
      for (std::int64_t i = c; i < all; i += p.channels) {
        sum += incoming(i);
        dot += incoming(i) * normal(i);
      }
      o.dscale[c] = static_cast<float>(dot);
      o.dbias[c] = static_cast<float>(sum);
      for (std::int64_t i = c; i < all; i += p.channels)
        put(o.dx, p.type, i, scale * inv_std * (incoming(i) - sum / n - normal(i) * dot / n));
    }
  }
  template <class F>
  static void submit(F&& f) {
    emulator::Device::instance().submit(std::forward<F>(f));
  }
  static void statistics(const ConvProblem& p, const cuda::FusedOperands& o) {
    std::vector<double> sum(static_cast<std::size_t>(p.out_channels)), square(sum);
    for (std::int64_t i = 0; i < p.rows * p.out_height * p.out_width * p.out_channels; ++i) {
      const double v = static_cast<double>(get(o.out, p.type, i));
      sum[static_cast<std::size_t>(i % p.out_channels)] += v;
      square[static_cast<std::size_t>(i % p.out_channels)] += v * v;
    }
    for (std::size_t c = 0; c < sum.size(); ++c) {
      o.sum[c] = static_cast<float>(sum[c]);
      o.square_sum[c] = static_cast<float>(square[c]);
    }
  }
  static void backward(const ConvProblem& p, const cuda::FusedOperands& o) {
    const std::int64_t all = p.rows * p.in_height * p.in_width;
    for (std::int64_t c = 0; c < p.in_channels; ++c) {
      double sum = 0, dot = 0;
      const double mu = static_cast<double>(o.mean[c]), is = static_cast<double>(o.inv_std[c]);
      const double scale = static_cast<double>(o.gamma[c]) * is, n = static_cast<double>(all);
      for (std::int64_t i = c; i < all * p.in_channels; i += p.in_channels) {
        const double off = static_cast<double>(get(o.x, p.type, i)) - mu;
        if (!(scale * off + static_cast<double>(o.beta[c]) > 0)) put(o.out, p.type, i, 0);
        const double g = static_cast<double>(get(o.out, p.type, i));
        sum += g;
        dot += g * off * is;
      }
      o.dgamma[c] = static_cast<float>(dot);
      o.dbeta[c] = static_cast<float>(sum);
      o.from_g[c] = static_cast<float>(scale);
      o.from_x[c] = static_cast<float>(-scale * is * dot / n);
      o.constant[c] = static_cast<float>(scale * (mu * is * dot / n - sum / n));
    }
  }
};
static_assert(cuda::FusesConvolutions<FusingConvolutions>);
static_assert(cuda::FusesConvolutions<cuda::Convolutions>);
static_assert(cuda::FusesNorms<FusingConvolutions> && cuda::FusesNorms<cuda::Convolutions>);
static_assert(!cuda::FusesConvolutions<LoopConvolutions>);

}  // namespace tutti::testing
