#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that the templates and programs have the parameters, outputs, options, files and words that the pages about AWS
name."""
import json
import os
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import templates  # noqa: E402
from aws_command import check_command, commands_of  # noqa: E402

INFRA = ROOT / "infra"
HOW_TO = ROOT / "docs" / "how-to"
CLUSTER, ELASTIC, BATCH = ((HOW_TO / f"{name}.md").read_text() for name in ("aws-cluster", "aws-elastic-cluster", "batch-job"))
TEXT = "\n".join([(INFRA / "README.md").read_text(), CLUSTER, ELASTIC, BATCH, (HOW_TO / "aws-troubleshooting.md").read_text(),
                  (ROOT / "docs" / "reference" / "aws.md").read_text()])


def template(name):
    return templates.load(INFRA / name)


class Readme(unittest.TestCase):
    def has(self, words, known, what):
        self.assertTrue(words, f"the pages name no {what}")
        self.assertEqual(sorted(set(words) - set(known)), [], f"unknown {what}; known are {sorted(known)}")

    def test_parameters_of_the_cluster(self):
        for name in ("cloudformation/cluster.yaml", "cloudformation/elastic.yaml"):
            known = template(name)["Parameters"]
            text = CLUSTER
            rows = re.search(r"^\| parameter .*?\n\n", text, re.M | re.S)[0]
            named = [word for row in rows.strip().splitlines()[2:]
                     for word in re.findall(r"`([A-Za-z]+)`", row.split("|")[1])]
            self.has(named + re.findall(r"ParameterKey=(\w+)", text), known, "parameters")
            self.assertEqual(sorted({n for n, p in known.items() if "Default" not in p} - set(named)), [], "not named, and needed")
        self.has(re.findall(r"`((?:Enable|Prepare)\w+)`", ELASTIC), known, "parameters")

    def test_quick_start_has_three_commands_for_a_cpu_type(self):
        """The page shows the command for the quota before the commands for stacks, and CloudFormation accepts their
        values."""
        quota, commands = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)[:2]
        self.assertIn("aws service-quotas get-service-quota", quota)
        lines = commands.replace("\\\n", " ").strip().splitlines()
        self.assertEqual([re.match(r"\S+( \w\S* \S+)?", line)[0].split()[0] for line in lines],
                         ["infra/package/make_package.sh", "aws", "aws"])
        self.assertIn("cloudformation create-stack", lines[2])
        given = dict(re.findall(r"ParameterKey=(\w+),ParameterValue=(\S+)", lines[2]))
        given["TuttiPackage"] = given["TuttiPackage"].replace("BUCKET", "my-bucket")
        cluster = template(re.search(r"file://infra/(\S+)", lines[2])[1])
        self.assertEqual(templates.refusals(cluster, given), [])
        self.assertFalse(templates.Stack(cluster, **given).condition("HasGpus"), given["InstanceType"])
        self.assertIn(f"Values={given['InstanceType']}", quota)

    def test_the_table_has_every_parameter_of_the_cluster(self):
        rows = re.search(r"^\| parameter .*?\n\n", CLUSTER, re.M | re.S)[0]
        known = template("cloudformation/cluster.yaml")["Parameters"]
        self.assertEqual(sorted(set(known) - set(re.findall(r"`(\w+)`", rows))), [])
        for name in ("InstanceType", "EFSThroughputMode", "PurchaseOption", "RootVolumeSize"):
            self.assertRegex(rows, rf"`{name}`.*\| [^|]*{known[name]['Default']}", name)

    def test_common_questions_have_an_answer(self):
        for word in ("ParallelCluster", "PCS", "HyperPod", "Trainium", "update-stack"):
            self.assertIn(word, TEXT)
        for name in ("PurchaseOption", "CapacityReservationId", "RunnableSeconds", "Efa"):
            self.assertIn(f"`{name}`", BATCH)
            self.assertIn(name, template("batch/batch.yaml")["Parameters"])

    def test_parameters_of_the_job(self):
        text = BATCH
        job = template("batch/job.yaml")["Parameters"]
        self.has(re.findall(r"ParameterKey=(\w+)", text), job, "parameters")
        self.assertEqual({n for n, p in job.items() if "Default" not in p} - set(re.findall(r"ParameterKey=(\w+)", text)), set())
        batch = template("batch/batch.yaml")["Parameters"]
        given = json.loads(re.search(r"^```json\n(.*?)^```", text, re.M | re.S)[1])
        keys = [p["ParameterKey"] for p in given["Parameters"]]
        self.has(keys + ["Attempts", "JoinTimeoutSeconds", "SshKeySecretArn", "Command"], batch, "parameters")
        self.assertEqual({n for n, p in batch.items() if "Default" not in p} - set(keys), set(), "needed and not given")
        for p in given["Parameters"]:
            allowed = batch[p["ParameterKey"]].get("AllowedValues")
            self.assertTrue(not allowed or p["ParameterValue"] in [str(a) for a in allowed], p)

    def test_outputs(self):
        cluster, elastic = (template(f"cloudformation/{n}.yaml")["Outputs"] for n in ("cluster", "elastic"))
        for word in ("LoginCommand", "FileSystemID", "VpcId", "SubnetId"):
            self.assertIn(word, TEXT)
            self.assertIn(word, cluster)
        for word in ("AddWorkerCommand", "ElasticWorkerLaunchTemplate"):
            self.assertIn(word, TEXT)
            self.assertIn(word, elastic)
        self.assertIn("StateMachine", template("batch/job.yaml")["Outputs"])
        for word in ("MountSource", "JobQueue"):
            self.assertIn(word, template("batch/batch.yaml")["Outputs"])

    def test_words_of_the_programs(self):
        hosts = "".join(p.read_text() for p in (INFRA / "bootstrap").iterdir() if p.suffix in (".sh", ".py"))
        states = re.findall(r"^\| `(\w+_QUEUED|ADDED|REMOVED)` ", TEXT, re.M)
        self.assertEqual(len(states), 4)
        for word in (*re.findall(r"`(DEEPLEARNING_\w+)`", TEXT), *states,
                     "/var/log/dl_cfn_setup.log", "prepare_data_success_", "/run/tutti-spot-notice", "WORKER_LAUNCH_TEMPLATE_ID",
                     "ELASTIC_WORKER_TAG", "cannot be fetched", "cannot be mounted", "prepare: ", "elastic_worker_status",
                     "/etc/profile.d/deeplearning.sh", "/opt/deeplearning/workers", "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2"):
            self.assertIn(word, TEXT)
            self.assertIn(word, hosts)
        self.assertIn("-aws-dl-cfn-elastic-worker", (INFRA / "cloudformation/elastic.yaml").read_text())
        self.assertIn("StackRemains", (INFRA / "batch/job.yaml").read_text())

    def test_every_page_spells_the_mount_point_alike(self):
        mount = "/" + template("cloudformation/cluster.yaml")["Parameters"]["EFSMountPoint"]["Default"]
        for page in (*(ROOT / "docs").rglob("*.md"), INFRA / "README.md"):
            for word in re.findall(r"/myefsvolume", page.read_text(), re.I):
                self.assertEqual(word, mount, page)

    def test_commands_of_aws(self):
        """Each command has a service, an operation and options that AWS's models have."""
        whole, named = commands_of(TEXT)
        self.assertGreater(len(whole), 15)
        self.assertGreater(len(named), 3)
        for command in whole + named:
            with self.subTest(command):
                check_command(command, whole=command in whole)

    def test_files(self):
        for path in re.findall(r"(?:^|[\s`=/])(infra/[\w./-]+\w)", TEXT):
            self.assertTrue((ROOT / path).exists(), path)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
