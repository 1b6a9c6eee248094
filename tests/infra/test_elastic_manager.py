#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests elastic_manager.py with moto's EC2 and with files of the launcher that the test writes, and the conditions
under which tutti-launch runs it."""
import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

from cloud import BOOTSTRAP, BUILD, SECRET, CloudCase, Stack, until

MANAGER = BOOTSTRAP / "elastic_manager.py"
STATUS = "elastic_worker_status"


class ManagerCase(CloudCase):
    def setUp(self):
        super().setUp()
        self.stack = Stack(self.cloud)
        self.dir = self.folder / "elastic"
        self.dir.mkdir()
        self.hosts, self.log = self.dir / "host_worker", self.dir / "host_worker_log"
        self.hosts.write_text("127.0.0.1 slots=2\n10.99.0.20 slots=2\n")
        self.log.write_text("")
        self.since, self.lines = time.time_ns(), 0
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": self.cloud.endpoint, "AWS_REGION": "us-east-1", "EFS_MOUNT": str(self.efs),
                            "AWS_DL_POLL_SECONDS": "0.1"}

    def manage(self, *base, **more):
        words = [w for b in base or ("127.0.0.1", "10.99.0.20") for w in ("--base", b)]
        self.manager = self.start([sys.executable, MANAGER, "--elastic-dir", self.dir, "--launch-template", self.stack.template, "--tag",
                                   self.stack.tag, "--since", self.since, *words], {**self.environment, **more})

    def end(self, code=0):
        self.manager.send_signal(signal.SIGTERM)
        return self.finish(self.manager, code)

    def instance(self, k, prepared=True):
        """Makes an elastic worker, and returns its instance and address."""
        ip = f"10.99.0.{30 + k}"
        instance = self.stack.launch("ElasticWorker", ip)
        if prepared:
            self.prepare(ip)
        return instance, ip

    def prepare(self, ip):
        (self.efs / f"prepare_data_success_{ip}").touch()

    def tell(self, what, ip, at=None):
        with open(self.log, "a") as log:
            log.write(f"{self.lines} {what} {ip} {at or time.time_ns()}\n")
        self.lines += 1

    def is_listed(self, ip):
        return ip in [line.split()[0] for line in self.hosts.read_text().splitlines()]

    def status(self, instance):
        return self.stack.tags(instance).get(STATUS)

    def untag(self, instance):
        self.stack.ec2.delete_tags(Resources=[instance], Tags=[{"Key": self.stack.tag}])

    def looks(self, n=3):
        """Waits until the manager has checked n more times."""
        state = self.dir / "host_worker_instances"
        for _ in range(n):
            before = state.stat().st_ino, state.stat().st_mtime_ns
            until(lambda before=before: (state.stat().st_ino, state.stat().st_mtime_ns) != before)


class Manager(ManagerCase):
    def test_states_of_an_instance(self):
        self.manage()
        instance, ip = self.instance(1, prepared=False)
        until((self.dir / "host_worker_instances").exists)
        self.looks()
        self.assertFalse(self.is_listed(ip))
        self.assertIsNone(self.status(instance))
        old = open(self.hosts)
        self.addCleanup(old.close)
        inode = os.fstat(old.fileno()).st_ino
        self.prepare(ip)
        until(lambda: self.status(instance) == "ADD_QUEUED")
        # The manager replaces the file with a rename, so a reader of the old file still reads all of it.
        self.assertNotEqual(self.hosts.stat().st_ino, inode)
        self.assertEqual(old.read(), "127.0.0.1 slots=2\n10.99.0.20 slots=2\n")
        self.assertEqual([p.name for p in self.dir.glob("*tmp*")], [])
        # The new line has as many slots as the other hosts.
        self.assertEqual(self.hosts.read_text(), f"127.0.0.1 slots=2\n10.99.0.20 slots=2\n{ip} slots=2\n")
        self.assertEqual(self.stack.tags(instance)["Name"], f"{self.stack.name}-ElasticWorker")
        self.looks()
        self.assertEqual(self.status(instance), "ADD_QUEUED")
        self.tell("ADDED", ip)
        until(lambda: self.status(instance) == "ADDED")
        self.untag(instance)
        until(lambda: self.status(instance) == "REMOVAL_QUEUED")
        self.assertFalse(self.is_listed(ip))
        self.looks()
        self.assertEqual(self.stack.state(instance), "running")  # the instance must run while its worker exists
        self.tell("REMOVED", ip)
        until(lambda: self.stack.state(instance) == "terminated")
        self.assertEqual(self.status(instance), "REMOVED")
        self.assertFalse((self.efs / f"prepare_data_success_{ip}").exists())
        said = self.end()
        self.assertNotIn(SECRET, said)
        self.assertEqual(self.hosts.read_text(), "127.0.0.1 slots=2\n10.99.0.20 slots=2\n")

    def test_lines_of_others_are_kept(self):
        self.manage()
        instance, ip = self.instance(1)
        until(lambda: self.is_listed(ip))
        # The hosts of the job in another order, a host that a user added, and a comment.
        self.hosts.write_text(f"# by hand\nuser@by-hand:2222 slots=4\n{ip} slots=2\n10.99.0.20 slots=2\n127.0.0.1 slots=2\n")
        self.untag(instance)
        until(lambda: not self.is_listed(ip))
        self.assertEqual(self.hosts.read_text(), "# by hand\nuser@by-hand:2222 slots=4\n10.99.0.20 slots=2\n127.0.0.1 slots=2\n")
        self.end()

    def test_base_host_is_never_removed(self):
        instance, ip = self.instance(1)
        self.hosts.write_text(f"127.0.0.1\n{ip}\n")
        self.manage("127.0.0.1", ip)
        until((self.dir / "host_worker_instances").exists)
        self.untag(instance)
        self.looks()
        self.assertEqual(self.hosts.read_text(), f"127.0.0.1\n{ip}\n")
        self.assertEqual(self.stack.state(instance), "running")
        self.assertEqual(self.end().count(f"{instance} ({ip}) stays: the job began with it"), 1)

    def test_instance_that_no_longer_runs(self):
        self.manage()
        instance, ip = self.instance(1)
        until(lambda: self.is_listed(ip))
        self.stack.ec2.stop_instances(InstanceIds=[instance])
        until(lambda: not self.is_listed(ip))
        # Another instance gets this address, but has not prepared its data yet.
        self.stack.ec2.terminate_instances(InstanceIds=[instance])
        time.sleep(1.1)  # launch times are whole seconds
        self.stack.subnet = Stack(self.cloud).subnet  # finds the subnet if the address is free
        other, _ = self.instance(1, prepared=False)
        self.looks()
        self.assertFalse(self.is_listed(ip))
        self.prepare(ip)
        until(lambda: self.status(other) == "ADD_QUEUED")
        self.end()

    def test_instance_that_never_joined_ends_at_once(self):
        self.manage()
        instance, _ = self.instance(1, prepared=False)
        self.untag(instance)
        until(lambda: self.stack.state(instance) == "terminated")
        self.end()

    def test_manager_is_started_again(self):
        self.manage()
        instance, ip = self.instance(1)
        until(lambda: self.status(instance) == "ADD_QUEUED")
        self.manager.kill()
        self.manager.wait()
        self.tell("ADDED", ip)
        # If an instance disappears while no manager runs, the next manager still knows that the line is the manager's.
        gone, other = self.instance(2)
        self.manage()
        until(lambda: self.status(instance) == "ADDED" and self.is_listed(other))
        self.manager.kill()
        self.manager.wait()
        self.stack.ec2.stop_instances(InstanceIds=[gone])
        self.manage()
        until(lambda: not self.is_listed(other))
        self.assertTrue(self.is_listed(ip))
        # When the job ends, the hosts that were to leave have left.
        self.untag(instance)
        until(lambda: self.status(instance) == "REMOVAL_QUEUED")
        self.end()
        self.assertEqual(self.stack.state(instance), "terminated")

    def test_log_of_an_earlier_job_and_invalid_lines(self):
        self.tell("ADDED", "10.99.0.31", self.since - 10**9)
        self.manage()
        instance, ip = self.instance(1)
        until(lambda: self.status(instance) == "ADD_QUEUED")
        with open(self.log, "a") as log:
            log.write(f"\n\xff x\n7 ADDED\nADDED {ip}\n7 LOST {ip} {time.time_ns()}\n7 ADDED {ip} never\n8 ADDED {ip} {time.time_ns()}")
        self.looks()
        self.assertEqual(self.status(instance), "ADD_QUEUED")  # the last line of the log is incomplete
        with open(self.log, "a") as log:
            log.write("\n")
        until(lambda: self.status(instance) == "ADDED")
        with open(self.log, "a") as log:
            log.write(f"9 {ip} REMOVED {int(time.time())}\n")  # the fields in the other order, and the time in seconds
        self.untag(instance)
        until(lambda: self.stack.state(instance) == "terminated")
        self.end()

    def test_missing_and_invalid_files(self):
        self.hosts.unlink()
        self.manage()
        instance, ip = self.instance(1)
        time.sleep(0.5)
        self.assertFalse(self.hosts.exists())
        self.assertIsNone(self.status(instance))
        self.hosts.write_text("127.0.0.1")  # half a line, without a newline
        until(lambda: self.is_listed(ip))
        (self.dir / "host_worker_instances").write_text('{"since": [')
        self.manager.kill()
        self.manager.wait()
        self.manage()
        until(lambda: f'{{"{instance}": "{ip}"}}' in (self.dir / "host_worker_instances").read_text())
        self.end()
        self.assertEqual(self.hosts.read_text(), f"127.0.0.1\n{ip}\n")

    def test_ec2_without_an_answer(self):
        self.manage(AWS_ENDPOINT_URL="http://127.0.0.1:9")
        said = ""
        while "warning" not in said:
            line = self.manager.stdout.readline()
            self.assertTrue(line, said)
            said += line
        time.sleep(3)  # the manager checks again in this time
        self.assertIsNone(self.manager.poll())
        self.manager.kill()
        said += self.manager.communicate()[0]
        self.assertEqual(said.count("warning: ec2:DescribeInstances"), 1, said)

    def test_requirements(self):
        del self.environment["AWS_REGION"]
        self.environment.pop("AWS_DEFAULT_REGION", None)
        self.manage()
        self.assertIn("AWS_REGION is not set", self.finish(self.manager, 2))


class Launched(CloudCase):
    """Tests that tutti-launch runs a manager if and only if both variables are set."""

    def setUp(self):
        super().setUp()
        self.fake = self.folder / "manager.py"
        self.calls = self.folder / "calls"
        self.environment = {n: v for n, v in os.environ.items() if n not in ("TUTTI_STATE_DIR", "TUTTI_DATA")}
        self.environment.update(AWS_DL_ELASTIC_MANAGER=str(self.fake), AWS_DL_PYTHON=sys.executable)

    def job(self, *options, epochs=1, **more):
        return self.start([BUILD / "tools/tutti-launch", *options, "-n", 1, BUILD / "examples/train_cifar10", "--dataset", "synthetic",
                           "--num-examples", 64, "--image-shape", "3,16,16", "--depth", 8, "--batch-size", 8, "--threads", 1, "--epochs", epochs,
                           "--run-dir", self.folder / f"run{len(os.listdir(self.folder))}"], {**self.environment, **more})

    def write(self, text):
        self.fake.write_text(f"import os, signal, sys, time\nopen({str(self.calls)!r}, 'a').write(f'{{os.getpid()}} {{sys.argv[1:]}}\\n')\n" + text)

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    BOTH = {"WORKER_LAUNCH_TEMPLATE_ID": "lt-1", "ELASTIC_WORKER_TAG": "a-tag"}

    def test_no_manager_without_the_variables(self):
        self.write("time.sleep(100)\n")
        elastic = ("--elastic", "--elastic-dir", self.folder)
        for options, variables in ((elastic, {}), (elastic, {"WORKER_LAUNCH_TEMPLATE_ID": "lt-1"}), (elastic, {"ELASTIC_WORKER_TAG": "a-tag"}),
                                   (elastic, {"WORKER_LAUNCH_TEMPLATE_ID": "", "ELASTIC_WORKER_TAG": "a-tag"}), ((), self.BOTH)):
            out = self.finish(self.job(*options, **variables))
            self.assertEqual(self.called(), [], (options, variables))
            self.assertEqual("no elastic manager, because" in out, any(variables.values()) and options == elastic, out)

    def test_manager_ends_with_the_job(self):
        self.write("signal.signal(15, lambda *_: (print('tidies up', flush=True), sys.exit(0)))\nprint('is there', flush=True)\ntime.sleep(100)\n")
        out = self.finish(self.job("--elastic", "--elastic-dir", self.folder, epochs=4, **self.BOTH))
        self.assertIn("tutti-launch: elastic manager: is there", out)
        self.assertIn("tutti-launch: elastic manager: tidies up", out)
        self.assertNotIn("started again", out)
        (call,) = self.called()
        self.assertRegex(call, r"'--elastic-dir', '\S+', '--launch-template', 'lt-1', '--tag', 'a-tag', '--since', '\d{19}', '--base', '\S+'")
        with self.assertRaises(ProcessLookupError):
            os.kill(int(call.split()[0]), 0)

    def test_failed_manager_is_started_again(self):
        self.write(f"n = len(open({str(self.calls)!r}).readlines())\nif n < 3: print('trips'); sys.exit(7)\ntime.sleep(100)\n")
        job = self.job("--elastic", "--elastic-dir", self.folder, epochs=100000, **self.BOTH)
        until(lambda: len(self.called()) == 3)
        job.send_signal(signal.SIGINT)
        out = self.finish(job, 130)
        self.assertEqual(len(re.findall(r"manager ended with exit code 7; it is started again in [12] s", out)), 2, out)
        since = {re.search(r"'--since', '(\d+)'", call)[1] for call in self.called()}
        self.assertEqual(len(since), 1)  # all of them need the same part of the log

    def test_manager_ends_with_a_killed_launcher(self):
        self.write("time.sleep(100)\n")
        job = self.job("--elastic", "--elastic-dir", self.folder, epochs=100000, **self.BOTH)
        until(self.called)
        job.kill()
        pid = int(self.called()[0].split()[0])

        def gone():
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
            except OSError:
                return True
        until(gone)

        # The worker saves its state before it ends, because no other worker is there to get the state.
        def at_work():
            for command in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if str(self.folder).encode() in command.read_bytes():
                        return True
            return False
        until(lambda: not at_work())

    def test_missing_manager_program(self):
        out = self.finish(self.job("--elastic", "--elastic-dir", self.folder, **self.BOTH), 2)
        self.assertIn("[--elastic] expected elastic_manager.py, because WORKER_LAUNCH_TEMPLATE_ID is set, got no file", out)


if __name__ == "__main__":
    import unittest
    if not os.access(BUILD / "tools/tutti-launch", os.X_OK) or not os.access(BUILD / "examples/train_cifar10", os.X_OK):
        sys.exit("tutti-launch or train_cifar10 has not been built")
    unittest.main(verbosity=2)
