#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests the whole sequence, with a network namespace for each host: instances boot by user data, with moto's server as
the cloud. They form a cluster, and train on real CIFAR-10 from the master with the originals' commands."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cloud import BOOTSTRAP, BUILD, FAKES, HANDLE_SECRET, SECRET, Cloud, CloudBed, Stack, netns_cluster, make_package, until  # noqa: F401

# Matches the changes of an instance that the manager logs.
STATUS = re.compile(r"(i-\w+) is (ADD_QUEUED|ADDED|REMOVAL_QUEUED)$|(i-\w+) \(\S+\) is (REMOVED) and ends$", re.M)
# Of the job in which a worker joins; the other one has a fourth. A person may run it with all 50,000 images, which takes a quarter of an
# hour or more.
EXAMPLES = int(os.environ.get("CLUSTER_RUN_EXAMPLES") or 2000)
DATA = Path(os.environ.get("TUTTI_DATA") or "/nowhere") / "cifar-10-batches-bin"
SLOWER = max(1, EXAMPLES / 2000)
TRAIN = "train_cifar10 --data-dir $EFS_MOUNT/data --network resnet --num-layers 50 --kv-store dist_device_sync --threads 1"
EFS_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2"


class Run(unittest.TestCase):
    HOSTS = 3

    def setUp(self):
        for program in ("tools/tutti-launch", "tools/tutti-check-audit", "examples/train_cifar10"):
            if not os.access(BUILD / program, os.X_OK):
                self.fail(f"{BUILD / program} has not been built")
        try:
            self.cluster = CloudBed(self.HOSTS, DATA)
            self.enterContext(self.cluster)
        except netns_cluster.Unavailable as e:
            self.skipTest(str(e))
        self.cloud = Cloud(self.cluster.here)
        self.addCleanup(self.cloud.close)
        folder = tempfile.TemporaryDirectory(prefix="tutti-cluster-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.package = make_package(self.cloud, self.folder)
        self.stack = Stack(self.cloud, self.cluster.net)
        self.instances, self.processes = {}, []
        self.addCleanup(self.end)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    def launch(self, role, k):
        self.instances[k] = self.stack.launch(role, self.cluster.address(k))

    def start(self, host, argv, env=None):
        process = subprocess.Popen(self.cluster.inside(host, list(map(str, argv))), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def finish(self, process, code=0, seconds=150):
        out, _ = process.communicate(timeout=seconds * SLOWER)
        self.assertEqual(process.returncode, code, out)
        return out

    def boot(self, role, k, **more):
        env = self.stack.environment(role, f"host{k}", self.instances[k], self.cluster.address(k), "/mnt/efs", EFS_FILE_SYSTEM_ID="fs-1",
                                     TUTTI_PACKAGE=self.package, TUTTI_FAKE_EFS=str(self.cluster.efs), PATH=f"{self.cluster.folder}/fakes:{os.environ['PATH']}",
                                     TUTTI_FAKES_LOG=f"{self.cluster.folder}/fakes.log{k}", **more)
        env.pop("TUTTI_DATA", None)
        return self.start(k, ["bash", BOOTSTRAP / "user_data.sh"], env)

    def on_master(self, command, **more):
        """Returns the command for a login shell on the master. It has the profile of the set-up, but not this test's
        environment except the stand-ins for the cloud."""
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": f"{self.cluster.root(0)}/root", "USER": "root", "TERM": "dumb",
               **{n: os.environ[n] for n in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}, "AWS_ENDPOINT_URL": self.cloud.endpoint,
               "AWS_DL_POLL_SECONDS": "0.3", **more}
        return self.start(0, ["bash", "-lc", command], env)

    def make_cluster(self, workers, agents=False, **more):
        self.launch("Master", 0)
        for k in range(1, workers + 1):
            self.launch("Worker", k)
        self.stack.asg_setup("Worker", 0, workers)
        self.stack.asg_setup("Master", 1, 1)
        agents = {"AWS_DL_FORWARD_AGENT": "true" if agents else "false"}
        for process in [self.boot("Master", 0, **agents, **more), *(self.boot("Worker", k, **agents) for k in range(1, workers + 1))]:
            said = self.finish(process)
            for secret in (SECRET, HANDLE_SECRET):
                self.assertNotIn(secret, said)
        self.assertEqual([s["Status"] for s in self.cloud.web.signals], ["SUCCESS"])

    def events(self):
        return [json.loads(line) for line in (self.cluster.efs / "run/log.jsonl").read_text().splitlines()]


class Synchronous(Run):
    def test_a_cluster_trains(self):
        self.make_cluster(2)
        mounts = Path(f"{self.cluster.folder}/fakes.log1").read_text()
        self.assertIn(f"mount -t nfs4 -o {EFS_OPTIONS} fs-1.efs.us-east-1.amazonaws.com:/ /mnt/efs", mounts)
        self.assertEqual((self.cluster.root(1) / "etc/fstab").read_text(), "LABEL=root / ext4 defaults 0 1\n"
                         f"fs-1.efs.us-east-1.amazonaws.com:/ /mnt/efs nfs4 {EFS_OPTIONS},_netdev,nofail 0 0\n")
        if not os.path.exists("/sbin/mount.nfs4"):
            self.assertIn("install -y --no-install-recommends nfs-common", mounts)
        # ssh knows all hosts and has access to them, so it asks for no input.
        for name in ("deeplearning-master", "deeplearning-worker1", "deeplearning-worker2", "deeplearning-worker3"):
            out = self.finish(self.on_master(f"ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {name} hostname"))
            self.assertIn("tutti-", out)
        # A worker has access to no other host.
        denied = self.start(1, ["ssh", "-o", "BatchMode=yes", "deeplearning-worker1", "true"], {"PATH": os.environ["PATH"]})
        self.assertIn("Permission denied", self.finish(denied, 255))
        out = self.finish(self.on_master(
            f"cd $EFS_MOUNT && tutti-launch -n $DEEPLEARNING_WORKERS_COUNT -H $DEEPLEARNING_WORKERS_PATH {TRAIN} --num-examples {EXAMPLES // 4} --num-epochs 1 --evaluate-every 0 --run-dir run"))
        print(out)
        self.assertIn("3 workers on 3 hosts", out)
        self.assertIn("3 ranks", out)
        epochs = [e for e in self.events() if e["event"] == "epoch"]
        self.assertEqual([e["epoch"] for e in epochs], [1])


class Elastic(Run):
    def test_a_worker_joins_and_leaves(self):
        script = self.cluster.efs / "prepare-data.py"
        script.write_text("import os, sys\nsys.exit(not os.path.exists('/mnt/efs/data/test_batch.bin'))\n")
        self.make_cluster(1, WORKER_LAUNCH_TEMPLATE_ID=self.stack.template, ELASTIC_WORKER_TAG=self.stack.tag)
        job = self.on_master(
            "cd $EFS_MOUNT && tutti-launch --elastic-training-enabled True -n $DEEPLEARNING_WORKERS_COUNT -H $DEEPLEARNING_WORKERS_PATH "
            f"{TRAIN} --num-examples {EXAMPLES} --num-epochs 4 --evaluate-every 0 --run-dir run --audit")
        members = self.cluster.efs / "host_worker_log"
        until(lambda: (self.cluster.efs / "host_worker").exists() or job.poll() is not None, 60)
        self.launch("ElasticWorker", 2)
        added, ip = self.instances[2], self.cluster.address(2)
        self.finish(self.boot("ElasticWorker", 2, PREPARE_DATA_SCRIPT="/mnt/efs/prepare-data.py"))
        until(lambda: self.stack.tags(added).get("elastic_worker_status") == "ADDED" or job.poll() is not None, 120 * SLOWER)
        if job.poll() is not None:
            self.fail(f"the job ended before the worker was there: {job.communicate()[0]}")
        self.stack.ec2.delete_tags(Resources=[added], Tags=[{"Key": self.stack.tag}])
        until(lambda: self.stack.state(added) == "terminated" or job.poll() is not None, 120 * SLOWER)
        out = self.finish(job)
        print(out)
        self.assertEqual([(a or c, b or d) for a, b, c, d in STATUS.findall(out)],
                         [(added, s) for s in ("ADD_QUEUED", "ADDED", "REMOVAL_QUEUED", "REMOVED")])
        self.assertEqual([line.split()[1:3] for line in members.read_text().splitlines()], [["ADDED", ip], ["REMOVED", ip]])
        self.assertEqual(self.stack.tags(added)["elastic_worker_status"], "REMOVED")
        self.assertEqual(self.stack.tags(added)["Name"], f"{self.stack.name}-ElasticWorker")
        self.assertEqual((self.cluster.efs / "host_worker").read_text(), "deeplearning-worker1\ndeeplearning-worker2\n")
        self.assertFalse((self.cluster.efs / f"prepare_data_success_{ip}").exists())
        # Each sample of each epoch was seen once, although members joined and left.
        done = subprocess.run([BUILD / "tools/tutti-check-audit", "--epochs", "4", self.cluster.efs / "run"], capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Agent(Run):
    def ssh(self, *options_and_command, code=0):
        """Logs in to the master, as the user of a stack with KeyName and SSHLocation does."""
        options = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        *more, command = options_and_command
        done = subprocess.run(["ssh", *options, *more, f"root@{self.cluster.address(0)}", command], env=self.agent, stdin=subprocess.DEVNULL,
                              text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_agent_is_forwarded_from_host_to_host(self):
        key = self.folder / "users-key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        for k in range(3):
            # EC2 installs the key if the stack has a KeyName.
            folder = self.cluster.root(k) / "root/.ssh"
            folder.mkdir(mode=0o700)
            (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
        socket = self.folder / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.terminate)
        until(socket.exists)
        self.agent = {"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", key], env=self.agent, check=True)
        self.make_cluster(2, agents=True)
        way = "ssh -o BatchMode=yes deeplearning-worker2 ssh -o BatchMode=yes deeplearning-worker3 hostname"
        self.assertEqual(self.ssh("-A", way).strip(), self.cluster.names[2])
        # Only the forwarded agent gives access. A login fails without an agent, and without forwarding.
        self.assertIn("Permission denied", self.ssh(way, code=255))
        self.assertIn("Permission denied", self.ssh("-A", way.replace("ssh ", "ssh -o ForwardAgent=no ", 1), code=255))


class UserData(Run):
    HOSTS = 1

    def test_failures(self):
        self.launch("Master", 0)
        fakes = self.cluster.folder / "fakes"
        whole = self.package
        (fakes / "sleep").write_text("#!/bin/sh\n")
        (fakes / "sleep").chmod(0o755)
        for package, word in (("s3://packages/none", "s3://packages/none cannot be fetched: .*404.*s3:GetObject"), ("s3://nowhere/x", "s3:GetObject"),
                              ("none.tar.gz", "/mnt/efs/none.tar.gz cannot be fetched"), ("/etc/passwd", "/etc/passwd is no archive")):
            with self.subTest(package=package):
                self.package = package
                self.assertRegex(self.finish(self.boot("Master", 0), 1), word)
        self.package = whole
        self.cluster.run(0, ["umount", "-l", "/mnt/efs"], check=True)
        (fakes / "mount").write_text("#!/bin/sh\nexit 32\n")
        self.assertIn("fs-1 cannot be mounted at /mnt/efs", self.finish(self.boot("Master", 0), 1))
        (fakes / "mount").write_text("#!/bin/sh\n" + FAKES["mount"])
        env = {n: v for n, v in os.environ.items() if n != "TUTTI_DATA"}
        self.assertIn("the environment has no AWS_DL_NODE_TYPE", self.finish(self.start(0, ["bash", BOOTSTRAP / "user_data.sh"], env), 1))
        # The stack got a signal of each host except the last one, and no other signal.
        self.assertEqual([s["Status"] for s in self.cloud.web.signals], ["FAILURE"] * 5)
        self.assertIn("no archive", self.cloud.web.signals[3]["Reason"])
        self.assertIn("cannot be mounted", self.cluster.log_of(0))
        self.assertNotIn(HANDLE_SECRET, self.cluster.log_of(0))


if __name__ == "__main__":
    if sys.version_info < (3, 11) or shutil.which("sshd", path="/usr/sbin") is None:
        netns_cluster.skip("needs Python 3.11 and openssh-server")
    if not DATA.is_dir():
        netns_cluster.skip("no real CIFAR-10; TUTTI_DATA names its folder")
    result = unittest.main(verbosity=2, exit=False).result
    if result.testsRun and len(result.skipped) == result.testsRun:
        netns_cluster.skip(result.skipped[0][1])
    sys.exit(not result.wasSuccessful())
