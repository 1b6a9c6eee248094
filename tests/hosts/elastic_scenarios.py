# SPDX-License-Identifier: MIT
"""Events in an elastic job, one scenario per test: the job survives, and no sample is lost or seen twice. Each test records its
times for bench/experiments/elastic_scenarios.py."""
import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

from elastic_training import IMAGES, TRAIN, ElasticTrainingCase
from hosts_case import HostsCase
from launch_case import wait_until

LOST = r"worker \d+ on .*; the other workers continue|its processes worker \d+"


class Scenarios(ElasticTrainingCase):
    TIMEOUT = 6  # --rank-timeout: longer than a busy machine may keep a living worker from the CPU
    # Results of each scenario: title; seconds until the job noticed the event, and until the next step began; number of
    # repeated steps; samples lost, and seen twice.
    NOTES = {}

    # ---- running the job ----
    def train(self, *options, hosts=(0, 1, 2), **more):
        self.lines = []  # (time, stream, text)
        self.begin(*options, *(() if "--elastic-at" in options else ("--elastic-at", "step")), "--rank-timeout",
                   self.TIMEOUT, hosts=hosts, epochs=more.pop("epochs", 1000000), **more)
        self.readers = [threading.Thread(target=self.listen, args=(self.job, stream)) for stream in ("stdout", "stderr")]
        for reader in self.readers:
            reader.start()

    # Threads read the output and record the time of each line.
    start, finish = HostsCase.start, HostsCase.finish

    def tell(self):
        if self.job is not None and self.job.poll() is None:
            self.job.kill()

    def listen(self, job, stream):
        for line in getattr(job, stream):
            self.lines.append((time.monotonic(), stream, line))

    def said(self):
        return "".join(line for _, _, line in self.lines)

    def ended(self, code):
        self.job.wait(120)
        for reader in self.readers:
            reader.join()
        self.job.stdout.close()
        self.job.stderr.close()
        self.jobs += re.findall(r"job ([0-9a-f]{16})", self.said())
        self.assertEqual(self.job.returncode, code, self.said())

    def stop(self):
        """Stops the job as its user does. Afterwards the audit shows which samples were seen."""
        self.job.send_signal(signal.SIGINT)
        self.ended(130)
        self.assertIn("state saved", self.said())

    def when(self, pattern, since, seconds=60):
        """Waits for a line that matches, and returns its time."""
        def find():
            if self.job.poll() is not None and not any(r.is_alive() for r in self.readers):
                self.fail(f"the job ended: {self.said()[-6000:]}")
            return next((t for t, _, line in list(self.lines) if t >= since and re.search(pattern, line)), None)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := find():
                return found
            time.sleep(0.005)
        return self.fail(f"nobody said {pattern}: {self.said()[-6000:]}")

    def repeated(self):
        """Returns how many steps the output shows again after a rollback."""
        most = again = 0
        for _, _, line in self.lines:
            if shown := re.search(r"epoch \d+ step \d+/\d+ \((\d+)(?: in all)?\)", line):
                again += int(shown[1]) <= most
                most = max(most, int(shown[1]))
        return again

    def note(self, begin, noticed, on, broken, ended=True):
        """Records the results of a scenario. broken: number of steps that had begun and were repeated."""
        if ended:
            self.stop()
        lost, twice = self.count()
        name = self._testMethodName[5:]
        self.NOTES[name] = (self._testMethodDoc, noticed and noticed - begin, on and on - begin, self.repeated() + broken,
                            lost, twice)
        self.assertEqual((lost, twice), (0, 0))

    def goes_on(self, ranks, since):
        return self.when(rf"after step \d+: {ranks} rank", since)

    def kill(self, index, number=signal.SIGKILL):
        """Sends a signal to a worker, selected by its age. Returns the worker's pid and the time. Over MPI no worker
        exists between two generations."""
        while True:
            there = wait_until(lambda: self.processes(TRAIN))
            _, pid = sorted(there.items())[index][1]
            now = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return pid, now

    def gone(self, pid):
        wait_until(lambda: not Path(f"/proc/{pid}").exists())

    # ---- the events ----
    def test_01_a_worker_is_killed(self):
        """a worker is killed in the middle of a step"""
        self.train("--restart-budget", 0)
        self.wait_for_steps(20)
        _, begin = self.kill(-1)
        on = self.goes_on(2, begin)
        self.wait_for_steps(20)
        self.note(begin, self.when(LOST, begin), on, 1)

    def test_02_the_first_worker_is_killed(self):
        """rank 0 is killed; the other ranks have the same state"""
        self.train("--restart-budget", 0)
        self.wait_for_steps(20)
        _, begin = self.kill(0)
        on = self.goes_on(2, begin)
        self.wait_for_steps(20)
        self.note(begin, self.when(LOST, begin), on, 1)

    def test_03_the_launcher_is_killed(self):
        """the launcher is killed: no process is left over, and `--resume` continues the run"""
        self.train()
        self.wait_for_steps(150)
        begin = time.monotonic()
        self.job.kill()
        self.ended(-9)
        wait_until(lambda: not self.processes(TRAIN))
        over = time.monotonic()
        strategy = self.STRATEGY
        self.STRATEGY = [*strategy, "--resume"]
        first = self.lines
        self.train()
        self.STRATEGY = strategy
        self.wait_for_steps(70)
        self.stop()
        self.lines = first + self.lines
        self.note(begin, over, None, 0, ended=False)

    def test_04_a_host_is_lost(self):
        """a host that is still in the hosts file is lost with its link and all its processes"""
        self.train("--restart-budget", 0)
        self.wait_for_steps(20)
        begin = time.monotonic()
        self.cluster.cut(2)
        try:
            for pid in self.cluster.pids(2):
                with contextlib.suppress(ProcessLookupError):  # it has ended together with the previous one
                    os.kill(pid, signal.SIGKILL)
            on = self.goes_on(2, begin)
            self.wait_for_steps(20)
        finally:
            self.cluster.heal(2)
        self.note(begin, self.when(LOST, begin), on, 1)

    def test_05_a_host_is_cut_off(self):
        """a host's link is cut and healed: its processes write no more files, and end"""
        self.train("--restart-budget", 0)
        self.wait_for_steps(20)
        host, pid = list(sorted(self.processes(TRAIN).items()))[0][1]
        begin = time.monotonic()
        self.cluster.cut(host)
        try:
            on = self.goes_on(2, begin)
            self.wait_for_steps(20)
        finally:
            self.cluster.heal(host)
        self.gone(pid)
        self.note(begin, self.when(LOST, begin), on, 1)

    def test_06_a_worker_is_stopped(self):
        """a worker is stopped, and the job refuses the worker when the worker continues"""
        self.train("--restart-budget", 0)
        self.wait_for_steps(20)
        pid, begin = self.kill(0, signal.SIGSTOP)
        on = self.goes_on(2, begin)
        self.wait_for_steps(20)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.gone(pid)
        self.wait_for_steps(20)  # the launcher learns much earlier that it has ended, which does not affect the job
        self.note(begin, self.when(LOST, begin), on, 1)

    def test_07_a_host_is_added(self):
        """a host is added, at the end of an epoch"""
        self.train("--elastic-at", "epoch", hosts=(0, 1))
        self.wait_for_steps(20)
        begin = time.monotonic()
        self.edit([0, 1, 2])
        on = self.goes_on(3, begin)
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(2)]])
        self.wait_for_steps(20)
        self.note(begin, self.when("Launching worker node", begin), on, 0)
        changes = [e for e in self.events() if e["event"] == "members"]
        self.assertEqual([e["step"] * 16 % IMAGES for e in changes], [0])

    def test_08_a_host_is_removed(self):
        """a host is removed, at the end of an epoch"""
        self.train("--elastic-at", "epoch")
        self.wait_for_steps(20)
        begin = time.monotonic()
        self.edit([0, 1])
        on = self.goes_on(2, begin)
        wait_until(lambda: self.logged() == [["REMOVED", self.cluster.address(2)]])
        self.wait_for_steps(20)
        self.note(begin, None, on, 0)
        self.assertRegex(self.said(), r"worker \d+ on \S+ has left\n")

    def test_09_a_host_is_replaced(self):
        """one edit replaces a host"""
        self.train(hosts=(0, 1))
        self.wait_for_steps(20)
        begin = time.monotonic()
        self.edit([0, 2])
        wait_until(lambda: sorted(self.logged()) == [["ADDED", self.cluster.address(2)], ["REMOVED", self.cluster.address(1)]])
        on = self.goes_on("[12]", begin)
        self.wait_for_steps(20)
        self.note(begin, self.when("Launching worker node", begin), on, 0)

    def test_10_a_host_cannot_be_reached(self):
        """a host is added that cannot be reached"""
        self.train("--connect-timeout", 2, hosts=(0, 1))
        self.wait_for_steps(20)
        begin = time.monotonic()
        new = self.elastic / "new"
        new.write_text((self.elastic / "host_worker").read_text() + f"{self.cluster.net}.200 slots=1\n")
        new.rename(self.elastic / "host_worker")
        noticed = self.when(r"\.200.*The next attempt is in 1 s", begin)
        self.wait_for_steps(20)
        self.note(begin, noticed, None, 0)
        self.assertEqual(self.logged(), [])

    def test_11_too_few(self):
        """fewer than `--min-workers`: the job waits until more workers join"""
        self.train("--min-workers", 2, "--restart-budget", 0, hosts=(0, 1))
        self.wait_for_steps(20)
        _, begin = self.kill(0)
        noticed = self.when("1 worker of at least 2; the job waits for more", begin)
        self.edit([0, 1, 2])
        on = self.goes_on(2, begin)
        self.wait_for_steps(20)
        self.note(begin, noticed, on, 1)

    def test_12_a_host_fails_again_and_again(self):
        """a host that fails repeatedly is no longer used"""
        self.train("--restart-budget", 1, hosts=(0, 1))
        self.wait_for_steps(20)
        begin = time.monotonic()
        for _ in range(2):
            there = wait_until(lambda: {h: p for h, p in self.processes(TRAIN).values()}.get(1))
            os.kill(there, signal.SIGKILL)
            self.gone(there)
        noticed = self.when("removed from the hosts file and listed again: --restart-budget 1", begin)
        on = self.goes_on("1", begin)
        self.wait_for_steps(20)
        self.note(begin, noticed, on, 1)

    def test_13_the_hosts_file_is_bad(self):
        """the hosts file is missing, empty, incomplete, wrong or hostile"""
        self.train(hosts=(0, 1))
        self.wait_for_steps(20)
        file = self.elastic / "host_worker"
        good = file.read_text()
        begin = noticed = None
        for bad in (None, "", good[:-3], good + "-oProxyCommand=id\n", good + "a b c d\n", good + "x slots=0x1\n", "\0\n",
                    good + f"{self.cluster.address(2)};id\n"):
            begin = time.monotonic()
            if bad is None:
                file.unlink()
            else:
                file.write_text(bad)
            if bad != good[:-3]:
                noticed = self.when("This edit is ignored", begin)
            self.wait_for_steps(5)
            new = self.elastic / "new"
            # Valid files with all optional parts.
            new.write_text("# the hosts\n\n" + good.replace("\n", "\r\n"))
            new.rename(file)
            time.sleep(0.3)
        self.assertEqual(len(self.processes(TRAIN)), 2)
        self.note(begin, noticed, None, 0)
        self.assertEqual(self.logged(), [])

    def test_14_failures_in_a_change(self):
        """workers are killed while others join and leave"""
        self.train("--restart-budget", 100)
        for delay, hosts in ((0, [0, 1]), (0.1, [0, 1, 2]), (0.4, [0, 2]), (0.2, [0, 1, 2])):
            self.wait_for_steps(20)
            begin = time.monotonic()
            self.edit(hosts)
            time.sleep(delay)
            self.kill(0 if delay < 0.2 else -1)
            on = self.when(r"after step \d+: \d rank", begin)
            self.wait_for_steps(20)
            wait_until(lambda: {h for h, _ in self.processes(TRAIN).values()} == set(hosts))
            self.wait_for_steps(20)
            # Removes the other hosts and adds them again, so that the next failure of a host counts as its first one.
            self.edit([hosts[-1]])
            wait_until(lambda: {h for h, _ in self.processes(TRAIN).values()} == {hosts[-1]})
            self.edit([0, 1, 2])
            wait_until(lambda: len(self.processes(TRAIN)) == 3)
        self.note(begin, None, on, 1)

    def test_15_steady_rates(self):
        """rates and batches of a job with many changes are those of a job without changes"""
        self.train(hosts=(0, 1))
        for hosts in ([0, 1, 2], [1, 2], [0, 1, 2], [0], [0, 1]):
            self.wait_for_steps(15)
            begin = time.monotonic()
            self.edit(hosts)
            on = self.goes_on(len(hosts), begin)
        self.wait_for_steps(70)
        self.note(begin, None, on, 0)
        changed = {e["step"]: e["lr"] for e in self.events() if e["event"] == "epoch"}
        steps = max(changed)
        self.run_dir = self.folder / "quiet"
        self.elastic = self.folder / "quiet-hosts"
        self.elastic.mkdir()
        self.train(hosts=(0, 1))
        wait_until(lambda: max((e["step"] for e in self.events() if e["event"] == "epoch"), default=0) >= steps)
        self.stop()
        quiet = {e["step"]: e["lr"] for e in self.events() if e["event"] == "epoch"}
        self.assertEqual(changed, {s: quiet[s] for s in changed})
