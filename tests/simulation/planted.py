#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in the distributed code, one at a time, and counts the seeds after which the simulation finds them.

  tests/simulation/planted.py [--only NAME[,NAME...]] [--list] [--seeds 1000] [--build FOLDER]

Writes a copy of a header with the fault, compiles a scenario with it, and runs seeds until one fails. Exits with 1 if
no seed finds a fault, or if a text to change is not in its header. It is not part of ./test.sh.
"""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-w", "-O1", "-UNDEBUG", "-pthread"]
PIECE = 20  # seeds of one call

ARBITER = "cluster/arbiter/arbiter.hpp"
CHANNEL = "cluster/channel/control_channel.hpp"
LEASE = "cluster/channel/lease.hpp"
NEXT = "cluster/arbiter/next_generation.hpp"
ELASTIC = "strategy/elastic.hpp"
COORDINATOR = "train/detail/fit/coordinator_definitions.hpp"
RUN_MEMBERS = "train/detail/run/elastic_members.hpp"
CHECKPOINT = "io/checkpoint/checkpoint.hpp"
FILES = "io/file_writer.hpp"
# name, scenario, header, text, text with the fault
PLANTED = [
    # Faults that the code had once.
    ("servers-stay", "members", ARBITER,
     "if (p.member.role == Role::worker && (finished_ || stopping_)) release_servers();", ""),
    ("cut-pairs-stay", "members", ARBITER, "if (unreachable_.is_due(now)) evict_unreachable();", ""),
    ("pause-ends-waiting-worker", "members", ELASTIC, "if (!await_lease() && !channel_->released()) fail",
     "if (!joining() && !may_write()) fail"),
    ("pause-ends-worker", "members", CHANNEL, "std::chrono::ceil<std::chrono::milliseconds>(lease_.timeout()),",
     "std::chrono::milliseconds(0),"),
    ("end-of-channel-is-lost", "members", "cluster/elastic_member.hpp", "if (!end_.empty()) flag_->raise(end_);", ""),
    ("waiting-worker-keeps-servers", "members", ARBITER,
     "    if (finished_)\n      for (Process& q : processes_)\n"
     "        if (q.state == State::waiting && founded_) release(q);\n"
     "    if (p.member.role == Role::worker) release_servers();",
     "    if (p.member.role == Role::worker) release_servers();\n"
     "    if (finished_)\n      for (Process& q : processes_)\n"
     "        if (q.state == State::waiting && founded_) release(q);"),
    ("late-release-is-lost-lease", "training", ELASTIC, "!await_lease() && !channel_->released()", "!await_lease()"),
    ("step-without-lease-is-repeated", "training", "train/detail/run/fit_run.hpp",
     "    at.epoch = batch.after.epoch;\n", "    run_.coordinator.audit(batch, at.step);\n    at.epoch = batch.after.epoch;\n"),
    # Others.
    ("lease-too-long", "members", LEASE, "timeout_ / 4 * 3", "timeout_ * 2"),
    ("lease-from-answer", "members", LEASE, "since_ = std::pair{true, sent_.front().second}",
     "since_ = std::pair{true, now()}"),
    ("pause-counts-as-silence", "members", LEASE, "gap > longest_gap ? Time(slice) : gap", "gap"),
    ("authority-of-fewest-steps", "members", NEXT, "c->step > first->step", "c->step < first->step"),
    ("authority-is-oldest", "members", NEXT, "if (first == nullptr || c->step > first->step) first = c;",
     "if (first == nullptr) first = c;"),
    ("no-wait-for-reports", "members", ARBITER, "if (o_.reports && any(at_work)) return;", ""),
    ("report-before-start-is-in-order", "members", ARBITER, "if (r.broken || !going_ || level_ == Urgency::none)",
     "if (r.broken || level_ == Urgency::none)"),
    ("broken-report-is-in-order", "members", ARBITER, "if (r.broken || !going_ || level_ == Urgency::none)",
     "if (!going_ || level_ == Urgency::none)"),
    ("loss-is-not-announced", "members", ARBITER, "lost_.push_back(p.member);\n    change(Urgency::broken);",
     "lost_.push_back(p.member);"),
    ("waiting-loss-blocks", "members", ARBITER, "if (!was_member) return try_issue();", "if (!was_member) return;"),
    ("broken-group-starts", "members", ARBITER, "if (!takes_part || level_ == Urgency::broken || p.standing) return;",
     "if (!takes_part || p.standing) return;"),
    ("next-change-is-late", "members", ARBITER,
     "    // If processes still wait for the end of an epoch, announces the next change at once.\n    change();", ""),
    ("waiting-worker-stays-at-the-end", "members", ARBITER,
     "if (q.state == State::waiting && founded_) release(q);", ""),
    ("state-is-lost", "members", ARBITER, "q.holds = q.is(Role::worker);", ""),
    ("last-worker-leaves", "members", ARBITER,
     "if (o_.elastic && p.is(Role::worker) && !others) return stop_all();", ""),
    ("old-change-counts", "members", CHANNEL,
     "return change_ && change_->generation >= taken_ ? change_ : std::nullopt;", "return change_;"),
    ("broken-group-is-awaited", "members", CHANNEL, "return going_ >= generation || changed();",
     "return going_ >= generation;"),
    ("release-is-not-heard", "members", CHANNEL,
     "if (std::holds_alternative<control::LeaveGranted>(message)) released_ = left_ = true;", ""),
    ("change-before-the-flag", "members", ELASTIC,
     "if (const auto c = channel_->change()) group_flag_->raise(control::reason_of_end(*c));", ""),
    ("failed-group-is-in-order", "members", ELASTIC, "leaving.broken = true;", ""),
    ("raised-flag-is-not-seen", "members", "comm/interrupt_flag.hpp", "if (watcher_ && raised_) watcher_();", ""),
    ("first-heartbeat-is-late", "members", CHANNEL, "assignment_->rank_timeout / 5", "assignment_->rank_timeout * 5"),
    ("pause-ends-rank-0", "training", COORDINATOR, "members != nullptr && !members->await_lease()",
     "members != nullptr && !members->may_write()"),
    ("no-roll-back", "training", RUN_MEMBERS, "    run_.trainer.roll_back();\n", ""),
    ("facts-are-not-rolled-back", "training", RUN_MEMBERS, "run_.share = then.share;", ""),
    ("audit-is-not-closed", "training", COORDINATOR, "if (closed != nullptr) complete_step(*closed);", ""),
    ("checkpoint-is-not-synced", "training", CHECKPOINT, "    writer.sync();\n", ""),
    ("name-of-checkpoint-is-not-synced", "training", CHECKPOINT, "      fsync_directory(folder_);\n", ""),
    ("names-in-checkpoint-are-not-synced", "training", CHECKPOINT, "    fsync_directory(aside);\n", ""),
    ("folder-of-checkpoints-is-not-synced", "training", CHECKPOINT, "    fsync_directory(folder_of(folder_));\n", ""),
    ("failed-sync-is-ignored", "training", FILES, "if (::fsync(fd_.get()) != 0) fail_file", "if (::fsync(fd_.get()) > 0) fail_file"),
    ("short-write-is-complete", "training", FILES, "bytes = bytes.subspan(static_cast<std::size_t>(n));", "bytes = {};"),
    ("generation-is-not-recorded", "training", CHECKPOINT,
     "    FileWriter(folder_ / GenerationBegin{generation, step}.text()).close();\n", ""),
]


def command(scenario, folder, overlay):
    sources = [ROOT / "tests" / "simulation" / f"{scenario}.cpp", ROOT / "tools" / "launch" / "job" / "job_verdict.cpp"]
    return [os.environ.get("CXX", "g++"), *FLAGS, "-I", overlay, "-I", ROOT / "include", "-I", ROOT, "-I",
            ROOT / "tests" / "simulation", *sources, "-o", folder / scenario]


def find(program, seeds):
    """Returns the first seed that fails and its line. Returns None if no seed fails."""
    for first in range(1, seeds + 1, PIECE):
        done = subprocess.run([program, "--first-seed", str(first), "--seeds", str(PIECE)], stdout=subprocess.PIPE,
                              text=True)
        if done.returncode != 0:
            found = re.search(r"^seed (\d+): (.*)$", done.stdout, re.M)
            return (int(found[1]), found[2]) if found else (first, f"exit code {done.returncode}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    only = set(options.only.split(",")) if options.only else None
    chosen = [p for p in PLANTED if only is None or p[0] in only]
    if options.list:
        for name, scenario, header, *_ in chosen:
            print(f"{scenario:9} {header:45} {name}")
        return 0
    missed = 0
    for name, scenario, header, text, wrong in chosen:
        folder = (options.build / "planted" / name).resolve()
        overlay = folder / "include"
        changed = overlay / "tutti" / header
        changed.parent.mkdir(parents=True, exist_ok=True)
        source = (ROOT / "include" / "tutti" / header).read_text()
        if text not in source:
            print(f"{name}: {header} does not have the text to change", flush=True)
            missed += 1
            continue
        changed.write_text(source.replace(text, wrong))
        subprocess.run(command(scenario, folder, overlay), check=True)
        found = find(folder / scenario, options.seeds)
        missed += found is None
        print(f"{name}: " + (f"seed {found[0]}: {found[1]}" if found else f"not found in {options.seeds} seeds"),
              flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
