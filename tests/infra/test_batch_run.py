#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Containers of a multi-node Batch job as hosts of a network of their own: their entry point with the main node and its
children, each with the code that Batch would see; keys, input and output come from a stand-in for AWS."""
import io
import logging
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
import bed as bed_module  # noqa: E402

try:
    import boto3
    from moto.server import ThreadedMotoServer
except ImportError as e:
    bed_module.skip(f"no {e.name} (./test.sh installs tests/infra/requirements.txt)")

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
ENTRY = ROOT / "infra" / "batch" / "entry-point.sh"
CIFAR10, IMAGENET = (BUILD / "examples" / name for name in ("train_cifar10", "train_imagenet"))
BED = SERVER = None
# Programs that say where they run.
WHERE = ["sh", "-c", 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname), TUTTI_X=$TUTTI_X"']


def new_key(folder):
    path = Path(folder) / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.read_text()


class Node:
    """A container: its entry point on a host."""

    def __init__(self, test, host, arguments, environment, nodes, main):
        self.host, self.name = host, BED.names[host]
        self.state = test.folder / f"node{host}"
        self.state.mkdir(exist_ok=True)
        self.out = self.state / "log"
        variables = {
            "PATH": f"{BUILD / 'examples'}:{os.environ['PATH']}", "HOME": "/root", "PYTHON": sys.executable,
            "AWS_ENDPOINT_URL": test.url, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "very-secret", "BATCH_STATE_DIR": str(self.state), "SCRATCH_DIR": str(self.state),
            "AWS_BATCH_JOB_ID": f"{test.job}#{host}", "AWS_BATCH_JOB_NODE_INDEX": str(host),
            "AWS_BATCH_JOB_NUM_NODES": str(nodes), "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
            "RUNS_DIR": str(test.folder / "runs"), "JOIN_TIMEOUT": "60"}
        if host != main:
            variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = BED.address(main)
        variables.update(environment)
        variables = {k: v for k, v in variables.items() if v is not None}
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(BED.inside(host, [str(ENTRY), *arguments]), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=subprocess.STDOUT, env=variables, start_new_session=True)

    def log(self):
        return self.out.read_text()

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def stop(self):
        """As Batch does: SIGTERM to the container's first process."""
        self.process.send_signal(signal.SIGTERM)


