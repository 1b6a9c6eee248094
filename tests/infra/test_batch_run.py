#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests the nodes of a multi-node Batch job: their rendezvous, their variables, the job's key."""
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from batch_case import SSH_PORT, BatchCase, new_key, run

# Programs that print the rank and host on which they run.
WHERE = ["sh", "-c", 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname), TUTTI_X=$TUTTI_X"']


class Nodes(BatchCase):
    def test_late_and_duplicate_children(self):
        # The main node is neither the first node that starts nor the one with index 0.
        children = [self.start(0, *WHERE, nodes=3, main=1)]
        self.wait_for(children[0], "the main node does not answer yet")
        main = self.start(1, *WHERE, nodes=3, main=1, TUTTI_X="y", EXTRA_MPI_PARAMS="-x NOTHING_ELSE=1")
        self.wait_for_line(main, self.cluster.address(0))
        hostfile = main.state / "hostfile"
        own = f"{self.cluster.address(0)} slots={os.cpu_count()}\n"
        with open(hostfile, "a") as out:
            out.write(f"rubbish; reboot\n{own}256.0.0.1 slots=2\n{own}{self.cluster.address(0)} slots=1\n10.0.0.1 slots=0\n")
        time.sleep(1.5)  # all nodes would seem to be present if the main node counted lines, or different lines
        self.assertIsNone(main.process.poll(), self.say())
        self.assertNotIn("All nodes", main.log())
        children.append(self.start(2, *WHERE, nodes=3, main=1))
        log = self.ends(main, 0)
        slots = os.cpu_count()
        self.assertEqual((main.state / "hostfile-deduped").read_text().split("\n")[:3],
                         [f"{self.cluster.address(h)} slots={slots}" for h in (1, 0, 2)])
        for progress in ("1 out of 3 nodes joined, will check again in 1 second", "2 out of 3", "3 out of 3",
                         "All nodes successfully joined", 'got "rubbish; reboot"', 'got "256.0.0.1 slots=2"'):
            self.assertIn(progress, log)
        for rank in range(3 * slots):
            self.assertIn(f"rank {rank} of {3 * slots} on {self.cluster.names[(1, 0, 2)[rank // slots]]}, TUTTI_X=y\n", log)
        # Batch stops the children after the main node has ended.
        for child in children:
            self.assertIsNone(child.process.poll(), self.say())
            child.stop()
            self.ends(child, 143, 20)

    def test_slots_are_gpus_if_there_are_some(self):
        fakes, devices = self.folder / "fakes", self.folder / "dev"
        for folder in (fakes, devices):
            folder.mkdir()
        (fakes / "nvidia-smi").write_text("#!/bin/sh\n")
        (fakes / "nvidia-smi").chmod(0o755)
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            (devices / name).touch()
        done = self.cluster.run(0, ["mount", "-t", "overlay", "-o", f"lowerdir={devices}:/dev", "overlay", "/dev"], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"no overlay is allowed here: {done.stderr.strip()}")
        self.addCleanup(self.cluster.run, 0, ["umount", "/dev"])
        gpus = len({p.name for p in Path("/dev").glob("nvidia[0-9]*")} | {"nvidia0", "nvidia1"})
        log = self.ends(self.start(0, "true", nodes=1, PATH=f"{fakes}:{os.environ['PATH']}"), 0)
        self.assertIn(f"the main node: {self.cluster.address(0)} slots={gpus}\n", log)
        self.assertIn(f" -np {gpus} ", log)

    def test_failing_program(self):
        self.start(1, MAIN_TIMEOUT="2")
        main = self.start(0, "sh", "-c", "[ $OMPI_COMM_WORLD_RANK != 3 ] || exit 7; sleep 30", MPI_GPUS="4")
        self.assertIn("the training ended with code 7", self.ends(main, 7))
        # Batch does not stop this child. It ends by itself, because the main node does not answer.
        self.assertIn(f"expected {self.cluster.address(0)} to answer", self.ends(self.nodes[0], 5))

    def test_child_that_never_reports(self):
        self.start(1, nodes=3)
        main = self.start(0, *WHERE, nodes=3, JOIN_TIMEOUT="6")
        log = self.ends(main, 5)
        self.assertIn(f"[nodes] expected 3 nodes within 6 s, got 2: {self.cluster.address(0)} {self.cluster.address(1)}.", log)

    def test_main_node_that_never_answers(self):
        self.assertIn("[main node] expected", self.ends(self.start(1, JOIN_TIMEOUT="3"), 5))

    def test_host_with_another_key_is_not_a_node(self):
        other = tempfile.mkdtemp(dir=self.folder)
        self.ssm.put_parameter(Name="/other/key", Value=new_key(other), Type="SecureString", Overwrite=True)
        child = self.start(1, JOIN_TIMEOUT="5", key=("--key", "/other/key"))
        main = self.start(0, *WHERE, JOIN_TIMEOUT="5")
        self.ends(main, 5)
        self.assertIn("answer within", self.ends(child, 5))
        self.assertNotIn(self.cluster.address(1), (main.state / "hostfile").read_text())

    def test_host_that_poses_as_the_main_node(self):
        # The cluster's own sshd would accept this key, but has another host key.
        public = subprocess.run(["ssh-keygen", "-y", "-f", self.folder / "key"], capture_output=True, text=True, check=True).stdout
        with open(self.cluster.folder / "authorized_keys", "a") as out:
            out.write(public)
        log = self.ends(self.start(1, JOIN_TIMEOUT="2", SSH_PORT=str(SSH_PORT)), 5)
        self.assertIn("Host key verification failed", log)

    def test_variables(self):
        for name in ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_MAIN_NODE_INDEX"):
            log = self.ends(self.start(0, **{name: None}), 2)
            self.assertIn(f"[{name}] expected a number", log)
            self.assertIn("usage:", log)
        self.assertIn("[AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS]", self.ends(
            self.start(1, AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=None), 2))
        self.assertIn("[AWS_BATCH_JOB_NUM_NODES]", self.ends(self.start(0, AWS_BATCH_JOB_NUM_NODES="2; reboot"), 2))
        self.assertIn("[INTERFACE]", self.ends(self.start(0, INTERFACE="eth7"), 2))
        self.assertIn("[program] expected no-such-program", self.ends(self.start(0, "no-such-program"), 2))
        self.assertIn("[MPI_GPUS] expected at most", self.ends(self.start(0, *WHERE, nodes=1, MPI_GPUS="999"), 2))

    def test_missing_data(self):
        """The job folder does not exist, as on a node that could not mount its file system."""
        log = self.ends(self.start(0, "true", nodes=1, JOB_DIR="/no/such/folder"), 3)
        self.assertIn("[JOB_DIR] expected the folder /no/such/folder, got no folder.", log)
        child, main = self.start(1, JOB_DIR="/no/such/folder"), self.start(0, "true")
        self.assertIn(f"[node {self.cluster.address(1)}] expected its data, got exit code 3", self.ends(main, 3))
        self.assertIn("[JOB_DIR] expected the folder", self.ends(child, 3))

    def test_one_node(self):
        """A job of a single container, to which Batch gives no number of nodes."""
        none = {f"AWS_BATCH_JOB_{name}": None for name in ("NODE_INDEX", "NUM_NODES", "MAIN_NODE_INDEX")}
        log = self.ends(self.start(0, "sh", "-c", "echo it runs", nodes=1, key=("--one-node", "--key", "/job/key", "--"), **none), 0)
        self.assertIn("it runs", log)
        self.assertIn("node 0 of 1, the main node", log)
        self.assertIn("usage:", self.ends(self.start(0, "true", nodes=1, **none), 2))

    def test_program_that_was_killed(self):
        self.ends(self.start(0, "sh", "-c", "kill -KILL $$", nodes=1), 137)

    def test_missing_exit_code(self):
        main = self.start(0, *WHERE)
        self.wait_for(main, "1 out of 2 nodes joined")
        ran = [p for p in self.cluster.pids(0) if b"mpi-run.sh" in Path(f"/proc/{p}/cmdline").read_bytes()]
        for pid in ran:
            os.kill(pid, signal.SIGKILL)
        self.assertIn("expected the training's exit code, got no file", self.ends(main, 1))

    def test_keys(self):
        for key in ((), ("--key", ""), ("--key", "Ref::SshKey")):
            self.assertIn("[key] expected the name of the job's ssh key, got no name.", self.ends(
                self.start(0, *WHERE, nodes=1, key=key), 2, 10))
        self.assertIn("ssm:GetParameter on /no/such/key", self.ends(
            self.start(0, *WHERE, nodes=1, key=("--key", "/no/such/key")), 3))
        self.ssm.put_parameter(Name="/bad/key", Value="very-secret, no key", Type="SecureString", Overwrite=True)
        self.assertIn("expected a private key", self.ends(
            self.start(0, *WHERE, nodes=1, key=("--key", "/bad/key")), 3))
        arn = self.secrets.create_secret(Name=self.job, SecretString=self.key)["ARN"]
        self.ends(self.start(0, "true", nodes=1, key=(), SSH_KEY=arn), 0)
        self.assertIn("an option that does not exist", self.ends(self.start(0, nodes=1, key=("--kye", "x")), 2))

    def test_program_that_does_not_stop(self):
        main = self.start(0, "sh", "-c", "trap '' TERM; echo runs; while :; do sleep 1; done", nodes=1, STOP_TIMEOUT="1")
        self.wait_for(main, "\nruns\n")
        main.stop()
        self.assertIn("[stop] expected the program to end within 1 s", self.ends(main, 143, 20))

    def test_stopped_while_waiting(self):
        main = self.start(0, *WHERE)
        self.wait_for(main, "1 out of 2 nodes joined")
        main.stop()
        self.ends(main, 143, 10)


if __name__ == "__main__":
    run()
