// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include <tutti/engine/backend.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/strategy/parameter_server/server/server_part.hpp>

namespace tutti {

// The optimizer's step that a server runs for each push, with the rate of the current step of the whole job.
class ServerUpdate {
 public:
  // backend: on the host; must outlive this object. lr: returns the rate of a step of all workers, from 0. rules:
  // must not need a norm of whole tensors or of all gradients, because a server does not have these. momentum: as lr;
  // empty: the rule's.
  ServerUpdate(Backend& backend, UpdateRules rules, double loss_scale, std::function<double(std::int64_t step)> lr,
               std::function<double(std::int64_t step)> momentum = {})
      : b_(backend),
        rules_(std::move(rules)),
        loss_scale_(loss_scale),
        lr_(std::move(lr)),
        momentum_(std::move(momentum)) {}

  void operator()(const ServerPart& p) const {
    const double lr = lr_(p.step);
    const UpdateOp op = momentum_ ? with_momentum(rules_.op, momentum_(p.step)) : rules_.op;
    for (const UpdateRules::Run& r : rules_.runs) {
      const std::size_t begin = std::max(r.begin, p.begin), end = std::min(r.end, p.end);
      const double rate = rules_.rate(r, lr, p.step + 1);
      if (begin >= end || rate < 0) continue;
      const std::size_t at = (begin - p.begin) * size_of(p.dtype);
      UpdateCall u;
      u.dtype = p.dtype;
      u.weights = static_cast<std::byte*>(p.weights) + at;
      u.gradients = static_cast<const std::byte*>(p.gradients) + at;
      for (std::size_t i = 0; i < u.slots.size(); ++i)
        if (p.slots[i] != nullptr) u.slots[i] = static_cast<std::byte*>(p.slots[i]) + at;
      u.count = end - begin;
      u.step = p.step + 1;
      u.lr = rate;
      u.weight_decay = r.weight_decay;
      u.gradient_scale = 1 / loss_scale_;
      b_.update(op, u);
    }
  }

 private:
  Backend& b_;
  UpdateRules rules_;
  double loss_scale_;
  std::function<double(std::int64_t)> lr_, momentum_;
};

}  // namespace tutti
