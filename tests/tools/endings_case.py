# SPDX-License-Identifier: MIT
"""Base class for tests of how elastic jobs end: train_cifar10 on this host, each way in which a job can end,
and the three results that must agree: the launcher's exit code, the last event of log.jsonl, and the launcher's last
line."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from launch_case import BUILD, LaunchCase, state, wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
# For each exit code: the status of the last event in log.jsonl. `None`: the worker that writes the log was killed.
STATUS = {0: "finished", 130: "interrupted", 143: "interrupted", 6: "failed", 5: None}


def lacks(strategy, package):
    """Returns why the program lacks the strategy, or an empty text if it has it."""
    if not os.access(TRAIN, os.X_OK):
        return f"{TRAIN} has not been built"
    # Without data, a program that has the strategy ends before it trains.
    environment = {name: value for name, value in os.environ.items() if name != "TUTTI_DATA"}
    said = subprocess.run([TRAIN, "--strategy", strategy, "--data", "/nowhere"], env=environment, capture_output=True, text=True,
                          timeout=900).stderr
    return f"no {package}" if package in said else ""


def handles(pid, number):
    """Returns whether the process has a handler for this signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M).group(1)
    return int(caught, 16) >> (number - 1) & 1 == 1


class EndingsCase(LaunchCase):
    STRATEGY = ()  # options of the program
    OPTIONS = ()   # options of the launcher
    SERVERS = 0
    # True if the state is lost with the last worker. Otherwise the job waits for further workers, for --min-timeout.
    ENDS_WITH_LAST = True

    def setUp(self):
        super().setUp()
        self.environment.pop("TUTTI_DATA", None)
        self.run_dir = self.folder / "run"
        self.job = None

    def begin(self, *program, options=(), epochs=100000):
        elastic = self.folder / "elastic"
        elastic.mkdir()
        out, err = (open(self.folder / name, "w", encoding="utf-8") for name in ("out", "err"))
        servers = ("-s", self.SERVERS) if self.SERVERS else ()
        with out, err:
            self.job = self.start("--elastic", "--elastic-dir", elastic, "--elastic-at", "step", "-n", 2, *servers,
                                  *self.OPTIONS, *options, TRAIN, "--dataset", "synthetic", "--num-examples", 160,
                                  "--image-shape", "3,8,8", "--depth", 8, "--batch-size", 8, "--threads", 1, "--disp-batches",
                                  1, "--epochs", epochs, "--run-dir", self.run_dir, *self.STRATEGY, *program, stdout=out,
                                  stderr=err)
        self.job.stdout, self.job.stderr = (open(self.folder / name, encoding="utf-8", errors="replace")
                                            for name in ("out", "err"))

    def said(self):
        return (self.folder / "out").read_text(errors="replace"), (self.folder / "err").read_text(errors="replace")

    def events(self):
        log = self.run_dir / "log.jsonl"
        text = log.read_text() if log.exists() else ""
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def wait(self, condition):
        def found():
            if self.job.poll() is not None:
                self.fail(f"the job ended with {self.job.returncode}:\n" + "".join(self.said())[-6000:])
            return condition()
        return wait_until(found, 90)

    def wait_for_steps(self, more=3):
        """Waits until the job has done this number of further steps."""
        def step():
            return max((e["step"] for e in self.events() if e["event"] == "step"), default=0)
        goal = step() + more
        self.wait(lambda: step() >= goal)

    def processes(self, role="worker"):
        """Returns {number: process id} of the living processes with this role."""
        files = (self.runtime / "tutti" / "jobs").glob(f"*/{role}-*.process")
        found = {}
        for f in files:
            try:
                found[int(f.stem.split("-")[1])] = int(f.read_text().split()[0])
            except (OSError, IndexError):
                continue  # it has just been removed
        return {number: pid for number, pid in sorted(found.items()) if state(pid)}

    def signal_workers(self, number):
        """Sends a signal to all workers. No worker acts before all of them have the signal."""
        workers = self.processes().values()
        # A process that does not handle the signal yet would end.
        self.wait(lambda: all(handles(pid, number) for pid in workers))
        for number in (signal.SIGSTOP, number, signal.SIGCONT):
            for pid in workers:
                os.kill(pid, number)

    def check(self, code, line):
        """Checks how the job has ended: exit code, last event of the log, and the launcher's last line, which contains
        `line`."""
        self.job.wait(600)
        out, err = self.said()
        self.jobs += re.findall(r"job ([0-9a-f]{16})", err)
        text = f"{out[-3000:]}\n{err[-6000:]}"
        self.assertEqual(self.job.returncode, code, text)
        last = self.events()[-1]
        status = last.get("status") if last["event"] == "end" else None
        self.assertEqual(status, STATUS[code], f"{last}\n{text}")
        lines = [x for x in err.splitlines() if x.startswith("tutti-launch: ")]
        self.assertIn(line, lines[-1], text)
        # The launcher ends the servers, so they are not lost. Without workers, no warning may say that the job
        # continues.
        self.assertEqual([x for x in lines if "warning: server" in x], [], text)
        if code not in (0, 5):
            self.assertEqual([x for x in lines if "workers continue" in x], [], text)
        return err

    # ---- ways to end ----
    def test_done(self):
        self.begin(epochs=2)
        self.check(0, "")

    def test_interrupted(self):
        self.begin()
        self.wait_for_steps()
        self.job.send_signal(signal.SIGINT)
        self.check(130, "ended by SIGINT")

    def test_terminated(self):
        self.begin()
        self.wait_for_steps()
        self.job.send_signal(signal.SIGTERM)
        self.check(143, "ended by SIGTERM")

    def test_all_workers_are_asked_to_leave(self):
        self.begin()
        self.wait_for_steps()
        self.signal_workers(signal.SIGTERM)
        self.check(143, "got exit code 143")

    def test_last_worker_is_killed(self):
        self.begin(options=("--restart-budget", 0, "--min-timeout", 1))
        self.wait_for_steps()
        os.kill(self.processes()[1], signal.SIGKILL)
        self.wait(lambda: [e["ranks"] for e in self.events() if e["event"] == "members"][-1:] == [1])
        self.wait_for_steps()
        os.kill(self.processes()[0], signal.SIGKILL)
        err = self.check(5, "--resume continues from the last checkpoint")
        if self.ENDS_WITH_LAST:
            self.assertIn("its end by SIGKILL", err.splitlines()[-1])

    def test_weights_are_not_finite(self):
        self.begin("--lr", "1e6", "--warmup-epochs", 0)
        err = self.check(6, "got exit code 6")
        self.assertEqual(err.count("Launching worker"), 2, err)  # the launcher starts no other worker for it

    def test_all_processes_are_paused(self):
        """All processes pause for longer than any time-out, as on a machine that is suspended. The job must continue.
        """
        seconds = 2
        self.begin(options=("--rank-timeout", seconds, "--host-timeout", seconds, "--restart-budget", 0))
        self.wait_for_steps()
        # The launcher and its agents pause last, because they watch the workers and servers.
        workers = list(self.processes().values()) + list(self.processes("server").values())
        others = [pid for pid in self.marked() if pid not in workers and pid != self.job.pid]
        pids = [*workers, *others, self.job.pid]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: all(state(pid) in ("T", None) for pid in pids))
            time.sleep(2 * seconds)
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
        self.wait_for_steps()
        self.job.send_signal(signal.SIGTERM)
        err = self.check(143, "ended by SIGTERM")
        self.assertNotIn("warning: worker", err)
