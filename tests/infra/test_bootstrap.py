#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that setup_host.py makes masters and workers from instances. moto's server is the cloud; each host writes below
a folder."""
import json
import os
import re
import sys
import unittest
import unittest.mock

from boot import Boot, setup_host
from cloud import BOOTSTRAP, HANDLE_SECRET, SECRET, TOKEN

from service_models import check

import host_files
import host_setup
import queue_messages
from instance_metadata import Metadata

LOG = "var/log/dl_cfn_setup.log"


class Cluster(Boot):
    def test_a_master_and_two_workers(self):
        # Texts that are no messages of this stack come first.
        self.stack.send("Master", "no JSON \u2603")
        self.stack.send("Master", [1])
        self.stack.send("Master", {"event": "asg-setup", "status": "failure", "asg": self.stack.groups["Worker"], "min": 0, "desired": 1,
                                   "max": 1, "launched": 1})
        self.stack.send("Master", {"event": "asg-setup", "status": "success", "asg": self.stack.groups["Worker"], "min": "0"})
        self.stack.send("Master", {"event": "asg-setup", "status": "success", "asg": "other-WorkerAutoScalingGroup-1", "min": 9,
                                   "desired": 9, "max": 9, "launched": 9})
        self.stack.send("Worker", {"event": "worker-setup", "master-ip": "10.1.1.1", "worker-ips": ["10.1.1.1"]})
        self.stack.send("Worker", '{"event": "worker-setup", "master-ip": "10.99.0.7", "worker-ips": ["10.99.0.7", "$(reboot)"]}')
        self.launch("Master", 0)
        self.launch("Worker", 1)
        self.launch("Worker", 2)
        (self.root(1) / "etc").mkdir(parents=True)
        (self.root(1) / "etc/hosts").write_text("127.0.0.1 localhost\n10.1.1.1 deeplearning-worker7\n")
        # A sender may write SUCCESS in capitals, and may send the message twice.
        self.stack.asg_setup("Master", 1, 1)
        self.stack.send("Master", {"event": "asg-setup", "status": "SUCCESS", "asg": self.stack.groups["Worker"], "min": 0, "desired": 2,
                                   "max": 2, "launched": 2})
        self.stack.asg_setup("Worker", 0, 2)
        gpus = self.folder / "gpus"
        gpus.mkdir()
        (gpus / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: a'; echo 'GPU 1: b'; echo '  MIG 1'\n")
        (gpus / "nvidia-smi").chmod(0o755)
        hosts = [self.boot("Master", 0, AWS_DL_FORWARD_AGENT="false", AWS_DL_ENABLE_ELASTIC_TRAINING="false",
                           WORKER_LAUNCH_TEMPLATE_ID="lt-1", ELASTIC_WORKER_TAG="a-tag"),
                 self.boot("worker", 1, AWS_DL_FORWARD_AGENT="true", PATH=f"{gpus}:{os.environ['PATH']}"),
                 self.boot("WORKER", 2)]
        said = [self.finish(h) for h in hosts]

        ips = sorted(self.ip(k) for k in range(3))
        self.assertEqual(ips, ["10.99.0.10", "10.99.0.13", "10.99.0.7"])
        lines = "10.99.0.7 deeplearning-master\n" + "".join(f"{ip} deeplearning-worker{n}\n" for n, ip in enumerate(ips, 1))
        for k in range(3):
            self.assertEqual(self.read(k, "etc/hosts"), ("127.0.0.1 localhost\n" if k == 1 else "") + lines)
            self.assertEqual(self.read(k, "opt/deeplearning/workers"), "".join(f"deeplearning-worker{n}\n" for n in (1, 2, 3)))
            profile = self.read(k, "etc/profile.d/deeplearning.sh")
            for line in ("export DEEPLEARNING_WORKERS_COUNT=3", "export DEEPLEARNING_WORKERS_PATH=/opt/deeplearning/workers",
                         f"export DEEPLEARNING_WORKER_GPU_COUNT={2 if k == 1 else 0}", f"export EFS_MOUNT={self.efs}"):
                self.assertEqual(profile.splitlines().count(line), 1, profile)
            self.assertNotIn("ELASTIC", profile)
            # Only the master can log in to other hosts. Each host knows the host keys of all hosts.
            self.assertEqual(self.read(k, "root/.ssh/authorized_keys"), self.read(0, "root/.ssh/id_ed25519.pub"))
            self.assertEqual((self.root(k) / "root/.ssh/authorized_keys").stat().st_mode & 0o777, 0o600)
            known = self.read(k, "root/.ssh/known_hosts")
            for other in range(3):
                names = f"{self.ip(other)},deeplearning-worker{ips.index(self.ip(other)) + 1}" + (",deeplearning-master" if other == 0 else "")
                key = " ".join(self.read(other, "etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
                self.assertIn(f"{names} {key}\n", known)
        self.assertFalse((self.root(1) / "root/.ssh/id_ed25519").exists())
        self.assertEqual((self.root(0) / "root/.ssh/id_ed25519").stat().st_mode & 0o777, 0o600)
        # Agents are forwarded only if the stack has a key of its user.
        self.assertIn("ForwardAgent yes", self.read(1, "etc/ssh/ssh_config"))
        self.assertFalse((self.root(0) / "etc/ssh/ssh_config").exists())

        self.assertEqual(self.signals(), [("SUCCESS", self.instances[0])])
        self.assertEqual(self.stack.left("Master"), 0)
        # All hosts have read the same message, which stays in the queue. The two invalid messages are removed.
        self.assertEqual(self.stack.messages("Worker"),
                         ['{"event": "worker-setup", "master-ip": "10.99.0.7", "worker-ips": ["10.99.0.10", "10.99.0.13", "10.99.0.7"]}'])
        self.assertIn("other-WorkerAutoScalingGroup-1, which is not of this stack, is deleted", said[0])
        self.assertEqual(said[0].count("an invalid message is deleted"), 4, said[0])
        self.assertEqual(said[0].count("has reported before"), 1, said[0])
        for k in range(3):
            self.assertEqual(self.read(k, LOG), said[k])
            for secret in (SECRET, HANDLE_SECRET, TOKEN, "PRIVATE KEY"):
                self.assertNotIn(secret, said[k])

        # A second run, as after an interrupted boot, writes no line twice.
        before = [(self.root(1) / f).read_text() for f in ("etc/hosts", "etc/profile.d/deeplearning.sh", "root/.ssh/known_hosts",
                                                             "root/.ssh/authorized_keys", "etc/ssh/ssh_config")]
        self.finish(self.boot("Worker", 1, AWS_DL_FORWARD_AGENT="true", PATH=f"{gpus}:{os.environ['PATH']}"))
        self.assertEqual(before, [(self.root(1) / f).read_text() for f in ("etc/hosts", "etc/profile.d/deeplearning.sh", "root/.ssh/known_hosts",
                                                                             "root/.ssh/authorized_keys", "etc/ssh/ssh_config")])

    def test_worker_without_an_answer_is_named_and_left_out(self):
        for k, role in enumerate(("Master", "Worker", "Worker")):
            self.launch(role, k)
        self.stack.asg_setup("Worker", 1, 2)
        self.stack.asg_setup("Master", 1, 1)
        # The file of an earlier instance with the same address does not count.
        old = self.efs / self.stack.shared / "hosts" / f"{self.ip(2)}.json"
        old.parent.mkdir(parents=True)
        old.write_text(json.dumps({"instance": "i-other", "keys": ["ssh-ed25519 AAAA"]}))
        master, worker = self.boot("Master", 0, AWS_DL_WORKER_SECONDS="4"), self.boot("Worker", 1)
        said = self.finish(master)
        self.assertIn(f"no answer of {self.instances[2]} ({self.ip(2)}); the cluster begins without", said)
        self.finish(worker)
        self.assertEqual(self.read(0, "opt/deeplearning/workers").count("\n"), 2)
        self.assertEqual(self.signals(), [("SUCCESS", self.instances[0])])
        # A host that starts after the cluster has begun logs that, and does not change the cluster.
        said = self.finish(self.boot("Worker", 2), 1)
        self.assertIn(f"the cluster began without {self.ip(2)}", said)
        self.assertIn("launched later", said)
        self.assertEqual(self.stack.left("Worker"), 1)
        # The same happens after the queue has deleted the message, which it keeps for days.
        self.stack.sqs.purge_queue(QueueUrl=self.stack.queues["Worker"])
        self.assertIn(f"the cluster began without {self.ip(2)}", self.finish(self.boot("Worker", 2), 1))

    def test_setup_fails_if_there_are_too_few_workers(self):
        for k, role in enumerate(("Master", "Worker")):
            self.launch(role, k)
        self.stack.asg_setup("Worker", 1, 1)
        self.stack.asg_setup("Master", 1, 1)
        said = self.finish(self.boot("Master", 0, AWS_DL_WORKER_SECONDS="1"), 1)
        self.assertIn(f"0 workers have answered, and the group has 1 at least; no answer from {self.instances[1]} ({self.ip(1)})", said)
        self.assertEqual(self.signals(), [("FAILURE", "setup_host")])
        self.assertEqual(self.stack.left("Worker"), 0)

    def test_a_master_alone(self):
        self.launch("Master", 0)
        self.stack.asg_setup("Worker", 0, 0)
        self.stack.asg_setup("Master", 1, 1)
        self.finish(self.boot("Master", 0, WORKER_LAUNCH_TEMPLATE_ID="lt-1", ELASTIC_WORKER_TAG="a-tag"))
        self.assertEqual(self.read(0, "opt/deeplearning/workers"), "deeplearning-worker1\n")
        profile = self.read(0, "etc/profile.d/deeplearning.sh")
        self.assertIn("export WORKER_LAUNCH_TEMPLATE_ID=lt-1\nexport ELASTIC_WORKER_TAG=a-tag\n", profile)


class GivesUp(Boot):
    def test_missing_report_of_a_group(self):
        self.launch("Master", 0)
        self.stack.asg_setup("Master", 1, 1)
        said = self.finish(self.boot("Master", 0, AWS_DL_WAITCONDITION_TIMEOUT="603"), 1)
        self.assertIn("no report of WorkerAutoScalingGroup within 3 s", said)
        self.assertEqual(self.signals(), [("FAILURE", "setup_host")])

    def test_a_worker_without_a_master(self):
        self.launch("Worker", 1)
        self.assertIn("the master has not published its key", self.finish(self.boot("Worker", 1, AWS_DL_WAITCONDITION_TIMEOUT="602"), 1))
        self.assertEqual(self.signals(), [])

    def test_missing_queue(self):
        self.launch("Master", 0)
        said = self.finish(self.boot("Master", 0, AWS_DL_MASTER_QUEUE="nowhere"), 1)
        self.assertRegex(said, "ERROR: sqs:GetQueueUrl: .*NonExistentQueue")

    def test_missing_permission(self):
        import botocore.exceptions

        class Denies:
            def send_message(self, **parameters):
                check("sqs", "SendMessage", parameters)
                raise botocore.exceptions.ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessage")
        env = self.stack.environment("Worker", "x", "i-1", "10.99.0.7", self.efs, AWS_DL_POLL_SECONDS="0.1")
        setup = setup_host.role_of(env)(self.folder, env)
        setup.clients["sqs"] = Denies()
        with self.assertRaisesRegex(setup_host.Failure, "the role of this instance needs sqs:SendMessage"):
            setup.call("sqs", "SendMessage", QueueUrl="q", MessageBody="m")

    def test_more_instances_than_values_of_a_filter(self):
        class Many:
            def describe_auto_scaling_groups(self, **parameters):
                check("autoscaling", "DescribeAutoScalingGroups", parameters)
                return {"AutoScalingGroups": [{"AutoScalingGroupName": name, "Instances": [
                    {"InstanceId": i, "HealthStatus": "Healthy", "LifecycleState": "InService"} for i in ids]}
                    for name, ids in (("m", ["i-m"]), ("w", [f"i-{k}" for k in range(300)]))]}

            def describe_instances(self, Filters, NextToken="0"):
                check("ec2", "DescribeInstances", {"Filters": Filters, "NextToken": NextToken})
                if any(len(f["Values"]) > 200 for f in Filters):
                    raise ValueError("FilterLimitExceeded")
                page = int(NextToken)
                ids = ["i-m", *(f"i-{k}" for k in range(300)), "i-another"][page * 100:][:100]
                return {"Reservations": [{"Instances": [{"InstanceId": i, "PrivateIpAddress": f"ip of {i}"} for i in ids]}],
                        **({"NextToken": str(page + 1)} if page < 3 else {})}
        env = self.stack.environment("Master", "x", "i-m", "10.99.0.7", self.efs, AWS_DL_POLL_SECONDS="0.1")
        setup = setup_host.role_of(env)(self.folder, env)
        setup.instance = "i-m"
        setup.clients.update(ec2=Many(), autoscaling=Many())
        found = setup.addresses({"m": "MasterAutoScalingGroup", "w": "WorkerAutoScalingGroup"})
        self.assertEqual(found, {f"i-{k}": f"ip of i-{k}" for k in range(300)})

    def test_missing_and_wrong_variables(self):
        self.launch("Master", 0)
        for change, word in (({"AWS_DL_NODE_TYPE": "Coordinator"}, "not Master, Worker or ElasticWorker"), ({"AWS_DL_WORKER_QUEUE": None}, "no AWS_DL_WORKER_QUEUE"),
                             ({"AWS_DL_STACK_ID": "x; reboot"}, "not the id of a stack"), ({"AWS_DL_DEFAULT_USER": "nobody-has-it"}, "no user"),
                             ({"AWS_DL_WAITCONDITION_TIMEOUT": "nan"}, "not a number of seconds"),
                             ({"AWS_DL_WAITCONDITION_TIMEOUT": "500"}, "is not more than")):
            with self.subTest(word=word):
                self.assertIn(word, self.finish(self.boot("Master", 0, **change), 1))
        # The stack of a master gets a signal of the failure.
        self.assertEqual(self.signals(), [("FAILURE", "setup_host")] * 5)

    def test_package_for_another_processor(self):
        program = self.folder / "program"
        for head, processor in ((b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0", "x86_64"), (b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\xb7\0", "aarch64"),
                                (b"\x7fELF\2\2\1" + bytes(9) + b"\0\3\0\x15", "processor 21 of ELF"), (b"#!/bin/sh\nexec something\n", None), (b"\x7fELF", None)):
            program.write_bytes(head)
            self.assertEqual(host_files.processor_of_package(program), processor)
        self.assertIsNone(host_files.processor_of_package(self.folder / "none"))
        env = self.stack.environment("Master", "x", "i-1", "10.99.0.7", self.efs)
        with unittest.mock.patch.object(host_setup, "processor_of_package", lambda: "x86_64"), \
                unittest.mock.patch.object(host_setup.platform, "machine", lambda: "aarch64"):
            with self.assertRaisesRegex(setup_host.Failure, r"^\[TuttiPackage\] expected programs for aarch64, .*, got programs for x86_64\. hint: "):
                setup_host.role_of(env)(self.root(0), env)

    def test_unexpected_error(self):
        """The stack gets the same signal as for other errors."""
        env = self.stack.environment("Master", "x", "i-1", "10.99.0.7", self.efs)
        with unittest.mock.patch.dict(os.environ, env), unittest.mock.patch.object(setup_host.MasterSetup, "run", side_effect=KeyError("x")), \
                unittest.mock.patch.object(sys, "argv", ["setup_host.py", "--root", str(self.root(0))]):
            self.assertEqual(setup_host.main(), 1)
        self.assertEqual(self.signals(), [("FAILURE", "setup_host")])
        self.assertEqual(self.cloud.web.signals[0]["Reason"], "KeyError('x')")

    def test_no_role(self):
        self.launch("Worker", 1)
        self.boot("Worker", 1).kill()
        self.cloud.web.hosts[f"{self.stack.name}1"].clear()
        with self.assertRaisesRegex(setup_host.Failure, "no credentials of a role"):
            env = {**os.environ, "AWS_DL_NODE_TYPE": "Worker", "AWS_DL_WAITCONDITION_TIMEOUT": "601", "AWS_DL_MASTERLAUNCH_TIMEOUT": "600",
                   "AWS_DL_POLL_SECONDS": "0.2", "AWS_DL_MASTER_QUEUE": "m", "AWS_DL_WORKER_QUEUE": "w", "AWS_REGION": "r",
                   "AWS_DL_STACK_ID": self.stack.id, "AWS_DL_DEFAULT_USER": "root", "EFS_MOUNT": str(self.efs)}
            setup = setup_host.role_of(env)(self.folder, env)
            setup.metadata = Metadata(f"{self.cloud.web.url}/{self.stack.name}1")
            setup.begin()


class Elastic(Boot):
    def setUp(self):
        super().setUp()
        self.launch("Master", 0)
        self.stack.asg_setup("Worker", 0, 0)
        self.stack.asg_setup("Master", 1, 1)
        self.finish(self.boot("Master", 0))
        self.instances[1] = self.stack.launch("ElasticWorker", self.ip(1))
        self.success = self.efs / f"prepare_data_success_{self.ip(1)}"
        self.script = self.efs / "prepare-data.py"
        self.only = {name: None for name in ("AWS_DL_MASTER_QUEUE", "AWS_DL_WORKER_QUEUE", "AWS_DL_WAIT_HANDLE", "AWS_DL_WAITCONDITION_TIMEOUT",
                                             "AWS_DL_MASTERLAUNCH_TIMEOUT")}

    def test_only_prepared_hosts_may_join(self):
        for text, mode, code, word in ((None, 0, 1, "there is no file"), ("#!/bin/sh\necho no data; exit 3\n", 0o755, 1,
                                       "ended with 3: this host is not added to a job")):
            self.success.touch()  # an earlier instance made this file
            if text:
                self.script.write_text(text)
                self.script.chmod(mode)
            said = self.finish(self.boot("ElasticWorker", 1, PREPARE_DATA_SCRIPT=str(self.script), **self.only), code)
            self.assertIn(word, said)
            self.assertFalse(self.success.exists())
        self.assertIn("prepare: no data", said)

        self.success.touch()
        self.script.chmod(0o644)
        self.script.write_text("import os\nassert not os.path.exists(os.environ['EFS_MOUNT'] + '/prepare_data_success_%s')\n"
                               "print('fetching', os.environ.get('AWS_SECRET_ACCESS_KEY'))\n" % self.ip(1))
        said = self.finish(self.boot("ElasticWorker", 1, PREPARE_DATA_SCRIPT=str(self.script), **self.only))
        self.assertIn("prepare: fetching None", said)
        self.assertEqual(self.success.read_bytes(), b"")
        self.assertEqual(self.read(1, "root/.ssh/authorized_keys"), self.read(0, "root/.ssh/id_ed25519.pub"))
        keys = json.loads((self.efs / self.stack.shared / "hosts" / f"{self.ip(1)}.json").read_text())["keys"]
        self.assertIn(" ".join(self.read(1, "etc/ssh/ssh_host_ed25519_key.pub").split()[:2]), keys)
        self.assertIn("10.99.0.7 deeplearning-master\n", self.read(1, "etc/hosts"))


class Messages(unittest.TestCase):
    def test_messages_of_the_originals(self):
        """Accepts keys in any order, because the Lambda function and the master of the original templates send them
        so."""
        asg = '{"status": "success", "launched": 2, "min": 0, "desired": 2, "max": 2, "event": "asg-setup", "asg": "s-WorkerAutoScalingGroup-1X"}'
        self.assertEqual(queue_messages.check_asg_setup(asg)["launched"], 2)
        workers = '{"worker-ips": ["10.0.0.12", "10.0.1.9"], "event": "worker-setup", "master-ip": "10.0.0.12"}'
        self.assertEqual(queue_messages.check_worker_setup(workers)["worker-ips"], ["10.0.0.12", "10.0.1.9"])
        for check, whole in ((queue_messages.check_asg_setup, asg), (queue_messages.check_worker_setup, workers)):
            for end in range(len(whole)):
                self.assertRaises(ValueError, check, whole[:end])
        for bad in ('{"event": "worker-setup", "master-ip": "10.0.0.1", "worker-ips": []}', workers.replace("10.0.1.9", "10.0.1.9\\nevil"),
                    workers.replace('"10.0.0.12", ', ""), workers.replace('"10.0.1.9"', '"10.0.0.12"'), workers.replace('"10.0.1.9"', "7"), "null", "[" * 9999):
            self.assertRaises(ValueError, queue_messages.check_worker_setup, bad)
        self.assertRaises(ValueError, queue_messages.check_asg_setup, "[" * 9999)


class Text(unittest.TestCase):
    def test_user_data_can_be_part_of_a_template(self):
        text = (BOOTSTRAP / "user_data.sh").read_text()
        self.assertNotIn("${", text)
        self.assertLess(len(text), 12000)  # EC2 accepts 16 KiB
        self.assertNotRegex(text, r"(?m)^\s*set -\w*x")
        self.assertTrue(text.startswith("#!/bin/bash\n"))

    def test_python_3_9_is_new_enough(self):
        import ast
        for script in BOOTSTRAP.glob("*.py"):
            ast.parse(script.read_text(), feature_version=(3, 9))
            self.assertNotRegex(script.read_text(), re.compile(r"^\s*match .*:$", re.M))


if __name__ == "__main__":
    unittest.main(verbosity=2)
