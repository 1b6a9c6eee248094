// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>

namespace tutti {

// SGD: the update of a run of master weights, in one pass. With G = factor * (gradient_scale * g + L2 * w): a =
// momentum * a + G;  w -= lr * (nesterov ? G + momentum * a : a). One slot: a. (The form of PyTorch and TensorFlow: the
// rate is outside the accumulator.)
struct SgdUpdate {
  double momentum = 0.9;
  bool nesterov = false;
};

// Loshchilov and Hutter 2019: the weight decay is not part of G. Two slots: m, v.
struct AdamwUpdate {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool l2 = false;  // Adam, Kingma and Ba 2015: the decay is part of G, as L2
};

// LAMB, You et al. 2020, in the form of timm and of NVIDIA's FusedLAMB. With G = factor * gradient_scale * g, without
// L2: moments m, v as in Adam, U = (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps) + L2 * w; w -= lr *
// ratio * U, ratio = |w| / |U| if neither norm is zero, else 1. Tensors without decay have the ratio 1, unless
// always_adapt. An UpdateCall is one whole tensor. Two slots: m, v.
struct LambUpdate {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  bool trust_clip = false;    // limits the ratio to 1
  bool always_adapt = false;  // tensors without decay too

  [[nodiscard]] double ratio(double squared_weights, double squared_update, double weight_decay) const {
    if ((weight_decay == 0 && !always_adapt) || !(squared_weights > 0) || !(squared_update > 0)) return 1;
    const double r = math::sqrt(squared_weights / squared_update);
    return trust_clip && r > 1 ? 1 : r;
  }
};

// Muon, Jordan et al. 2024: SGD with an orthogonal step for each matrix. For an UpdateCall with rows, which is a whole
// matrix M of rows x cols: a = momentum * a + G; D = nesterov ? G + momentum * a : a, G = gradient_scale * g without
// L2; X = D / (|D| + eps), and `steps` times A = X X', X = a X + (b A + c A A) X, on the transpose if rows > cols; w =
// w * (1 - lr * L2) - lr * scale * X. Calls without rows follow the rule `rest`. Slots: a, or those of `rest`.
// With normalize: w = w * sqrt(rows) / |w| - lr * scale * X, without decay. With sparse_steps, only some steps are
// normalised, and the decay follows: w = (w * (sqrt(rows) / |w|, or 1) - lr * scale * X) * (1 - lr * L2); and X begins
// with D / (|D| (1 + 1e-5 / m)), m from 0.5012 to 0.0786 in the course of the run.
struct MuonUpdate {
  enum class Scale : std::uint8_t { none, rows, rms };  // 1, sqrt(max(1, rows / cols)), 0.2 sqrt(max(rows, cols))
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;
  double a = 3.4445, b = -4.7750, c = 2.0315, eps = 1e-7;
  bool limit_eps = true;  // X = D / max(|D|, eps), as torch.optim.Muon
  Scale scale = Scale::rows;
  bool normalize = false;  // w = w * sqrt(rows) / |w| instead of the decay
  // The steps of the run, in whose course normalisation becomes rarer, as in Hiverge's record of 2025 for CIFAR-10:
  // 2 + floor(15 * step / sparse_steps) steps after the last one. 0: each step is normalised.
  std::int64_t sparse_steps = 0;
  bool bf16 = false;  // matrices are rounded to bf16 after each product
  std::variant<SgdUpdate, AdamwUpdate> rest = SgdUpdate{0.9, true};

