// SPDX-License-Identifier: MIT
#pragma once

// Definitions of coordinator.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/data/audit.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/train/coordinator.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION Coordinator::Coordinator(Trainer& trainer, CoordinatorOptions duties)
    : trainer_(trainer), duties_(std::move(duties)) {
  if (duties_.checkpoints != nullptr && trainer.strategy().members() != nullptr)
    duties_.checkpoints->set_require_lease([this] { require_lease(); });
}
TUTTI_CORE_FUNCTION Coordinator::~Coordinator() {
  if (duties_.checkpoints != nullptr) duties_.checkpoints->set_require_lease([] {});
}

TUTTI_CORE_FUNCTION void Coordinator::require_lease() const {
  ElasticMembership* const members = trainer_.strategy().members();
  if (members != nullptr && !members->await_lease()) fail_without_lease();
}

TUTTI_CORE_FUNCTION std::int64_t Coordinator::latest_generation() const {
  const std::int64_t latest = duties_.checkpoints != nullptr ? duties_.checkpoints->latest_generation() : 0;
  ElasticMembership* const members = trainer_.strategy().members();
  const bool assigned = members != nullptr && members->step_assignments() != nullptr;
  if (duties_.audit.empty() || assigned || trainer_.counters().step == 0) return latest;
  // A generation is not in the folder if the disk was full. The audit may be on another disk.
  return std::max(latest, latest_audited_generation(audit_file(duties_.audit, 0)));
}

TUTTI_CORE_FUNCTION void Coordinator::on_membership_change(const CompletedStep* closed) {
  const Membership now = trainer_.strategy().membership();
  const bool first = !known_;
  if (known_ && known_->generation == now.generation && known_->rank == now.rank && known_->size == now.size) return;
  another_was_ = another_was_ || (known_ && known_->rank != 0);
  known_ = now;
  generation_ = trainer_.counters().generation;
  saves_too_ = duties_.checkpoints != nullptr && duties_.saves_too && duties_.saves_too();
  // Assigned steps are not rolled back when the members change, and each worker has an audit file of its own.
  ElasticMembership* const members = trainer_.strategy().members();
  const StepAssignments* const assignments = members != nullptr ? members->step_assignments() : nullptr;
  audit_number_ = assignments != nullptr ? assignments->number() : now.rank;
  audits_generations_ = assignments == nullptr && generation_ > 0;
  begins_run_ = assignments == nullptr || assignments->is_founder();
  assigned_ = assignments != nullptr;
  if (!duties_.audit.empty() && (first || !assigned_)) open_audit(now, closed);
  if (now.rank != 0) {
    serves_ = false;
    return opened_.clear();
  }
  // serves_ may be false although this process was rank 0 before: open_audit() throws if a member is lost.
  if (!serves_) {
    if (another_was_ && duties_.checkpoints != nullptr) duties_.checkpoints->take_over();
    if (duties_.open) opened_ = duties_.open(another_was_);
    serves_ = true;
    another_was_ = false;
  }
  begin_generation(first);
  if (!first) {
    const bool known = closed != nullptr;
    const MembersReport m{trainer_.counters().step, now.size, known ? closed->seconds : 0, generation_,
                          known ? closed->next_batch : 0};
    tell([&](FitListener& l) { l.members(m); });
  }
}

TUTTI_CORE_FUNCTION void Coordinator::tell(FunctionRef<void(FitListener&)> what) {
  if (!is_coordinator()) return;
  require_lease();
  // A released process has completed its steps, but another process writes the log. Checks the lease a second time,
  // because this process may have been paused after the first check.
  if (ElasticMembership* const members = trainer_.strategy().members(); members != nullptr && !members->may_write()) {
    require_lease();
    if (!members->may_write()) fail_without_lease();
  }
  for (auto* l : duties_.listeners) what(*l);
  for (const auto& l : opened_) what(*l);
}

