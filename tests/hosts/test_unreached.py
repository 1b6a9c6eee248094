#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Two hosts that do not reach each other, while both reach the launcher: one of them is given up, and the others train on."""
import contextlib
import re
import subprocess
import time

from elastic_training import LONG, ElasticTrainingCase
from hosts_case import main
from launch_case import wait_until
from test_train_elastic_servers import without_zeromq

TIMEOUT = 4  # --rank-timeout


class Unreached(ElasticTrainingCase):
    def route(self, change, host, other):
        """Takes the way from a host to another one, and no other way, or gives it back."""
        subprocess.run(["ip", "-n", self.bed.names[host], "route", change, "blackhole", f"{self.bed.address(other)}/32"],
                       check=True, timeout=30)

    @contextlib.contextmanager
    def cut(self, *ways):
        for host, other in ways:
            self.route("add", host, other)
        try:
            yield
        finally:
            for host, other in ways:
                self.route("del", host, other)

    def members(self):
        return [e["ranks"] for e in self.events() if e["event"] == "members"]

    def others_train_on(self, *ways, gone, hosts=(0, 1, 2), options=(), epochs=2 * LONG):
        """The worker or server `gone`, of one of the two hosts, is named and given up; what it had to do the others do."""
        self.begin("--elastic-at", "step", "--rank-timeout", TIMEOUT, *options, epochs=epochs, hosts=hosts)
        self.wait_for_steps(5)
        began = time.monotonic()
        with self.cut(*ways):
            wait_until(lambda: self.job.poll() is not None or "do not reach each other" in (self.folder / "err").read_text())
            noticed = time.monotonic() - began
            self.wait_for_steps(5)
            trained = time.monotonic() - began
            print(f"noticed after {noticed:.2f} s, trained on after {trained:.2f} s")
            self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out[-3000:] + self.job.err)
        self.check_end(epochs=epochs, steps=epochs * 960 // (8 * len(hosts)))
        said = re.findall(r"warning: (\w+ \d) on [\d.]+: it and (\w+ \d) on [\d.]+ do not reach each other", self.job.err)
        self.assertEqual([of[0] for of in said], [gone], self.job.err)
        self.assertGreaterEqual(noticed, 0.9 * TIMEOUT)
        self.assertNotIn("terminate called", self.job.err)
        return trained


class Gloo(Unreached):
    STRATEGY = ("--strategy", "gloo")

    def test_both_ways(self):
        self.others_train_on((1, 2), (2, 1), gone="worker 2")
        self.assertEqual(self.members(), [2])

    def test_one_way(self):
        self.others_train_on((0, 2), gone="worker 2")

    def test_other_way(self):
        self.others_train_on((2, 1), gone="worker 2")

    def test_one_host_from_all_others(self):
        self.others_train_on((1, 0), (1, 2), gone="worker 1")

    def test_short_deadline(self):
        """The operation ends before the time-out; the group that is formed then is not formed."""
        self.STRATEGY = (*self.STRATEGY, "--comm-deadline", "2")
        self.others_train_on((1, 2), gone="worker 2")

    def test_what_is_slow_is_not_cut(self):
        """A cut that is over before the time-out: nobody is given up."""
        self.begin("--elastic-at", "step", "--rank-timeout", 3 * TIMEOUT, epochs=LONG, hosts=(0, 1, 2))
        self.wait_for_steps(5)
        with self.cut((1, 2)):
            time.sleep(TIMEOUT)
        self.finish(self.job)
        self.check_end(epochs=LONG, steps=LONG * 960 // 24)
        self.assertEqual(self.members(), [])


class Servers(Unreached):
    STRATEGY = ("--strategy", "ps")

    def test_both_ways(self):
        self.others_train_on((0, 1), (1, 0), gone="server 1", hosts=(0, 1), options=("-s", 2))

    def test_one_way_to_the_only_server(self):
        self.others_train_on((1, 0), gone="worker 1", hosts=(0, 1), options=("-s", 1))


if __name__ == "__main__":
    if without_zeromq():
        print("SKIP: a build without ZeroMQ (Debian: libzmq3-dev)")
        raise SystemExit(77)
    main(3)
