// SPDX-License-Identifier: MIT
#pragma once

// What chief.hpp declares.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <tutti/data/audit.hpp>
#include <tutti/train/chief.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION Chief::Chief(Trainer& trainer, ChiefDuties duties)
    : trainer_(trainer), duties_(std::move(duties)) {}
TUTTI_CORE_FUNCTION Chief::~Chief() = default;

TUTTI_CORE_FUNCTION void Chief::follow() {
  const Membership now = trainer_.strategy().membership();
  const bool first = !known_, was_chief = known_ && known_->rank == 0;
  if (known_ && known_->generation == now.generation && known_->rank == now.rank && known_->size == now.size) return;
  known_ = now;
  saves_too_ = duties_.checkpoints != nullptr && duties_.saves_too && duties_.saves_too();
  if (!duties_.audit.empty()) open_audit(now);
  if (now.rank != 0) return opened_.clear();
  if (!was_chief) {
    if (!first && duties_.checkpoints != nullptr) duties_.checkpoints->take_over();
    if (duties_.open) opened_ = duties_.open(!first);
  }
  if (!first) {
    const MembersReport m{trainer_.counters().step, now.size};
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
TUTTI_CORE_FUNCTION void Chief::open_audit(const Membership& now) {
  const auto all_here = [&] {
    double word = 0;
    trainer_.strategy().sum({&word, 1});
  };
  audit_.reset();
  all_here();
  const Counters at = trainer_.counters();
  audit_ = std::make_unique<AuditLog>(audit_file(duties_.audit, now.rank));
  if (!audit_->empty()) audit_->rollback(at.epoch, at.step + 1);
  if (now.rank == 0) roll_back_gone_ranks(duties_.audit, now.size, at.epoch, at.step + 1);
  audited_ = at.step;
  all_here();
}

TUTTI_CORE_FUNCTION void Chief::audit(const Batch& b, std::int64_t step) {
  if (!audit_) return;
  // The trainer was set back since.
  if (step <= audited_) audit_->rollback(b.epoch, step);
  audited_ = step;
  const int rank = trainer_.strategy().rank();
  if (b.epochs.empty()) return audit_->step(b.epoch, step, rank, b.indices);
  // A step that runs on into another epoch has a line in each.
  for (std::size_t begin = 0, end = 0; begin < b.indices.size(); begin = end) {
    while (end < b.indices.size() && b.epochs[end] == b.epochs[begin]) ++end;
    audit_->step(b.epochs[begin], step, rank, b.indices.subspan(begin, end - begin));
  }
}

}  // namespace tutti