TUTTI_CORE_FUNCTION void Coordinator::warn(const std::string& text) {
  tell([&](FitListener& l) { l.warning(text); });
  if (!is_coordinator() && saves_too_)
    std::fprintf(stderr, "warning: rank %d: %s\n", trainer_.strategy().rank(), text.c_str());
}

TUTTI_CORE_FUNCTION void Coordinator::begin_generation(bool first) {
  const Counters at = trainer_.counters();
  if (duties_.checkpoints == nullptr || (generation_ == 0 && !(first && at.step == 0))) return;
  try {
    duties_.checkpoints->begin_generation(generation_, at.step);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& e) {
    // Without generations this write is optional: if the folder has an error, the next save reports it.
    if (generation_ == 0) return;
    warn("cannot record the change of members in the folder of checkpoints: " + std::string(e.what()));
  }
}

// A process with a new rank continues in the file of that rank. If lines contain the generation, ranks do not wait for
// each other. Otherwise no rank opens a file before its earlier writer has closed it, and no rank continues before all
// files are rolled back.
TUTTI_CORE_FUNCTION void Coordinator::open_audit(const Membership& now, const CompletedStep* closed) {
  const auto all_here = [&] {
    double word = 0;
    trainer_.strategy().sum({&word, 1});
  };
  const Counters at = trainer_.counters();
  const bool waits = closed == nullptr || !audits_generations_;
  const std::int64_t epoch = closed != nullptr ? closed->began.epoch : at.epoch,
                     step = closed != nullptr ? closed->step : at.step - (assigned_ ? trainer_.steps_behind() : 0);
  audit_.reset();
  if (waits) all_here();
  audit_ = std::make_unique<AuditLog>(audit_file(duties_.audit, audit_number_));
  if (waits) {
    if (!audit_->empty()) audit_->rollback(epoch, step + 1);
    if (now.rank == 0 && begins_run_) roll_back_gone_ranks(duties_.audit, now.size, epoch, step + 1);
  }
  audited_ = at.step;
  if (waits) all_here();
  if (now.rank != 0 || !audits_generations_) return;
  require_lease();
  audit_->begin_generation(generation_, now.size, epoch, step);
  if (closed != nullptr) complete_step(*closed);
  audit_->write();
}

namespace detail {

// Calls write(const AuditPart&): once for a step, or once for each epoch of a step that continues into another epoch.
template <class F>
void audit_parts(AuditPart part, std::span<const std::int64_t> epochs, F&& write) {
  if (epochs.empty()) return write(part);
  const auto indices = part.indices;
  for (std::size_t begin = 0, end = 0; begin < indices.size(); begin = end) {
    while (end < indices.size() && epochs[end] == epochs[begin]) ++end;
    part.epoch = epochs[begin];
    part.indices = indices.subspan(begin, end - begin);
    write(part);
  }
}

}  // namespace detail

TUTTI_CORE_FUNCTION void Coordinator::complete_step(const CompletedStep& closed) {
  Sampler samples = closed.source->sampler();
  Placement of = closed.source->placement();
  of.world = closed.ranks;
  of.global_batch = closed.global_batch;
  of.bounds = closed.bounds;
  for (of.rank = 0; of.rank < of.world; ++of.rank) {
    const Share part = samples.share(closed.began, of);
    detail::audit_parts({closed.began.epoch, closed.step, of.rank, generation_, part.indices}, part.epochs,
                        [&](const AuditPart& p) { audit_->closed(p); });
  }
}

TUTTI_CORE_FUNCTION void Coordinator::audit(const Batch& b, std::int64_t step) {
  if (!audit_) return;
  if (generation_ > 0) require_lease();
  // The trainer was rolled back after the last audited step.
  if (step <= audited_) audit_->rollback(b.epoch, step);
  audited_ = step;
  detail::audit_parts({b.epoch, step, audit_number_, audits_generations_ ? generation_ : 0, b.indices}, b.epochs,
                      [&](const AuditPart& p) { audit_->step(p); });
}

}  // namespace tutti
