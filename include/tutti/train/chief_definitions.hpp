// SPDX-License-Identifier: MIT
#pragma once

// What chief.hpp declares.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/data/audit.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/train/chief.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION Chief::Chief(Trainer& trainer, ChiefDuties duties)
    : trainer_(trainer), duties_(std::move(duties)) {}
TUTTI_CORE_FUNCTION Chief::~Chief() = default;

TUTTI_CORE_FUNCTION void Chief::follow(const ClosedStep* closed) {
  const Membership now = trainer_.strategy().membership();
  const bool first = !known_, was_chief = known_ && known_->rank == 0;
  if (known_ && known_->generation == now.generation && known_->rank == now.rank && known_->size == now.size) return;
  known_ = now;
  saves_too_ = duties_.checkpoints != nullptr && duties_.saves_too && duties_.saves_too();
  if (!duties_.audit.empty()) open_audit(now, closed);
  if (now.rank != 0) return opened_.clear();
  if (!was_chief) {
    if (!first && duties_.checkpoints != nullptr) duties_.checkpoints->take_over();
    if (duties_.open) opened_ = duties_.open(!first);
  }
  if (!first) {
    const MembersReport m{trainer_.counters().step, now.size, closed != nullptr ? closed->seconds : 0};
    tell([&](FitListener& l) { l.members(m); });
  }
}

TUTTI_CORE_FUNCTION void Chief::tell(FunctionRef<void(FitListener&)> what) {
  if (!here()) return;
  for (auto* l : duties_.listeners) what(*l);
  for (const auto& l : opened_) what(*l);
}

TUTTI_CORE_FUNCTION void Chief::warn(const std::string& text) {
  tell([&](FitListener& l) { l.warning(text); });
  if (!here() && saves_too_) std::fprintf(stderr, "warning: rank %d: %s\n", trainer_.strategy().rank(), text.c_str());
}

// A rank of another number goes on with another file: nobody opens one that its writer has not closed, and nobody goes
// on before all files are rolled back.
TUTTI_CORE_FUNCTION void Chief::open_audit(const Membership& now, const ClosedStep* closed) {
  const auto all_here = [&] {
    double word = 0;
    trainer_.strategy().sum({&word, 1});
  };
  audit_.reset();
  all_here();
  const Counters at = trainer_.counters();
  const std::int64_t epoch = closed != nullptr ? closed->began.epoch : at.epoch,
                     step = closed != nullptr ? closed->step : at.step + 1;
  audit_ = std::make_unique<AuditLog>(audit_file(duties_.audit, now.rank));
  if (!audit_->empty()) audit_->rollback(epoch, step);
  if (now.rank == 0) roll_back_gone_ranks(duties_.audit, now.size, epoch, step);
  audited_ = at.step;
  all_here();
  if (closed == nullptr || now.rank != 0) return;
  Sampler samples = closed->source->sampler();
  Placement of = closed->source->placement();
  of.world = closed->ranks;
  for (of.rank = 0; of.rank < of.world; ++of.rank) {
    const Share part = samples.share(closed->began, of);
    write_audit(closed->step, of.rank, epoch, part.indices, part.epochs);
  }
}

TUTTI_CORE_FUNCTION void Chief::audit(const Batch& b, std::int64_t step) {
  if (!audit_) return;
  // The trainer was set back since.
  if (step <= audited_) audit_->rollback(b.epoch, step);
  audited_ = step;
  write_audit(step, trainer_.strategy().rank(), b.epoch, b.indices, b.epochs);
}

TUTTI_CORE_FUNCTION void Chief::write_audit(std::int64_t step, int rank, std::int64_t epoch,
                                            std::span<const std::int64_t> indices,
                                            std::span<const std::int64_t> epochs) {
  if (epochs.empty()) return audit_->step(epoch, step, rank, indices);
  // A step that runs on into another epoch has a line in each.
  for (std::size_t begin = 0, end = 0; begin < indices.size(); begin = end) {
    while (end < indices.size() && epochs[end] == epochs[begin]) ++end;
    audit_->step(epochs[begin], step, rank, indices.subspan(begin, end - begin));
  }
}

}  // namespace tutti
