# SPDX-License-Identifier: MIT
# waits
"""Tests infra/kubernetes: checks manifests with the schemas of Kubernetes, runs their commands, and trains in pods on
hosts that are network namespaces."""
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
import netns_cluster  # noqa: E402

FOLDER = ROOT / "infra" / "kubernetes"
PROGRAMS = {"/opt/tutti/bin/train_cifar10": BUILD / "examples" / "train_cifar10",
            "/opt/tutti/bin/tutti-launch": BUILD / "tools" / "tutti-launch"}
VERSIONS = ("1.31", "1.33", "1.37")
SMALL = ["--dataset=synthetic", "--num-examples=64", "--image-shape=3,16,16", "--depth=8", "--batch-size=8", "--threads=1"]


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(kind):
    return next(d for d in documents("job.yaml") if d["kind"] == kind)


def check(document):
    """Raises an error that names the faults of a document, if it has any."""
    if document["kind"] != "MPIJob":
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        return
    jsonschema.validate(document, json.loads((ROOT / "tests" / "infra" / "mpijob.schema.json").read_text()))
    for replicas in document["spec"]["mpiReplicaSpecs"].values():
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": replicas["template"]["spec"]})


WRONG = (jsonschema.ValidationError, kubernetes_validate.ValidationError)


class Manifests(unittest.TestCase):
    def test_manifests_are_valid(self):
        for file in sorted(FOLDER.glob("*.yaml")):
            for document in documents(file.name):
                with self.subTest(file=file.name, kind=document["kind"]):
                    check(document)

    def test_invalid_manifests_are_found(self):
        def change(document, *path, value):
            document = copy.deepcopy(document)
            at = document
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = value
            return document

        job, service, mpi = of_kind("Job"), of_kind("Service"), documents("mpijob.yaml")[0]
        pod = ("spec", "template", "spec")
        worker = ("spec", "mpiReplicaSpecs", "Worker", "template", "spec")
        for wrong in (change(job, "spec", "completion", value=4), change(job, "spec", "completions", value="4"),
                      change(job, *pod, "containers", 0, "arg", value=[]), change(job, *pod, "containers", 0, "args", value="a"),
                      change(job, *pod, "containers", 0, "env", 2, "value", value=4),
                      change(service, "spec", "selectors", value={}), change(mpi, "spec", "slots", value=1),
                      change(mpi, "spec", "mpiReplicaSpecs", "Server", value={}),
                      change(mpi, *worker, "containers", 0, "command", value="sshd"),
                      change(mpi, "spec", "runPolicy", "cleanPodPolicy", value="Never")):
            self.assertRaises(WRONG, check, wrong)

    def test_names_agree(self):
        job, mpi = of_kind("Job"), documents("mpijob.yaml")[0]
        pod = job["spec"]["template"]["spec"]
        node = pod["containers"][0]
        env = {e["name"]: e["value"] for e in node["env"]}
        self.assertEqual(job["spec"]["completions"], job["spec"]["parallelism"])
        self.assertEqual(env["PODS"], str(job["spec"]["completions"]))
        self.assertEqual(env["JOB"], job["metadata"]["name"])
        self.assertEqual(pod["subdomain"], of_kind("Service")["metadata"]["name"])
        self.assertEqual(env["SERVICE"], pod["subdomain"])
        self.assertEqual(of_kind("Service")["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        self.assertEqual(job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"], node["name"])
        volumes = {v["name"]: v for v in pod["volumes"]}
        self.assertEqual({m["name"] for m in node["volumeMounts"]}, set(volumes))
        self.assertEqual(volumes["script"]["configMap"]["name"], of_kind("ConfigMap")["metadata"]["name"])
        claim = of_kind("PersistentVolumeClaim")["metadata"]["name"]
        self.assertEqual(volumes["runs"]["persistentVolumeClaim"]["claimName"], claim)
        worker = mpi["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
        self.assertEqual(worker["volumes"][0]["persistentVolumeClaim"]["claimName"], claim)

    def test_script_is_clean(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck (Debian: apt-get install shellcheck)")
        done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=of_kind("ConfigMap")["data"]["node.sh"], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout)


class Commands(unittest.TestCase):
    """Runs those commands of the manifests that this machine can run."""

    def setUp(self):
        for program in PROGRAMS.values():
            if not os.access(program, os.X_OK):
                self.skipTest(f"no {program}; the examples or CLI11 are missing")
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-kubernetes-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("TUTTI_", "SLURM_", "OMPI_", "PMI"))}
        self.environment["TUTTI_STATE_DIR"] = str(self.folder / "state")

    def here(self, words, *more):
        """Returns a command of the manifests, changed to this machine's programs, folders and data."""
        words = [str(PROGRAMS.get(w, w)).replace("/runs", str(self.folder)) for w in words]
        return [w for w in words if not w.startswith("--data-dir")] + SMALL + list(more)

    def run_command(self, argv):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=self.folder, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_options_of_the_job(self):
        node = of_kind("Job")["spec"]["template"]["spec"]["containers"][0]
        self.run_command(self.here([PROGRAMS["/opt/tutti/bin/tutti-launch"], "-n", "2", *node["args"]], "--dry-run"))

    def test_options_of_the_mpi_job(self):
        launcher = documents("mpijob.yaml")[0]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        (self.folder / "hostfile").write_text("localhost slots=2\n")
        words = [w.replace("/etc/mpi/hostfile", str(self.folder / "hostfile")) for w in launcher["command"] + launcher["args"]]
        said = self.run_command(self.here(words, "--epochs=1"))
        self.assertIn("2 workers on 1 host, mpi", said)
        self.assertIn('"world":2,', (self.folder / "run" / "log.jsonl").read_text())


