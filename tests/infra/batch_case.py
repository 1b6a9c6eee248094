# SPDX-License-Identifier: MIT
"""Runs the containers of a multi-node Batch job as hosts of a separate network: the entry point of the main node and
its children, each with the exit code that Batch would see. A stand-in for AWS provides keys, input and output."""
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
import netns_cluster  # noqa: E402

try:
    import boto3
    from moto.server import ThreadedMotoServer

    from strict_moto import strict
except ImportError as e:
    netns_cluster.skip(f"no {e.name} (./test.sh installs tests/infra/requirements.txt)")

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
SSH_PORT = netns_cluster.SSH_PORT
ENTRY = ROOT / "infra" / "batch" / "entry-point.sh"
CIFAR10, IMAGENET = (BUILD / "examples" / name for name in ("train_cifar10", "train_imagenet"))


def new_key(folder):
    path = Path(folder) / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.read_text()


class Node:
    """A container, which runs the entry point on a host."""

    def __init__(self, test, host, arguments, environment, nodes, main):
        self.host, self.name = host, BatchCase.cluster.names[host]
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
            variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = BatchCase.cluster.address(main)
        variables.update(environment)
        variables = {k: v for k, v in variables.items() if v is not None}
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(BatchCase.cluster.inside(host, [str(ENTRY), *arguments]), stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=subprocess.STDOUT, env=variables, start_new_session=True)

    def log(self):
        return self.out.read_text()

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def stop(self):
        """Stops the container as Batch does: with SIGTERM to its first process."""
        self.process.send_signal(signal.SIGTERM)


class BatchCase(unittest.TestCase):
    cluster = server = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tutti-batch-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.url = "http://%s:%d" % self.server.get_host_and_port()
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
        for host in range(self.cluster.count):
            for pid in self.cluster.pids(host):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.cluster.run(host, ["sh", "-c", "test ! -e /run/batch-ssh/sshd.pid || kill $(cat /run/batch-ssh/sshd.pid)"],
                    stderr=subprocess.DEVNULL)
            self.cluster.run(host, ["rm", "-rf", "/run/batch-ssh"])

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


def run():
    for program in (CIFAR10, IMAGENET):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} has not been built")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        with strict(), netns_cluster.NetnsCluster(3) as BatchCase.cluster:
            BatchCase.server = ThreadedMotoServer(ip_address=BatchCase.cluster.here, port=0, verbose=False)
            BatchCase.server.start()
            program = unittest.main(module="__main__", argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    except netns_cluster.Unavailable as e:
        netns_cluster.skip(str(e))
    finally:
        if BatchCase.server is not None:
            BatchCase.server.stop()
    netns_cluster.finish(program)
