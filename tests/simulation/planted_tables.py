#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in the parameter servers and in the files of the launcher, as planted.py does.

  tests/simulation/planted_tables.py [--only NAME[,NAME...]] [--seeds 1000] [--build FOLDER]

Compiles a scenario with the fault, and runs seeds until one fails. Exits with 1 if no seed finds a fault. FOLDER needs
the targets tutti_tools_launch and tutti_compiled_core. It is not part of ./test.sh.
"""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-w", "-O1", "-UNDEBUG", "-pthread"]
PS = "include/tutti/strategy/parameter_server/"
OWNED, TABLE, STORE = PS + "server/owned_operations.hpp", PS + "server/round_table.hpp", PS + "server/weight_store.hpp"
SERVER, THREAD = PS + "server/server.hpp", PS + "worker/worker_thread.hpp"
FILE, SITE = "tools/launch/elastic/elastic_file.cpp", "tools/launch/elastic/elastic_site.cpp"
STATE = "tools/launch/host/job_state"
# name, scenario, file, text, text with the fault
PLANTED = [
    # Faults that the code had once.
    ("new-clock-is-too-low", "tables", OWNED, "        raise_new_clocks();\n", ""),
    ("old-rename-counts", "hosts", FILE, "whole_ = (event.mask & IN_MOVED_TO) != 0;",
     "whole_ = whole_ || (event.mask & IN_MOVED_TO) != 0;"),
    ("half-edit-is-read", "hosts", FILE, "if (changes() || whole_) continue;", ""),
    ("added-host-is-lost", "hosts", SITE, "if (lock.get() >= 0) (void)::flock(lock.get(), LOCK_EX);", ""),
    ("folder-is-removed-meanwhile", "hosts", STATE + ".hpp", "if (!removed || tries == most_tries_to_make_folder) throw;",
     "throw;"),
    ("folder-above-is-removed", "hosts", STATE + ".cpp", "if (gone && ++tries < most_tries_to_make_folder) {",
     "if (false) {"),
    # Others.
    ("repeated-push-is-applied", "tables", OWNED, "if (!repeated && f.operation == Operation::apply) apply",
     "if (f.operation == Operation::apply) apply"),
    ("pushes-are-not-saved", "tables", OWNED, "{w.done.begin(), w.done.end()}});", "{}});"),
    ("session-is-not-saved", "tables", OWNED, "workers_[i].session = w.session;", ""),
    ("steps-are-not-restored", "tables", OWNED, "workers_[i].its_step = w.its_step;", ""),
    ("lost-worker-is-awaited", "tables", OWNED, "workers_[worker].there = false;\n    release();", "release();"),
    ("leaving-releases-nothing", "tables", OWNED, "workers_[worker].there = false;\n    release();",
     "workers_[worker].there = false;"),
    ("part-is-updated-late", "tables", STORE, "p.end = (f.offset + f.bytes) / unit;",
     "p.end = (f.offset + f.bytes) / unit - (f.bytes > 256 ? 16 : 0);"),
    ("restore-forgets-steps", "tables", STORE, "    steps_ = from.steps;\n", ""),
    ("answer-before-all", "tables", TABLE, "return ++c.count == workers_;", "return ++c.count + 1 >= workers_;"),
    ("first-worker-is-not-added", "tables", TABLE, "c.sum = {static_cast<std::byte*>(c.memory.data()), f.bytes};",
     "c.sum = {static_cast<std::byte*>(c.memory.data()), f.bytes / 2 + 2};"),
    ("unanswered-is-not-repeated", "tables", THREAD, "if (p.server == s && !p.answered) p.sent = false;", ""),
    ("unanswered-bytes-stay", "tables", THREAD, "    unanswered_[static_cast<std::size_t>(s)] = 0;\n", ""),
    ("servers-are-not-looked-for", "tables", THREAD, "look_for_servers();\n      }", "}"),
    ("done-is-too-high", "tables", THREAD, "return job->round;\n    return rounds_;", "return rounds_;\n    return rounds_;"),
    ("old-server-is-greeted-once", "tables", PS + "worker/disconnected_servers.hpp", "    server.greeted = false;\n", ""),
    ("ended-worker-is-awaited", "tables", SERVER, "over_ = !o_.members && members_.done_or_lost();\n      return;",
     "return;"),
    ("give-up-is-not-told", "tables", SERVER, "tell(FrameKind::give_up, expected + '\\0' + got, round, without);", ""),
    ("hosts-are-never-whole", "hosts", FILE, "seconds_since(since) < 1", "seconds_since(since) < 1e9"),
    ("problem-is-repeated", "hosts", FILE, "std::exchange(said_, update.problem) == update.problem", "false"),
    ("second-is-too-short", "hosts", FILE, "seconds_since(since) < 1)", "seconds_since(since) < 0.3)"),
    ("files-of-running-launcher-go", "hosts", STATE + ".cpp", "if (Clock::now() >= end) return;",
     "if (Clock::now() >= end) break;"),
    ("files-of-lost-launcher-stay", "hosts", "tools/launch/job/job_folder.cpp",
     "for (const auto& folder : job_folders(\"\")) remove_files_of_lost_launcher(folder);", ""),
    ("record-is-torn", "hosts", STATE + ".cpp", "const fs::path aside = io::aside_path(path);",
     "const fs::path aside = path;"),
]


def build(name, scenario, file, text, wrong, options):
    """Compiles the scenario with the fault. Returns the program, or None if the file does not have the text."""
    folder = (options.build / "planted" / name).resolve()
    source = (ROOT / file).read_text()
    if text not in source:
        return None
    changed = folder / file
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(source.replace(text, wrong))
    sources = [ROOT / "tests" / "simulation" / f"{scenario}.cpp"]
    if changed.suffix == ".cpp":
        sources.append(changed)  # the linker takes it instead of the library's
    libraries = [options.build / "tools" / "libtutti_tools_launch.a", options.build / "libtutti_compiled_core.a"]
    subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, "-I", folder / "include", "-I", folder, "-I", ROOT / "include",
                    "-I", ROOT, "-I", ROOT / "tests" / "simulation", *sources,
                    *(libraries if scenario == "hosts" else []), "-o", folder / scenario], check=True)
    return folder / scenario


def find(program, seeds):
    """Returns the first seed that fails and its line. Returns None if no seed fails."""
    for first in range(1, seeds + 1, 20):
        done = subprocess.run([program, "--first-seed", str(first), "--seeds", "20"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            found = re.search(r"^seed (\d+): (.*)$", done.stdout, re.M)
            return (int(found[1]), found[2]) if found else (first, f"exit code {done.returncode}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    only = set(options.only.split(",")) if options.only else None
    chosen = [p for p in PLANTED if only is None or p[0] in only]
    missed = 0
    for name, *fault in chosen:
        program = build(name, *fault, options)
        if program is None:
            print(f"{name}: {fault[1]} does not have the text to change", flush=True)
            missed += 1
            continue
        found = find(program, options.seeds)
        missed += found is None
        print(f"{name}: " + (f"seed {found[0]}: {found[1]}" if found else f"not found in {options.seeds} seeds"),
              flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