class Pods(Commands):
    """Runs node.sh on hosts that are network namespaces, one for each pod."""

    def setUp(self):
        super().setUp()
        self.running = []
        try:
            self.cluster = netns_cluster.NetnsCluster(2)
            self.cluster.__enter__()
        except netns_cluster.Unavailable as e:
            self.skipTest(str(e))
        self.addCleanup(self.cluster.close)
        self.addCleanup(self.end)
        script = of_kind("ConfigMap")["data"]["node.sh"]
        for path, program in PROGRAMS.items():
            script = script.replace(path, str(program))
        (self.folder / "node.sh").write_text(script)
        for key in ("id", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)

    def end(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()

    test_options_of_the_job = test_options_of_the_mpi_job = None

    def pod(self, index, *more, **variables):
        node = of_kind("Job")["spec"]["template"]["spec"]["containers"][0]
        home = self.folder / f"home-{index}"
        home.mkdir(exist_ok=True)
        env = {e["name"]: e["value"] for e in node["env"]}
        env |= {"JOB": f"tutti-{self.cluster.id}", "SERVICE": "", "PODS": "2", "KEYS": str(self.folder), "HOME": str(home),
                "JOB_COMPLETION_INDEX": str(index), **variables}
        command = ["sh", str(self.folder / "node.sh"), *self.here(node["args"], *more)]
        self.running.append(subprocess.Popen(
            self.cluster.inside(index, ["sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *command]), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment | env))
        return self.running[-1]

    def test_a_job_trains_on_all_pods(self):
        first, other = self.pod(0, "--epochs=1"), self.pod(1)
        said = first.communicate(timeout=900)[0]
        self.assertEqual(first.returncode, 0, said)
        self.assertIn("2 workers on 2 hosts", said)
        self.assertIn('"world":2,', (self.folder / "run" / "log.jsonl").read_text())
        self.assertIsNone(other.poll())
        other.send_signal(signal.SIGTERM)
        self.assertEqual(other.wait(30), 0)

    def test_pods_that_are_asked_to_stop_save_first(self):
        first, other = self.pod(0, "--epochs=100000", "--disp-batches=1"), self.pod(1)
        log = self.folder / "run" / "log.jsonl"
        end = time.monotonic() + 120
        while not (log.exists() and '"step":3,' in log.read_text()):
            self.assertIsNone(first.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        # The other pod gets the signal first, while the rank of this pod is in the middle of a step.
        for pod in (other, first):
            pod.send_signal(signal.SIGTERM)
        said = first.communicate(timeout=300)[0]
        self.assertEqual(first.returncode, 143, said)
        self.assertEqual(other.wait(30), 0)
        self.assertTrue(list((self.folder / "run" / "checkpoints").glob("step-*")), said)

    def test_pod_that_never_starts_is_named(self):
        first = self.pod(0, JOIN_TIMEOUT="2")
        said = first.communicate(timeout=300)[0]
        self.assertEqual(first.returncode, 5, said)
        self.assertIn(f"[tutti-{self.cluster.id}-1] expected it to answer by ssh", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