  // Returns the factor of |D| in step `step`, from 1.
  [[nodiscard]] double norm_factor(std::int64_t step) const {
    if (sparse_steps == 0) return 1;
    const double done = static_cast<double>(step) / static_cast<double>(sparse_steps);
    return 1 + 1e-5 / (0.5012 + (0.0786 - 0.5012) * (done < 1 ? done : 1));
  }
  [[nodiscard]] double inverse_norm(double squared, std::int64_t step) const {
    const double norm = math::sqrt(squared) * norm_factor(step);
    return 1 / (limit_eps ? (norm > eps ? norm : eps) : norm + eps);
  }
  [[nodiscard]] double scale_of(double rows, double cols) const {
    if (scale == Scale::rows) return rows > cols ? math::sqrt(rows / cols) : 1;
    return scale == Scale::rms ? 0.2 * math::sqrt(rows > cols ? rows : cols) : 1;
  }
  // Returns whether step `step`, from 1, is normalised.
  [[nodiscard]] bool normalizes(std::int64_t step) const {
    if (!normalize || sparse_steps == 0) return normalize;
    std::int64_t last = 0;
    for (std::int64_t s = 2; s <= step; ++s)
      if (s - last >= 2 + 15 * s / sparse_steps) last = s;
    return last == step;
  }
  // Returns the factor of the weights in step `step`, from 1.
  [[nodiscard]] double keep(double rows, double squared_weights, double lr, double weight_decay,
                            std::int64_t step) const {
    if (!normalize) return 1 - lr * weight_decay;
    const double norm = normalizes(step) && squared_weights > 0 ? math::sqrt(rows / squared_weights) : 1;
    return sparse_steps > 0 ? norm * (1 - lr * weight_decay) : norm;
  }
  // Returns the factor of X.
  [[nodiscard]] double rate(double rows, double cols, double lr, double weight_decay) const {
    const double of_matrix = lr * scale_of(rows, cols);
    return normalize && sparse_steps > 0 ? of_matrix * (1 - lr * weight_decay) : of_matrix;
  }
};

using UpdateOp = std::variant<SgdUpdate, AdamwUpdate, LambUpdate, MuonUpdate>;

// Returns whether a call of the rule must be one whole tensor, because the rule takes norms.
[[nodiscard]] inline bool takes_tensors(const UpdateOp& op) noexcept {
  return std::holds_alternative<LambUpdate>(op) || std::holds_alternative<MuonUpdate>(op);
}

// Returns the rule with another momentum: of Adam and LAMB it is beta1, and of Muon that of the matrices.
[[nodiscard]] TUTTI_CORE_FUNCTION UpdateOp with_momentum(UpdateOp op, double momentum);

// Throws a UsageError if a number of the rule is out of its range, e.g. a beta of 1 or an eps of 0.
TUTTI_CORE_FUNCTION void require_valid(const UpdateOp& op);

// One run of elements of the arenas and the numbers of this step.
struct UpdateCall {
  DType dtype = DType::f32;
  void* weights = nullptr;
  const void* gradients = nullptr;
  std::array<void*, 2> slots{};
  std::size_t count = 0;
  std::size_t rows = 0, cols = 0;  // of a matrix for Muon; its elements may be fewer than `count`
  // For Muon and a backend that divides its steps: the orthogonal matrix X [rows, cols], of the type of the weights, if
  // another rank has computed it; null: the backend computes X. only_orthogonal: computes X and changes nothing else.
  void* orthogonal = nullptr;
  bool only_orthogonal = false;
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;  // 1 / loss scale, times the clipping factor
  double factor = 1;          // LARS and LARC trust ratio
  std::int64_t step = 1;      // from 1
};

// Defines UpdateCall::factor of a tensor for LARS and LARC: eta * |w| / |G| if neither norm is zero, else 1. With
// `clip`, this ratio is divided by the rate and limited to 1.
struct TrustRatio {
  double eta = 0;
  bool clip = false;
};

struct SquaredNorms {  // Squared norms of a tensor's gradient and weights.
  double weights = 0;
  double gradients = 0;     // of gradient_scale * g + weight_decay * w
  double weight_decay = 0;  // of the tensor, if `gradients` is of gradient_scale * g alone (UpdateRules::adds_norms)
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION UpdateOp with_momentum(UpdateOp op, double momentum) {
  if (auto* const sgd = std::get_if<SgdUpdate>(&op)) sgd->momentum = momentum;
  if (auto* const adam = std::get_if<AdamwUpdate>(&op)) adam->beta1 = momentum;
  if (auto* const lamb = std::get_if<LambUpdate>(&op)) lamb->beta1 = momentum;
  if (auto* const muon = std::get_if<MuonUpdate>(&op)) muon->momentum = momentum;
  return op;
}
// Returns the rule for tensors that are no matrices. Compiles faster than std::visit.
[[nodiscard]] inline UpdateOp rest_of(const MuonUpdate& muon) {
  if (const auto* adam = std::get_if<AdamwUpdate>(&muon.rest)) return *adam;
  return std::get<SgdUpdate>(muon.rest);
}

TUTTI_CORE_FUNCTION void require_valid(const UpdateOp& op) {
  const auto share = [](const char* what, double value) {
    if (!(value >= 0 && value < 1)) fail<UsageError>("optimizer", {what, " in [0, 1)"}, value);
  };
  if (const auto* sgd = std::get_if<SgdUpdate>(&op)) return share("a momentum", sgd->momentum);
  const auto moments = [&](const auto& o) {
    share("a beta1", o.beta1);
    share("a beta2", o.beta2);
    if (!(o.eps > 0)) fail<UsageError>("optimizer", "an eps above 0", o.eps);
  };
  if (const auto* adam = std::get_if<AdamwUpdate>(&op)) return moments(*adam);
  if (const auto* lamb = std::get_if<LambUpdate>(&op)) return moments(*lamb);
  const auto& muon = std::get<MuonUpdate>(op);
  share("a momentum", muon.momentum);
  if (muon.steps < 1 || muon.steps > 100)
    fail<UsageError>("optimizer", "1 to 100 steps of Newton and Schulz", muon.steps);
  if (!(muon.eps > 0)) fail<UsageError>("optimizer", "an eps above 0", muon.eps);
  if (muon.sparse_steps < 0) fail<UsageError>("optimizer", "0 steps or more", muon.sparse_steps);
  require_valid(rest_of(muon));
}
#endif

}  // namespace tutti
