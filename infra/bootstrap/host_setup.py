# SPDX-License-Identifier: MIT
"""The set-up that every host of the cluster runs: it finds its identity, waits for others with a limit, calls AWS
again while resources are new, publishes its keys, and leaves the files for the user."""
import ipaddress
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from host_files import Files, gpu_count, package_lacks_cuda, processor_of_package, read_json, text_of, write_aside
from instance_metadata import Metadata

log = logging.getLogger("setup_host")

ALWAYS = ["AWS_DL_STACK_ID", "AWS_DL_DEFAULT_USER", "AWS_REGION", "EFS_MOUNT"]
# For hosts that the stack itself makes.
CLUSTER = ["AWS_DL_MASTER_QUEUE", "AWS_DL_WORKER_QUEUE", "AWS_DL_WAITCONDITION_TIMEOUT", "AWS_DL_MASTERLAUNCH_TIMEOUT"]
DENIED = ("AccessDenied", "UnauthorizedOperation", "AuthFailure")
PATIENCE = 120  # seconds during which a new resource may be unknown or forbidden


class Failure(Exception):
    """Ends the set-up of this host. The text names the step and the reason."""


class HostSetup:
    """A role lists in NEEDED the variables that it needs, and does its part in set_up()."""

    NEEDED = []

    def __init__(self, root, environment=os.environ):
        self.began = time.monotonic()
        self.env = environment
        built, here = processor_of_package(), platform.machine()
        if built not in (None, here):
            raise Failure(f"[TuttiPackage] expected programs for {here}, the processor of this host, got programs for {built}. hint: make the "
                          f"archive on a machine with {here}, or choose an InstanceType with {built}")
        missing = [name for name in ALWAYS + self.NEEDED if not environment.get(name)]
        if missing:
            raise Failure(f"the environment has no {', '.join(missing)}")
        self.interval = self.seconds("AWS_DL_POLL_SECONDS", 30)
        self.budget = self.seconds("AWS_DL_WAITCONDITION_TIMEOUT", 3300) - self.seconds("AWS_DL_MASTERLAUNCH_TIMEOUT", 600)
        if self.budget <= 0:
            raise Failure("AWS_DL_WAITCONDITION_TIMEOUT is not more than AWS_DL_MASTERLAUNCH_TIMEOUT")
        stack = re.fullmatch(r"arn:[^:]*:cloudformation:[^:]*:[^:]*:stack/([A-Za-z][-A-Za-z0-9]*)/([-0-9a-fA-F]+)",
                             environment["AWS_DL_STACK_ID"])
        if not stack:
            raise Failure(f"AWS_DL_STACK_ID is '{environment['AWS_DL_STACK_ID']}', not the id of a stack")
        self.stack_name = stack[1]
        self.shared = Path(environment["EFS_MOUNT"]) / ".tutti-cluster" / f"{stack[1]}-{stack[2].rsplit('-', 1)[-1]}"
        try:
            self.files = Files(root, environment["AWS_DL_DEFAULT_USER"])
        except KeyError:
            raise Failure(f"this host has no user {environment['AWS_DL_DEFAULT_USER']}") from None
        self.metadata = Metadata()
        self.clients = {}

    def seconds(self, name, default):
        text = self.env.get(name) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = -1
        if not 0 < value < 1e6:
            raise Failure(f"{name} is '{text}', not a number of seconds")
        return value

    def left(self):
        return self.budget - (time.monotonic() - self.began)

    def until(self, what, look, patience=None):
        """Returns the value of look() once it is true, or `None` after `patience` seconds or at the end of the budget."""
        deadline = time.monotonic() + min(self.left(), self.left() if patience is None else patience)
        while True:
            found = look()
            if found:
                return found
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            log.info("waiting for %s, %d s at most", what, rest)
            time.sleep(min(self.interval, rest))

    def call(self, service, action, **arguments):
        """Calls AWS. New resources may be unknown or forbidden for a while; after that the step fails with its name."""
        import boto3
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()
        told = ""
        until = time.monotonic() + min(PATIENCE, max(self.interval * 4, 1), max(self.left(), 1))
        while True:
            try:
                if service not in self.clients:
                    config = botocore.config.Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 4})
                    self.clients[service] = boto3.client(service, region_name=self.env["AWS_REGION"], config=config)
                return getattr(self.clients[service], name)(**arguments)
            except botocore.exceptions.ClientError as e:
                code = e.response.get("Error", {}).get("Code", "")
                why = f"{service}:{action}: {code}: {e.response.get('Error', {}).get('Message', '')[:300]}"
                if any(word in code for word in DENIED):
                    why += f"; the role of this instance needs {service}:{action}"
            except (botocore.exceptions.BotoCoreError, botocore.parsers.ResponseParserError) as e:
                why = f"{service}:{action}: {str(e)[:300]}"
            if time.monotonic() >= until:
                raise Failure(why)
            if why != told:
                log.warning("%s; trying again", why)
                told = why
            time.sleep(min(self.interval, 10))

    def begin(self):
        def instance():
            try:
                role = self.env.get("AWS_DL_ROLE_NAME") or (self.metadata.get("iam/security-credentials/") or "").strip()
                known = role and self.metadata.get(f"iam/security-credentials/{role}")
                found = known and (self.metadata.get("instance-id"), self.metadata.get("local-ipv4"))
            except OSError as e:
                log.warning("the metadata service does not answer: %s", e)
                return None
            return found if found and all(found) else None
        found = self.until("the role of this instance", instance, 600)
        if not found:
            raise Failure("the metadata service has no credentials of a role; does the instance have a profile?")
        self.instance, self.ip = (text.strip() for text in found)
        ipaddress.ip_address(self.ip)
        log.info("%s is %s, a %s of %s", self.ip, self.instance, self.env["AWS_DL_NODE_TYPE"], self.stack_name)
        if self.env.get("AWS_DL_FORWARD_AGENT", "").lower() == "true":
            self.files.forward_agent()
        (self.shared / "hosts").mkdir(parents=True, exist_ok=True)

    def answer(self):
        """Publishes this host's keys. From then on the master may log in."""
        write_aside(self.shared / "hosts" / f"{self.ip}.json",
                    json.dumps({"instance": self.instance, "keys": self.files.host_keys()}) + "\n")

    def let_master_in(self):
        def master():
            told = read_json(self.shared / "master.json")
            return told if told and isinstance(told.get("key"), str) and isinstance(told.get("ip"), str) else None
        told = self.until("the master's key", master)
        if not told:
            raise Failure(f"the master has not published its key in {self.shared}; see its log")
        self.files.let_in(told["key"])
        return told["ip"]

    def leave_files(self, master_ip, worker_ips):
        self.files.write_hosts(master_ip, worker_ips)
        self.files.write_workers(len(worker_ips))
        self.files.link_programs()
        self.files.know_hosts(text_of(self.shared / "known_hosts"))
        gpus = gpu_count()
        if gpus and package_lacks_cuda():
            log.warning("this host has %s GPUs, but the archive's programs have no CUDA backend and train on the processor: make the "
                        "archive with make_package.sh --cuda 12", gpus)
        variables = {
            "DEEPLEARNING_WORKERS_COUNT": len(worker_ips),
            "DEEPLEARNING_WORKERS_PATH": "/opt/deeplearning/workers",
            "DEEPLEARNING_WORKER_GPU_COUNT": gpus,
            "DEEPLEARNING_CLUSTER_PATH": self.shared,
            "EFS_MOUNT": self.env["EFS_MOUNT"],
            "AWS_REGION": self.env["AWS_REGION"],
        }
        self.files.write_profile({**variables, **self.more_variables()})

    def more_variables(self):
        """Returns the variables that only this role has in its profile."""
        return {}

    def watch_for_spot_notice(self):
        """If the instance can be taken away, starts a service that writes the notice to a file."""
        if (self.metadata.get("instance-life-cycle") or "").strip() != "spot":
            return
        script = Path(__file__).resolve().with_name("spot_notice.py")
        unit = self.files.at("/etc/systemd/system/tutti-spot-notice.service")
        unit.parent.mkdir(parents=True, exist_ok=True)
        write_aside(unit, "[Unit]\nDescription=Writes the Spot interruption notice to a file\n\n[Service]\n"
                    f"ExecStart={sys.executable} {script} /run/tutti-spot-notice\nRestart=on-failure\nRestartSec=5\n\n"
                    "[Install]\nWantedBy=multi-user.target\n")
        if shutil.which("systemctl") is None or subprocess.run(["systemctl", "enable", "--now", unit.name], check=False).returncode:
            log.warning("cannot start %s: the Spot interruption notice will be ignored", unit.name)

    # Queues.
    def queue(self, name):
        return self.call("sqs", "GetQueueUrl", QueueName=self.env[name])["QueueUrl"]

    def messages(self, url, check, visibility):
        """Returns pairs of message and receipt for the valid messages. Invalid ones are logged and deleted."""
        got = self.call("sqs", "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=visibility)
        for m in got.get("Messages", []):
            try:
                yield check(m["Body"]), m["ReceiptHandle"]
            except ValueError as e:
                log.warning("an invalid message is deleted (%s): %s", e, m["Body"][:300])
                self.delete(url, m["ReceiptHandle"])

    def delete(self, url, receipt):
        self.call("sqs", "DeleteMessage", QueueUrl=url, ReceiptHandle=receipt)

    def run(self):
        self.begin()
        self.set_up()
        self.watch_for_spot_notice()
