#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests a training job that pauses for longer than its time-outs: all its processes, as on a machine that is suspended,
or the launcher alone. The job continues, or the message names the loss."""
import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from launch_case import BUILD, LAUNCH, LaunchCase, main, state, wait_until

PROGRAM = str(BUILD / "examples" / "train_cifar10")


class Paused(LaunchCase):
    TIMEOUT = 2  # --rank-timeout
    DEADLINE = 3  # --comm-deadline of jobs whose processes are all paused

    def begin(self, *options, strategy, elastic=False, timeout=TIMEOUT, program=(), **more):
        self.run_dir = self.folder / "run"
        (self.folder / "elastic").mkdir()
        self.out, self.err = (open(self.folder / name, "w+", encoding="utf-8") for name in ("out", "err"))
        self.addCleanup(self.out.close)
        self.addCleanup(self.err.close)
        words = ("--elastic", "--elastic-dir", self.folder / "elastic", "--restart-budget", 0) if elastic else ()
        self.job = self.start("--rank-timeout", timeout, *words, *options, PROGRAM, "--strategy", strategy, "--dataset",
                              "synthetic", "--num-examples", 960, "--image-shape", "3,16,16", "--depth", 8, "--batch-size", 8,
                              "--epochs", 100000, "--threads", 1, "--run-dir", self.run_dir, "--disp-batches", 1, "--audit",
                              *program, **{"stdout": self.out, "stderr": self.err, **more})
        self.job.stdout, self.job.stderr = self.out, self.err
        self.wait_for_steps(5)

    def said(self):
        return (self.folder / "out").read_text()[-2000:] + (self.folder / "err").read_text()

    def events(self):
        log = self.run_dir / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_steps(self, more):
        def step():
            return max((e["step"] for e in self.events() if e["event"] == "step"), default=0)
        goal = step() + more
        wait_until(lambda: self.job.poll() is not None or step() >= goal)
        self.assertIsNone(self.job.poll(), self.said())

    def pause(self, pids, seconds):
        """Pauses these processes for a time that is longer than a time-out of the job. Stops them one by one, and
        continues them in the reverse order, so that the processes that were stopped last get no answer from the
        rest."""
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda: state(pid) == "T")
                time.sleep(0.2)
            time.sleep(seconds)
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def check_goes_on(self):
        """Checks that all workers continue to train, and end after a request to stop."""
        self.wait_for_steps(20)
        self.job.send_signal(signal.SIGINT)
        self.job.wait(120)
        said = self.said()
        self.assertEqual(self.job.returncode, 130, said)
        self.assertIn("state saved", said)
        self.assertNotIn("warning: worker", said)
        self.assertEqual([e for e in self.events() if e["event"] == "members"], [], said)

    def all_paused(self, *options, strategy, elastic=False, seconds=1.8 * TIMEOUT, program=()):
        """The pause is longer than all time-outs: ranks wait for each other in the middle of an operation meanwhile."""
        self.assertGreater(seconds, self.DEADLINE)
        self.begin(*options, strategy=strategy, elastic=elastic, program=("--comm-deadline", self.DEADLINE, *program))
        servers = [pid for pid in self.marked() if b"TUTTI_ROLE=server" in Path(f"/proc/{pid}/environ").read_bytes()]
        self.pause([*servers, *(pid for pid in self.marked() if pid not in servers)], seconds)
        self.check_goes_on()

    def launcher_paused(self, *options, strategy, elastic=False):
        """The pause is longer than the lease, which lasts 3/4 of the time-out."""
        self.begin(*options, strategy=strategy, elastic=elastic, timeout=4)
        self.pause([self.job.pid], 5)
        self.check_goes_on()

    def test_all_elastic_gloo(self):
        """Without shared memory, ranks wait in Gloo itself."""
        self.all_paused("-n", 3, strategy="gloo", elastic=True, program=("--no-shared-memory",))

    def test_all_fixed_gloo(self):
        self.all_paused("-n", 2, strategy="gloo")

    def test_all_elastic_ps(self):
        self.all_paused("-n", 2, "-s", 2, strategy="ps", elastic=True)

    def test_all_fixed_ps(self):
        self.all_paused("-n", 2, "-s", 2, strategy="ps", seconds=12)

    def test_all_elastic_ps_async(self):
        self.all_paused("-n", 2, "-s", 1, strategy="ps_async", elastic=True)

    def test_all_fixed_ps_async(self):
        self.all_paused("-n", 2, "-s", 1, strategy="ps_async", seconds=12)

    def test_launcher_elastic_gloo(self):
        self.launcher_paused("-n", 2, strategy="gloo", elastic=True)

    def test_launcher_elastic_ps(self):
        self.launcher_paused("-n", 2, "-s", 1, strategy="ps", elastic=True)

    def test_launcher_fixed_ps(self):
        self.launcher_paused("-n", 2, "-s", 1, strategy="ps")

    def test_launcher_paused_too_long(self):
        """A worker that cannot find out whether it may still write ends and prints the reason. The rest continue, if
        there are any."""
        self.begin("-n", 2, strategy="gloo", elastic=True, timeout=1)
        self.pause([self.job.pid], 6)
        wait_until(lambda: "warning: worker" in self.said())
        self.assertIn("[this process] expected an answer of the job's arbiter within the time-out, got no answer", self.said())
        self.job.send_signal(signal.SIGINT)
        self.job.wait(120)
        self.assertIn(self.job.returncode, (130, 5), self.said())

    def test_launcher_paused_for_longer_than_the_host_timeout(self):
        """The agent of a host ends its processes, and the launcher prints the reason."""
        self.begin("-n", 2, "--host-timeout", 2, strategy="gloo", timeout=20)
        children = Path(f"/proc/{self.job.pid}/task/{self.job.pid}/children").read_text().split()
        agents = [int(p) for p in children if os.path.samefile(f"/proc/{p}/exe", LAUNCH)]
        self.assertEqual(len(agents), 1)
        os.kill(self.job.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: state(agents[0]) in (None, "Z"))
        finally:
            os.kill(self.job.pid, signal.SIGCONT)
        self.job.wait(120)
        self.assertEqual(self.job.returncode, 5, self.said())
        self.assertRegex(self.said(), r"\[host localhost\] expected a message of tutti-launch within 2 s, got none")
        self.assertNotIn("it was killed", self.said())

    def test_ctrl_z(self):
        """At a terminal, in a shell with job control, Ctrl-Z stops the launcher and fg continues it."""
        shell, terminal = pty.fork()
        if shell == 0:
            os.chdir(self.folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], dict(self.environment, PS1="", HISTFILE=""))
        screen = threading.Thread(target=self.read_all, args=(terminal,))
        screen.start()

        def end_shell():
            os.kill(shell, signal.SIGKILL)
            os.waitpid(shell, 0)
            screen.join()
            os.close(terminal)
        self.addCleanup(end_shell)

        def start(*arguments, **_):
            words = [LAUNCH, *self.options(), *map(str, arguments)]
            os.write(terminal, f"{shlex.join(words)} >out 2>err\n".encode())
            return Shelled(shell)
        self.start = start
        self.begin("-n", 2, strategy="gloo", elastic=True, timeout=4)
        launcher = self.job.pid
        os.write(terminal, b"\x1a")
        wait_until(lambda: state(launcher) == "T")
        time.sleep(5)
        os.write(terminal, b"fg\n")
        self.wait_for_steps(20)
        os.write(terminal, b"\x03")
        wait_until(lambda: state(launcher) is None)
        self.assertIn("state saved", self.said())
        self.assertNotIn("warning: worker", self.said())
        self.assertEqual([e for e in self.events() if e["event"] == "members"], [], self.said())

    @staticmethod
    def read_all(terminal):
        """Reads the output of a shell, which would wait otherwise."""
        with contextlib.suppress(OSError):
            while os.read(terminal, 4096):
                pass


class Shelled:
    """A launcher that was started by a shell."""

    def __init__(self, shell):
        def launcher():
            for child in Path(f"/proc/{shell}/task/{shell}/children").read_text().split():
                with contextlib.suppress(OSError):
                    if os.path.samefile(f"/proc/{child}/exe", LAUNCH):
                        return int(child)
            return None
        self.pid = wait_until(launcher)

    def poll(self):
        return None if state(self.pid) else 0


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print(f"SKIP: no {PROGRAM}; CLI11 is missing")
        sys.exit(77)
    for strategy, package in (("ps", "libzmq3-dev"), ("gloo", "libgloo-dev")):
        if f"install {package}" in subprocess.run([PROGRAM, "--strategy", strategy], capture_output=True, text=True).stderr:
            print(f"SKIP: a build without {strategy} (Debian: {package})")
            sys.exit(77)
    main()
