// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/optim/update.hpp>

// Optimizers are data: they name the fused pass over the arenas that a backend runs, and the factor by which each
// tensor's gradient is scaled before it. L2 decay is part of the gradient in all of them except AdamW, which decays the
// weights separately, and LAMB, which adds it to the direction of Adam.
namespace tutti {

template <class O>
concept Optimizer = requires(const O& o) {
  { O::slots } -> std::convertible_to<int>;  // state arenas in addition to the weights
  { o.update_op() } -> std::convertible_to<UpdateOp>;
  { O::per_tensor } -> std::convertible_to<bool>;  // needs the norms of whole tensors
  { o.factor(SquaredNorms{}, 0.1) } -> std::convertible_to<double>;
};

struct Sgd {  // SGD with momentum; Nesterov's form on request.
  static constexpr int slots = 1;
  static constexpr bool per_tensor = false;
  double momentum = 0.9;
  bool nesterov = false;

  [[nodiscard]] UpdateOp update_op() const { return SgdUpdate{momentum, nesterov}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

struct Adam {  // Kingma and Ba, 2015, with L2 decay in the gradient, as torch.optim.Adam.
  static constexpr int slots = 2;
  static constexpr bool per_tensor = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  [[nodiscard]] UpdateOp update_op() const { return AdamwUpdate{beta1, beta2, eps, true}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

struct Adamw {  // Loshchilov and Hutter, 2019, with decoupled decay, as torch.optim.AdamW.
  static constexpr int slots = 2;
  static constexpr bool per_tensor = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  [[nodiscard]] UpdateOp update_op() const { return AdamwUpdate{beta1, beta2, eps}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

// You et al. 2017: scales the gradient of each tensor by eta * |w| / |g| if neither norm is zero. g contains the decay.
struct Lars {
  static constexpr int slots = 1;
  static constexpr bool per_tensor = true;
  double momentum = 0.9;
  bool nesterov = false;
  double eta = 0.001;
  // MLPerf's rule: eta * |w| / (|g| + decay * |w|), with g without the decay, and only for tensors of two dimensions or
  // more. Biases and batch norm follow SGD.
  bool mlperf = false;

  [[nodiscard]] UpdateOp update_op() const { return SgdUpdate{momentum, nesterov}; }
  [[nodiscard]] double factor(const SquaredNorms& n, double /*lr*/) const {
    if (!(n.weights > 0 && n.gradients > 0)) return 1;
    if (!mlperf) return eta * math::sqrt(n.weights / n.gradients);
    const double weights = math::sqrt(n.weights);
    return eta * weights / (math::sqrt(n.gradients) + n.weight_decay * weights);
  }
  // Returns factor() as numbers, for a device that computes it itself. If there are none, the host calls factor().
  [[nodiscard]] std::optional<TrustRatio> trust_ratio() const {
    return mlperf ? std::nullopt : std::optional<TrustRatio>({eta, false});
  }
};

// LARS that can only lower a tensor's rate: the factor is min(eta * |w| / |g| / lr, 1).
struct Larc {
  static constexpr int slots = 1;
  static constexpr bool per_tensor = true;
  double momentum = 0.9;
  bool nesterov = false;
  double eta = 0.013;

  [[nodiscard]] UpdateOp update_op() const { return SgdUpdate{momentum, nesterov}; }
  [[nodiscard]] double factor(const SquaredNorms& n, double lr) const {
    const double local = n.weights > 0 && n.gradients > 0 ? eta * math::sqrt(n.weights / n.gradients) : 1;
    return lr > 0 ? std::min(local / lr, 1.0) : 1;
  }
  [[nodiscard]] TrustRatio trust_ratio() const { return {eta, true}; }
};

struct Lamb {  // You et al. 2020, as timm's Lamb, which the recipes of "ResNet strikes back" use.
  static constexpr int slots = 2;
  static constexpr bool per_tensor = true;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  bool trust_clip = false, always_adapt = false;
  double max_grad_norm = 1;  // gradients with a larger global norm are scaled to it; 0: no limit

  [[nodiscard]] UpdateOp update_op() const { return LambUpdate{beta1, beta2, eps, trust_clip, always_adapt}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

// Jordan et al. 2024. Weights of convolutions, as matrices of outputs x (inputs * window), take orthogonal steps; all
// other parameters follow SGD with Nesterov momentum, at rest_rate times the rate.
struct Muon {
  static constexpr int slots = 1;
  static constexpr bool per_tensor = true;
  MuonUpdate rule{};
  double rest_momentum = 0.9, rest_rate = 1;
  std::optional<double> rest_decay{};  // weight decay of the other parameters; default: that of the matrices

  [[nodiscard]] UpdateOp update_op() const {
    MuonUpdate o = rule;
    o.rest = SgdUpdate{rest_momentum, true};
    return o;
  }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

struct MuonAdamw {  // Muon, with AdamW for all other parameters.
  static constexpr int slots = 2;
  static constexpr bool per_tensor = true;
  MuonUpdate rule{};
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, rest_rate = 1;
  std::optional<double> rest_decay{};

  [[nodiscard]] UpdateOp update_op() const {
    MuonUpdate o = rule;
    o.rest = AdamwUpdate{beta1, beta2, eps};
    return o;
  }
  [[nodiscard]] static double factor(const SquaredNorms&, double /*lr*/) { return 1; }
};

static_assert(Optimizer<Lamb> && Optimizer<Muon> && Optimizer<MuonAdamw>);
static_assert(Optimizer<Sgd> && Optimizer<Adam> && Optimizer<Adamw> && Optimizer<Lars> && Optimizer<Larc>);

// Any optimizer as a value, chosen at run time. Throws a UsageError if a number of its rule is out of range.
class AnyOptimizer {
 public:
  template <Optimizer O>
  AnyOptimizer(O o)  // NOLINT(google-explicit-constructor): an optimizer is one
      : slots_(O::slots),
        per_tensor_(O::per_tensor),
        op_(o.update_op()),
        factor_([o](const SquaredNorms& n, double lr) { return o.factor(n, lr); }) {
    require_valid(op_);
    if constexpr (requires { o.trust_ratio(); }) trust_ = o.trust_ratio();
    if constexpr (requires { o.max_grad_norm; }) max_grad_norm_ = o.max_grad_norm;
    if constexpr (requires { o.rest_rate; }) rest_rate_ = o.rest_rate;
    if constexpr (requires { o.rest_decay; }) rest_decay_ = o.rest_decay;
    if constexpr (requires { o.mlperf; }) adds_norms_ = o.mlperf;
  }

  [[nodiscard]] int slots() const noexcept { return slots_; }
  [[nodiscard]] bool per_tensor() const noexcept { return per_tensor_ || takes_tensors(op_); }
  // Returns whether factor() scales each tensor's gradient. A rule that takes norms itself needs no factor.
  [[nodiscard]] bool has_factor() const noexcept { return per_tensor_ && !takes_tensors(op_); }
  [[nodiscard]] double max_grad_norm() const noexcept { return max_grad_norm_; }
  // Returns the rate of the parameters that Muon does not orthogonalise, in units of its own.
  [[nodiscard]] double rest_rate() const noexcept { return rest_rate_; }
  // Returns the weight decay of these parameters; no value: that of all.
  [[nodiscard]] std::optional<double> rest_decay() const noexcept { return rest_decay_; }
  [[nodiscard]] const UpdateOp& update_op() const noexcept { return op_; }
  // Returns a value only for a per-tensor optimizer that has trust_ratio().
  [[nodiscard]] const std::optional<TrustRatio>& trust_ratio() const noexcept { return trust_; }
  [[nodiscard]] double factor(const SquaredNorms& n, double lr) const { return factor_(n, lr); }
  // As UpdateRules::adds_norms.
  [[nodiscard]] bool adds_norms() const noexcept { return adds_norms_; }

 private:
  int slots_;
  bool per_tensor_, adds_norms_ = false;
  double max_grad_norm_ = 0, rest_rate_ = 1;
  UpdateOp op_;
  std::optional<TrustRatio> trust_;
  std::optional<double> rest_decay_;
  std::function<double(const SquaredNorms&, double)> factor_;
};

}  // namespace tutti