class BatchRun(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tutti-batch-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.url = "http://%s:%d" % SERVER.get_host_and_port()
        self.job = f"job-{self._testMethodName.replace('_', '-')}"
        self.nodes = []
        self.addCleanup(self.end_nodes)
        aws = {"endpoint_url": self.url, "region_name": "us-east-1",
               "aws_access_key_id": "id", "aws_secret_access_key": "very-secret"}
        self.s3, self.ssm, self.secrets = (boto3.client(s, **aws) for s in ("s3", "ssm", "secretsmanager"))
        self.key = new_key(self.folder)
        self.ssm.put_parameter(Name="/job/key", Value=self.key, Type="SecureString", Overwrite=True)

    def end_nodes(self):
        for node in self.nodes:
            try:
                node.process.kill()
            except ProcessLookupError:
                pass
            node.process.wait(10)
        for host in range(BED.count):
            for pid in BED.pids(host):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            BED.run(host, ["sh", "-c", "test ! -e /run/batch-ssh/sshd.pid || kill $(cat /run/batch-ssh/sshd.pid)"],
                    stderr=subprocess.DEVNULL)
            BED.run(host, ["rm", "-rf", "/run/batch-ssh"])

    def start(self, host, *program, nodes=2, main=0, key=("--key", "/job/key"), **environment):
        self.nodes.append(Node(self, host, [*key, *map(str, program)], environment, nodes, main))
        return self.nodes[-1]

    def say(self):
        return "\n".join(f"--- {n.name}\n{n.log()}" for n in self.nodes)

    def ends(self, node, code, seconds=60):
        try:
            got = node.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"{node.name} does not end\n{self.say()}")
        self.assertEqual(got, code, self.say())
        for n in self.nodes:
            self.assertNotIn("very-secret", n.log())
            for line in self.key.splitlines()[1:-1]:
                self.assertNotIn(line, n.log())
        return node.log()

    def wait_for(self, node, text, seconds=30):
        end = time.monotonic() + seconds
        while text not in node.log():
            if time.monotonic() > end or node.process.poll() is not None:
                self.fail(f"{text!r} is not in\n{self.say()}")
            time.sleep(0.05)

    def wait_for_line(self, node, line, seconds=30):
        path = node.state / "hostfile"
        end = time.monotonic() + seconds
        while not path.exists() or line not in path.read_text():
            self.assertLess(time.monotonic(), end, self.say())
            time.sleep(0.05)

    def bucket(self):
        self.s3.create_bucket(Bucket=self.job.lower())
        return self.job.lower()

    # Nodes.
    def test_late_and_duplicate_children(self):
        # The main node is neither the first one to come nor the one with index 0.
        children = [self.start(0, *WHERE, nodes=3, main=1)]
        self.wait_for(children[0], "the main node does not answer yet")
        main = self.start(1, *WHERE, nodes=3, main=1, TUTTI_X="y", EXTRA_MPI_PARAMS="-x NOTHING_ELSE=1")
        self.wait_for_line(main, BED.address(0))
        hostfile = main.state / "hostfile"
        own = f"{BED.address(0)} slots={os.cpu_count()}\n"
        with open(hostfile, "a") as out:
            out.write(f"rubbish; reboot\n{own}256.0.0.1 slots=2\n{own}{BED.address(0)} slots=1\n10.0.0.1 slots=0\n")
        time.sleep(1.5)  # A count of lines, or of lines that differ from the one before, would have enough.
        self.assertIsNone(main.process.poll(), self.say())
        self.assertNotIn("All nodes", main.log())
        children.append(self.start(2, *WHERE, nodes=3, main=1))
        log = self.ends(main, 0)
        slots = os.cpu_count()
        self.assertEqual((main.state / "hostfile-deduped").read_text().split("\n")[:3],
                         [f"{BED.address(h)} slots={slots}" for h in (1, 0, 2)])
        for progress in ("1 out of 3 nodes joined, will check again in 1 second", "2 out of 3", "3 out of 3",
                         "All nodes successfully joined", 'got "rubbish; reboot"', 'got "256.0.0.1 slots=2"'):
            self.assertIn(progress, log)
        for rank in range(3 * slots):
            self.assertIn(f"rank {rank} of {3 * slots} on {BED.names[(1, 0, 2)[rank // slots]]}, TUTTI_X=y\n", log)
        # Batch stops the children when the main node has ended.
        for child in children:
            self.assertIsNone(child.process.poll(), self.say())
            child.stop()
            self.ends(child, 143, 20)

    def test_slots_are_gpus_where_there_are_some(self):
        fakes, devices = self.folder / "fakes", self.folder / "dev"
        for folder in (fakes, devices):
            folder.mkdir()
        (fakes / "nvidia-smi").write_text("#!/bin/sh\n")
        (fakes / "nvidia-smi").chmod(0o755)
        for name in ("nvidia0", "nvidia1", "nvidiactl"):
            (devices / name).touch()
        done = BED.run(0, ["mount", "-t", "overlay", "-o", f"lowerdir={devices}:/dev", "overlay", "/dev"], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"no overlay is allowed here: {done.stderr.strip()}")
        self.addCleanup(BED.run, 0, ["umount", "/dev"])
        gpus = len({p.name for p in Path("/dev").glob("nvidia[0-9]*")} | {"nvidia0", "nvidia1"})
        log = self.ends(self.start(0, "true", nodes=1, PATH=f"{fakes}:{os.environ['PATH']}"), 0)
        self.assertIn(f"the main node: {BED.address(0)} slots={gpus}\n", log)
        self.assertIn(f" -np {gpus} ", log)

    def test_failing_program(self):
        self.start(1, MAIN_TIMEOUT="2")
        main = self.start(0, "sh", "-c", "[ $OMPI_COMM_WORLD_RANK != 3 ] || exit 7; sleep 30", MPI_GPUS="4")
        self.assertIn("the training ended with code 7", self.ends(main, 7))
        # Nobody stops this child: it ends by itself, without the main node.
        self.assertIn(f"expected {BED.address(0)} to be there", self.ends(self.nodes[0], 5))

    def test_child_that_never_comes(self):
        self.start(1, nodes=3)
        main = self.start(0, *WHERE, nodes=3, JOIN_TIMEOUT="6")
        log = self.ends(main, 5)
        self.assertIn(f"[nodes] expected 3 nodes within 6 s, got 2: {BED.address(0)} {BED.address(1)}.", log)

    def test_main_node_that_never_comes(self):
        self.assertIn("[main node] expected", self.ends(self.start(1, JOIN_TIMEOUT="3"), 5))

    def test_who_has_another_key_is_no_node(self):
        other = tempfile.mkdtemp(dir=self.folder)
        self.ssm.put_parameter(Name="/other/key", Value=new_key(other), Type="SecureString", Overwrite=True)
        child = self.start(1, JOIN_TIMEOUT="5", key=("--key", "/other/key"))
        main = self.start(0, *WHERE, JOIN_TIMEOUT="5")
        self.ends(main, 5)
        self.assertIn("answer within", self.ends(child, 5))
        self.assertNotIn(BED.address(1), (main.state / "hostfile").read_text())

    def test_who_passes_for_the_main_node(self):
        # The bed's own sshd would let this key in, and has another one itself.
        public = subprocess.run(["ssh-keygen", "-y", "-f", self.folder / "key"], capture_output=True, text=True, check=True).stdout
        with open(BED.folder / "authorized_keys", "a") as out:
            out.write(public)
        log = self.ends(self.start(1, JOIN_TIMEOUT="2", SSH_PORT=str(bed_module.SSH_PORT)), 5)
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

    def test_program_that_was_killed(self):
        self.ends(self.start(0, "sh", "-c", "kill -KILL $$", nodes=1), 137)

    def test_missing_exit_code(self):
        main = self.start(0, *WHERE)
        self.wait_for(main, "1 out of 2 nodes joined")
        ran = [p for p in BED.pids(0) if b"mpi-run.sh" in Path(f"/proc/{p}/cmdline").read_bytes()]
        for pid in ran:
            os.kill(pid, signal.SIGKILL)
        self.assertIn("expected the training's exit code, got none", self.ends(main, 1))

    # The key.
    def test_keys(self):
        for key in ((), ("--key", ""), ("--key", "Ref::SshKey")):
            self.assertIn("[key] expected the name of the job's ssh key, got none.", self.ends(
                self.start(0, *WHERE, nodes=1, key=key), 2, 10))
        self.assertIn("ssm:GetParameter on /no/such/key", self.ends(
            self.start(0, *WHERE, nodes=1, key=("--key", "/no/such/key")), 3))
        self.ssm.put_parameter(Name="/bad/key", Value="very-secret, no key", Type="SecureString", Overwrite=True)
        self.assertIn("expected a private key", self.ends(
            self.start(0, *WHERE, nodes=1, key=("--key", "/bad/key")), 3))
        arn = self.secrets.create_secret(Name=self.job, SecretString=self.key)["ARN"]
        self.ends(self.start(0, "true", nodes=1, key=(), SSH_KEY=arn), 0)
        self.assertIn("an option that does not exist", self.ends(self.start(0, nodes=1, key=("--kye", "x")), 2))

    # Input and output.
    def archive(self, **files):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
        return out.getvalue()

    def test_input_and_output(self):
        bucket = self.bucket()
        self.s3.put_object(Bucket=bucket, Key="in/data.tar.gz", Body=self.archive(**{"set/words": "hello"}))
        self.s3.put_object(Bucket=bucket, Key="in/sub/plain", Body=b"plain")
        self.start(1, S3_INPUT=f"s3://{bucket}/in/")
        script = ('cat $SCRATCH_DIR/set/words $SCRATCH_DIR/sub/plain; echo; mkdir -p $RUNS_DIR/$JOB; '
                  'echo result >$RUNS_DIR/$JOB/log')
        main = self.start(0, "sh", "-c", script, S3_INPUT=f"s3://{bucket}/in/", S3_OUTPUT=f"s3://{bucket}/out",
                          MPI_GPUS="1", EXTRA_MPI_PARAMS=f"-x JOB={self.job}")
        self.assertIn("helloplain", self.ends(main, 0))
        body = self.s3.get_object(Bucket=bucket, Key=f"out/batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            self.assertEqual(tar.extractfile(f"{self.job}/log").read(), b"result\n")

    def test_input_that_a_child_cannot_have(self):
        bucket = self.bucket()
        child = self.start(1, S3_INPUT=f"s3://{bucket}/nothing.tar.gz")
        main = self.start(0, *WHERE)
        self.assertIn(f"[node {BED.address(1)}] expected its part of S3_INPUT", self.ends(main, 3))
        self.assertIn(f"s3:GetObject on arn:aws:s3:::{bucket}/nothing.tar.gz", self.ends(child, 3))

    def test_bad_input_and_output(self):
        bucket = self.bucket()
        for name, body in (("up.tar", self.archive(**{"../up": "x"})), ("cut.tar.gz", self.archive(a="x" * 9999)[:-20]),
                           ("no.tar", b"no archive")):
            self.s3.put_object(Bucket=bucket, Key=name, Body=body)
            log = self.ends(self.start(0, "true", nodes=1, S3_INPUT=f"s3://{bucket}/{name}"), 3)
            self.assertIn(f"[S3_INPUT s3://{bucket}/{name}] expected", log)
        self.assertFalse((self.folder / "up").exists())
        for name in ("both/a", "both/a/b"):  # one is a file where the other asks for a folder
            self.s3.put_object(Bucket=bucket, Key=name, Body=b"x")
        log = self.ends(self.start(0, "true", nodes=1, S3_INPUT=f"s3://{bucket}/both/"), 3)
        self.assertIn("[fetch] expected files that can be written", log)
        self.assertIn("expected s3://BUCKET/KEY", self.ends(self.start(0, "true", nodes=1, S3_INPUT="/data"), 3))
        # What was trained and did not arrive is no success; a failure stays what it was.
        (self.folder / "runs" / self.job).mkdir(parents=True)
        for program, code in (("true", 3), ("false", 1)):
            log = self.ends(self.start(0, program, nodes=1, S3_OUTPUT="s3://no-such-bucket-here/x"), code)
            self.assertIn("s3:PutObject on arn:aws:s3:::no-such-bucket-here/x/batch_output_", log)

    # Training.
    SMALL = {"TUTTI_DATASET": "synthetic", "TUTTI_NUM_EXAMPLES": "128", "TUTTI_IMAGE_SHAPE": "3,16,16", "TUTTI_DEPTH": "8",
             "TUTTI_THREADS": "1", "BATCH_SIZE": "16", "MPI_GPUS": "2", "EXTRA_MPI_PARAMS": "-map-by ppr:1:node"}

    def test_training(self):
        bucket = self.bucket()
        small = {**self.SMALL, "TUTTI_EPOCHS": "2"}
        self.start(1)
        main = self.start(0, "train_cifar10", S3_OUTPUT=f"s3://{bucket}", **small)
        log = self.ends(main, 0, 120)
        self.assertIn("strategy mpi, 2 ranks", log)
        self.assertIn("32 images an update", log)
        self.assertIn("done: 8 steps", log)
        # M99: what TensorBoard reads lies on the file system that the nodes share.
        run = self.folder / "runs" / self.job
        self.assertEqual(len(list(run.glob("events.out.tfevents.*"))), 1)
        body = self.s3.get_object(Bucket=bucket, Key=f"batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            self.assertIn(f"{self.job}/checkpoints/step-000000008/model.safetensors", tar.getnames())
        # Batch starts a failed job again under the same number: it goes on.
        self.end_nodes()
        self.start(1)
        again = self.start(0, "train_cifar10", **{**small, "TUTTI_EPOCHS": "3"})
        self.assertIn("done: 12 steps", self.ends(again, 0, 120))
        self.assertEqual(len(list(run.glob("events.out.tfevents.*"))), 2)

    def test_option_that_does_not_exist(self):
        self.start(1)
        log = self.ends(self.start(0, "train_cifar10", **self.SMALL, TUTTI_EPOHCS="2"), 2)
        self.assertIn("did you mean TUTTI_EPOCHS", log)

    def test_stopped_by_batch(self):
        bucket = self.bucket()
        child = self.start(1)
        main = self.start(0, "train_cifar10", **self.SMALL, TUTTI_EPOCHS="100000", S3_OUTPUT=f"s3://{bucket}/o/")
        self.wait_for(main, "epoch 2/100000", 60)
        main.stop()
        child.stop()
        log = self.ends(main, 143, 30)
        self.ends(child, 143, 30)
        # It was told, and not killed with mpirun at the end of STOP_TIMEOUT.
        self.assertNotIn("[stop]", log)
        self.assertRegex(log, r"interrupted after step \d+, state saved")
        self.assertIn("the training ended with code 143", log)
        body = self.s3.get_object(Bucket=bucket, Key=f"o/batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            saved = [n for n in tar.getnames() if n.endswith("/COMPLETE")]
        steps = [int(p.parent.name[5:]) for p in (self.folder / "runs" / self.job).glob("checkpoints/step-*/COMPLETE")]
        self.assertEqual(saved, [f"{self.job}/checkpoints/step-{max(steps):09}/COMPLETE"])

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

    def test_imagenet_by_environment(self):
        self.start(1)
        main = self.start(0, BATCH_SIZE="4", MPI_GPUS="2", EXTRA_MPI_PARAMS="-map-by ppr:1:node", TUTTI_SYNTHETIC="1",
                          TUTTI_NUM_EXAMPLES="64", TUTTI_MODEL="resnet18", TUTTI_IMAGE_SIZE="32", TUTTI_NUM_CLASSES="10",
                          TUTTI_EPOCHS="2", TUTTI_WARMUP_EPOCHS="1", TUTTI_THREADS="1", TUTTI_DISPLAY_EVERY="4")
        log = self.ends(main, 0, 120)
        self.assertRegex(log, r"(?m)^ +16 +2\.0 ")
        self.assertTrue(list((self.folder / "runs" / self.job / "checkpoints").glob("step-*16/COMPLETE")))


def run():
    global BED, SERVER
    for program in (CIFAR10, IMAGENET):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} has not been built")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        with bed_module.Bed(3) as BED:
            SERVER = ThreadedMotoServer(ip_address=BED.here, port=0, verbose=False)
            SERVER.start()
            program = unittest.main(module="__main__", argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    except bed_module.Unavailable as e:
        bed_module.skip(str(e))
    finally:
        if SERVER is not None:
            SERVER.stop()
    left = bed_module.traces(os.getpid())
    if left:
        print("left of the bed:", left)
    sys.exit(0 if program.result.wasSuccessful() and not left else 1)


if __name__ == "__main__":
    run()
