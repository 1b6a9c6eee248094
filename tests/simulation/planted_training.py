# SPDX-License-Identifier: MIT
"""The faults that planted.py plants for the scenario `training`: in the training loop, checkpoints, logs and audits. Their
form is that of planted_faults.py.

Four changes that no user and no process can notice were replaced:
- no-roll-back: Trainer::reform() rolls the step back, too.
- released-rank-0-writes: a worker that sums its steps with others is released only after it has reported the end of its
  last generation. Its lease decides whether it writes.
- audit-is-not-rolled-back: no step is repeated within a generation, and lines of earlier generations do not count.
- facts-are-not-rolled-back: only steps on a device can be complete before it is known whether they were broken.
"""
from planted_faults import ELASTIC, NEXT

MEMBERS = "train/detail/run/elastic_members.hpp"
COORDINATOR = "train/detail/fit/coordinator_definitions.hpp"
CHECKPOINTS = "train/detail/run/run_checkpoints.hpp"
WRITER = "io/file_writer.hpp"
CHECKPOINT = "io/checkpoint/checkpoint.hpp"

# Faults of the training loop, checkpoints, logs and audits.
TRAINING = [
    # Before the next one, which has a part of this text.
    ("writes-need-no-lease", COORDINATOR, "if (members != nullptr && !members->await_lease()) fail_without_lease();", ";"),
    # Keep jobs alive while all of their processes, or the launcher alone, are paused
    ("pause-ends-rank-0", COORDINATOR, "members != nullptr && !members->await_lease()",
     "members != nullptr && !(PLANTED ? members->may_write() : members->await_lease())"),
    # The chief opens its logs when a worker is lost while they are opened; tests of elastic jobs wait for events
    ("logs-are-opened-once", COORDINATOR, "if (!serves_) {", "if (PLANTED) serves_ = true; if (!serves_) {"),
    # A test of a worker that is lost behind a step before it has told which samples it had
    ("audit-is-not-closed", COORDINATOR, "if (closed != nullptr) complete_step(*closed);", ";"),
    ("best-is-not-taken-over", COORDINATOR,
     "if (another_was_ && duties_.checkpoints != nullptr) duties_.checkpoints->take_over();", ";"),
    ("generation-keeps-its-number", MEMBERS, "    name_generation();\n", ";"),
    ("work-after-a-step-is-not-repeated", "train/detail/run/step_end.hpp",
     "    run_.coordinator.require_lease();\n    const bool reported",
     "    if (PLANTED) run_.share.finish_pending = 0;\n    run_.coordinator.require_lease();\n    const bool reported"),
    # Change the members once if a rank is lost in the work after the step that announced their change
    ("announced-change-happens-twice", MEMBERS,
     "if (!is_due(members_.change(), theirs.step.ends_epoch != 0))\n"
     "      theirs.step.flags &= ~std::int64_t{step_flag::membership};", ";"),
    # Divide the test images into the same steps on a process that joins ...
    ("joiner-divides-the-test-images", MEMBERS, "run_.share.test_rows", "run_.sources.test_rows()"),
    # Let processes join only when the founders of a job have formed a group ...
    ("newcomers-join-before-the-founders", NEXT, "(begun || !c.newcomer)", "true"),
    ("joiner-does-not-take-facts", MEMBERS, "run_.share = theirs;", ";"),
    ("stop-does-not-save", CHECKPOINTS, "    save();\n    run_.result.interrupted",
     "    if (!PLANTED) save();\n    run_.result.interrupted"),
    ("checkpoint-is-not-synced", WRITER, "if (synced) writer.sync();", ";"),
    ("folder-is-not-synced", WRITER, "if (synced) fsync_directory(folder_of(path));", ";"),
    ("failed-write-is-no-error", WRITER, "if (n < 0) fail_file(\"write\", path, errno);", "if (n < 0) return;"),
    ("late-release-is-lost-lease", ELASTIC, "!await_lease() && !channel_->released()",
     "!await_lease() && (PLANTED || !channel_->released())"),
    ("step-without-lease-is-repeated", "train/detail/run/fit_run.hpp", "    at.epoch = batch.after.epoch;",
     "    if (PLANTED) run_.coordinator.audit(batch, at.step);\n    at.epoch = batch.after.epoch;"),
    ("tensors-are-not-synced", CHECKPOINT, "    write_safetensors(writer, records, metadata);\n    writer.sync();",
     "write_safetensors(writer, records, metadata);"),
    ("texts-of-checkpoints-are-not-synced", CHECKPOINT, "    writer.write(text);\n    writer.sync();", "writer.write(text);"),
    ("name-of-checkpoint-is-not-synced", CHECKPOINT, "      fsync_directory(folder_);", ";"),
    ("names-in-checkpoint-are-not-synced", CHECKPOINT, "    fsync_directory(aside);", ";"),
    ("folder-of-checkpoints-is-not-synced", CHECKPOINT, "    fsync_directory(folder_of(folder_));", ";"),
    ("failed-sync-is-ignored", WRITER, "::fsync(fd_.get()) != 0", "::fsync(fd_.get()) > 0"),
    ("short-write-is-complete", WRITER, "bytes = bytes.subspan(static_cast<std::size_t>(n));", "bytes = {};"),
    ("generation-is-not-recorded", CHECKPOINT,
     "    FileWriter(folder_ / GenerationBegin{generation, step}.text()).close();", ";"),
]
