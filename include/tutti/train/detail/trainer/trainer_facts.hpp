// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/version.hpp>

// Definitions of trainer.hpp about the facts that the ranks compare.
namespace tutti {

TUTTI_CORE_FUNCTION JobFacts Trainer::facts() const {
  JobFacts f;
  f.add("tutti", version);
  for (const auto& [name, value] : o_.must_agree.facts()) f.add(name, value);
  f.add("precision", name_of(o_.compute));
  const char* const per_tensor = !o_.optimizer.per_tensor()  ? ""
                                 : o_.optimizer.adds_norms() ? " per weight"
                                                             : " per tensor";
  const UpdateOp op = o_.optimizer.update_op();
  if (const auto* sgd = std::get_if<SgdUpdate>(&op))
    f.add("optimizer", {sgd->nesterov ? "nag " : "sgd ", sgd->momentum, per_tensor});
  else if (const auto* adamw = std::get_if<AdamwUpdate>(&op))
    f.add("optimizer", {adamw->l2 ? "adam " : "adamw ", adamw->beta1, " ", adamw->beta2, per_tensor});
  else if (const auto* lamb = std::get_if<LambUpdate>(&op))
    f.add("optimizer", {"lamb ", lamb->beta1, " ", lamb->beta2, lamb->trust_clip ? " clip " : " ",
                        lamb->always_adapt ? "all " : "", o_.optimizer.max_grad_norm()});
  else if (const auto* muon = std::get_if<MuonUpdate>(&op)) {
    f.add("optimizer", {"muon ", muon->momentum, muon->nesterov ? " nesterov " : " ", muon->steps, " ", muon->a, " ",
                        muon->b, " ", muon->c, " ", static_cast<int>(muon->scale), muon->normalize ? " normalize" : "",
                        muon->sparse_steps, muon->bf16 ? " bf16" : "", muon->rest.index() == 0 ? " sgd " : " adamw ",
                        o_.optimizer.rest_rate(), " ", o_.optimizer.rest_decay().value_or(o_.weight_decay)});
    f.add("Muon's eps", {muon->eps, muon->limit_eps ? " least norm" : " added"});
    if (const auto* rest = std::get_if<SgdUpdate>(&muon->rest))
      f.add("Muon's rest", {rest->nesterov ? "nag " : "sgd ", rest->momentum});
    if (const auto* rest = std::get_if<AdamwUpdate>(&muon->rest))
      f.add("Muon's rest", {rest->beta1, " ", rest->beta2, " ", rest->eps});
    // A rank that shares matrices out would wait for those that do not.
    f.add("Muon's matrices", parts_->exchange.divides_muon() ? "shared out" : "not shared out");
  }
  for (const auto& [name, value] : {std::pair{"weight decay", o_.weight_decay},
                                    {"decay of all parameters", o_.decay_all ? 1.0 : 0.0},
                                    {"loss scale", o_.dynamic_loss_scale ? 0 : o_.loss_scale},
                                    {"clip norm", o_.clip_norm},
                                    {"EMA decay", o_.ema_decay}})
    f.add(name, value);
  if (has_ema())
    f.add("EMA schedule",
          {static_cast<int>(o_.ema.warmup), " ", o_.ema.every, " ", o_.ema.epoch, " ", o_.ema.copies, " ", o_.ema.gamma,
           " ", o_.ema.power, " ", o_.ema.min_decay, " ", o_.ema.total, o_.ema.lookahead ? " lookahead" : ""});
  if (o_.early.steps > 0)
    f.add("early training", {o_.early.steps, " of ", o_.early.of_steps, " ", o_.early.parameters});
  if (o_.sam.rho > 0) f.add("SAM", {o_.sam.rho, " every ", o_.sam.every});
  f.add("seed", o_.seed);
  if (o_.logical_ranks > 0) {
    f.add("logical ranks", std::int64_t{o_.logical_ranks});
    for (const BitFact& b : b_.bits_depend_on()) f.add(b.name, b.value);
  }
  f.add("buckets", {o_.first_bucket_bytes, " and ", o_.bucket_bytes, " bytes"});
  for (const Slice& s : executor_->parameters().slices)
    f.add("parameter", {s.name, " ", to_string(s.shape), s.trainable ? "" : " fixed", s.decay ? "" : " no decay",
                        s.lr_scale == 1 ? TextPart{} : TextPart{" rate ", s.lr_scale}});
  return f;
}

}  // namespace tutti
