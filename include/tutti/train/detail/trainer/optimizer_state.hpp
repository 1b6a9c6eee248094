// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

namespace detail {
// Returns whether the patterns choose the parameter, as find_parameters().
[[nodiscard]] inline bool is_early(const EarlyTraining& early, const std::string& name) {
  if (early.steps == 0) return false;
  bool chosen = false;
  for (const std::string& part : split_at_commas(early.parameters)) {
    const bool out = part.starts_with('!');
    if (matches_parameter(std::string_view(part).substr(out ? 1 : 0), name)) chosen = !out;
  }
  return chosen;
}
}  // namespace detail

// Returns the rules by which a step updates the trainable parameters. trainable: number of slices, which come first.
[[nodiscard]] inline UpdateRules make_update_rules(const ArenaLayout& p, const TrainerOptions& o,
                                                   std::size_t trainable) {
  UpdateRules rules;
  rules.op = o.optimizer.update_op();
  rules.clip_norm = o.clip_norm;
  rules.max_grad_norm = o.optimizer.max_grad_norm();
  rules.dynamic_loss_scale = o.dynamic_loss_scale;
  if (o.optimizer.has_factor()) {
    rules.trust = o.optimizer.trust_ratio();
    rules.adds_norms = o.optimizer.adds_norms();
    rules.factor = [optimizer = o.optimizer](const SquaredNorms& n, double lr) { return optimizer.factor(n, lr); };
  }
  rules.early = o.early;
  const bool muon = std::holds_alternative<MuonUpdate>(rules.op);
  std::vector<UpdateRules::Run>& runs = rules.runs;
  const bool trusts = o.optimizer.has_factor() || std::holds_alternative<LambUpdate>(rules.op);
  for (std::size_t i = 0; i < trainable; ++i) {
    const Slice& s = p.slices[i];
    const bool matrix = muon && s.shape.rank() == 4, early = detail::is_early(o.early, s.name);
    const double usual = muon && !matrix ? o.optimizer.rest_decay().value_or(o.weight_decay) : o.weight_decay;
    // The trust ratio is of the gradient with the whole decay.
    const double decay = s.decay || o.decay_all ? usual / (trusts ? 1 : s.lr_scale) : 0;
    const std::size_t end = i + 1 < p.slices.size() ? p.slices[i + 1].offset : p.count;
    if (muon) {
      const auto rows = static_cast<std::size_t>(matrix ? s.shape[0] : 0);
      runs.push_back({s.offset, end, s.lr_scale * (matrix ? 1 : o.optimizer.rest_rate()), decay, rows,
                      rows > 0 ? s.count / rows : 0, early});
      continue;
    }
    if (!runs.empty() && !o.optimizer.per_tensor() && runs.back().lr_scale == s.lr_scale &&
        runs.back().weight_decay == decay && runs.back().early == early)
      runs.back().end = end;
    else
      runs.push_back({s.offset, end, s.lr_scale, decay, 0, 0, early, !rules.adds_norms || s.shape.rank() > 1});
  }
  return rules;
}

// The optimizer's state and its rules for a model's parameters.
class OptimizerState {
 public:
  // trainable: number of slices of trainable parameters, which come first.
  OptimizerState(Backend& backend, const TrainerOptions& o, const Executor& e, std::size_t trainable)
      : b_(backend), e_(e), rules_(make_update_rules(e.parameters(), o, trainable)) {
    for (int i = 0; i < o.optimizer.slots(); ++i) slots_.emplace_back(backend.memory(), e.parameters().bytes());
  }

  [[nodiscard]] const UpdateRules& rules() const noexcept { return rules_; }
  [[nodiscard]] const std::vector<Buffer>& slots() const noexcept { return slots_; }
  // Clears the state, as at the start of training.
  void restart() {
    for (auto& s : slots_) b_.memory().zero(s.data(), s.bytes());
  }
  // Returns the part of the loss from weight decay: half of its rate times the squared norm of the decayed weights.
  [[nodiscard]] double l2_penalty() {
    const DType t = e_.parameters().dtype;
    double term = 0;
    for (const UpdateRules::Run& r : rules_.runs) {
      if (!(r.weight_decay > 0)) continue;
      const std::size_t at = r.begin * size_of(t);
      UpdateCall u;
      u.dtype = t;
      u.weights = static_cast<std::byte*>(e_.parameter_data()) + at;
      u.gradients = static_cast<const std::byte*>(e_.gradient_data()) + at;
      u.count = r.end - r.begin;
      term += r.weight_decay / 2 * b_.squared_norms(u).weights;
    }
    return term;
  }

 private:
  Backend& b_;
  const Executor& e_;
  std::vector<Buffer> slots_;
  UpdateRules rules_;
};

}  // namespace tutti
