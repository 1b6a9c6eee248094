#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes this instance a host of the cluster: the master, one of its workers, or an elastic worker that comes later.

    setup_host.py [--root DIR]        below DIR instead of / it writes its files

All else comes from the environment, see user_data.sh. Hosts tell each other their keys in a folder of the shared file
system, $EFS_MOUNT/.tutti-cluster/STACK: `master.json` (address and public key of the master), `hosts/ADDRESS.json` (a host's
keys; it is there once the master may log in), `cluster.json` (who is in the cluster) and `known_hosts`. The job itself needs no
other folder. Python 3.9 and boto3.
"""
import argparse
import ipaddress
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from host_files import Files, gpu_count, keys_of, known_hosts_lines, read_json, text_of, write_aside
from instance_metadata import Metadata
from queue_messages import check_asg_setup, check_worker_setup

log = logging.getLogger("setup_host")

CLUSTER = ["AWS_DL_MASTER_QUEUE", "AWS_DL_WORKER_QUEUE", "AWS_DL_WAITCONDITION_TIMEOUT", "AWS_DL_MASTERLAUNCH_TIMEOUT"]
NEEDED = {"master": [*CLUSTER, "AWS_DL_WAIT_HANDLE"], "worker": CLUSTER, "elasticworker": []}
ALWAYS = ["AWS_DL_STACK_ID", "AWS_DL_DEFAULT_USER", "AWS_REGION", "EFS_MOUNT"]
GROUPS = ("MasterAutoScalingGroup", "WorkerAutoScalingGroup")
DENIED = ("AccessDenied", "UnauthorizedOperation", "AuthFailure")
PATIENCE = 120  # seconds in which what was just created may be unknown or forbidden


class Failure(Exception):
    """Ends the set-up of this host; the text says which step, and why."""


def signal_stack(handle, status, who, reason, pause):
    """Tells the stack how it went. The address of its handle is a secret: whoever has it can say the same."""
    body = json.dumps({"Status": status, "UniqueId": who, "Reason": reason[:400], "Data": "/var/log/dl_cfn_setup.log"}).encode()
    why = ""
    for _ in range(4):
        try:
            ask = urllib.request.Request(handle, data=body, method="PUT", headers={"Content-Type": ""})
            with urllib.request.urlopen(ask, timeout=30):
                return
        except urllib.error.HTTPError as e:
            why = f"status {e.code}"
        except (OSError, ValueError) as e:
            why = type(e).__name__
        time.sleep(pause)
    raise Failure(f"the stack could not be told of {status}: {why}")


# ---- the set-up ----
class Setup:
    def __init__(self, root, environment=os.environ):
        self.began = time.monotonic()
        self.env = environment
        self.role = environment.get("AWS_DL_NODE_TYPE", "").lower()
        if self.role not in NEEDED:
            raise Failure(f"AWS_DL_NODE_TYPE is '{self.role}', not Master, Worker or ElasticWorker")
        missing = [name for name in ALWAYS + NEEDED[self.role] if not environment.get(name)]
        if missing:
            raise Failure(f"the environment has no {', '.join(missing)}")
        self.interval = self.seconds("AWS_DL_POLL_SECONDS", 30)
        self.worker_patience = self.seconds("AWS_DL_WORKER_SECONDS", 900)
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
        """What look() gives once it is true; None after so many seconds, or at the end of the budget."""
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
        """Calls AWS. What has just been created may be unknown or forbidden for a while; then the step fails by its name."""
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
                log.warning("%s; it is tried again", why)
                told = why
            time.sleep(min(self.interval, 10))

    # -- what all roles do --
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
            raise Failure("the metadata service tells of no credentials of a role; has the instance a profile?")
        self.instance, self.ip = (text.strip() for text in found)
        ipaddress.ip_address(self.ip)
        log.info("%s is %s, a %s of %s", self.ip, self.instance, self.env["AWS_DL_NODE_TYPE"], self.stack_name)
        if self.env.get("AWS_DL_FORWARD_AGENT", "").lower() == "true":
            self.files.forward_agent()
        (self.shared / "hosts").mkdir(parents=True, exist_ok=True)

    def answer(self):
        """Tells the others of this host's keys. From then on the master may log in."""
        write_aside(self.shared / "hosts" / f"{self.ip}.json",
                    json.dumps({"instance": self.instance, "keys": self.files.host_keys()}) + "\n")

    def let_master_in(self):
        def master():
            told = read_json(self.shared / "master.json")
            return told if told and isinstance(told.get("key"), str) and isinstance(told.get("ip"), str) else None
        told = self.until("the master's key", master)
        if not told:
            raise Failure(f"the master has not left its key in {self.shared}; its log tells why")
        self.files.let_in(told["key"])
        return told["ip"]

    def leave_files(self, master_ip, worker_ips):
        self.files.write_hosts(master_ip, worker_ips)
        self.files.write_workers(len(worker_ips))
        self.files.link_programs()
        self.files.know_hosts(text_of(self.shared / "known_hosts"))
        variables = {
            "DEEPLEARNING_WORKERS_COUNT": len(worker_ips),
            "DEEPLEARNING_WORKERS_PATH": "/opt/deeplearning/workers",
            "DEEPLEARNING_WORKER_GPU_COUNT": gpu_count(),
            "DEEPLEARNING_CLUSTER_PATH": self.shared,
            "EFS_MOUNT": self.env["EFS_MOUNT"],
            "AWS_REGION": self.env["AWS_REGION"],
        }
        if self.role == "master" and self.env.get("AWS_DL_ENABLE_ELASTIC_TRAINING", "true").lower() == "true":
            for name in ("WORKER_LAUNCH_TEMPLATE_ID", "ELASTIC_WORKER_TAG"):
                if self.env.get(name):
                    variables[name] = self.env[name]
            # The one that has boto3, whatever environment a user has switched on.
            variables["AWS_DL_PYTHON"] = sys.executable
        self.files.write_profile(variables)

    def watch_for_spot_notice(self):
        """An instance that can be taken away has a service that says so in a file."""
        if (self.metadata.get("instance-life-cycle") or "").strip() != "spot":
            return
        script = Path(__file__).resolve().with_name("spot_notice.py")
        unit = self.files.at("/etc/systemd/system/tutti-spot-notice.service")
        unit.parent.mkdir(parents=True, exist_ok=True)
        write_aside(unit, "[Unit]\nDescription=Says in a file that this Spot instance is taken away\n\n[Service]\n"
                    f"ExecStart={sys.executable} {script} /run/tutti-spot-notice\nRestart=on-failure\nRestartSec=5\n\n"
                    "[Install]\nWantedBy=multi-user.target\n")
        if shutil.which("systemctl") is None or subprocess.run(["systemctl", "enable", "--now", unit.name], check=False).returncode:
            log.warning("%s could not be started: nobody hears of the Spot notice", unit.name)

    # -- queues --
    def queue(self, name):
        return self.call("sqs", "GetQueueUrl", QueueName=self.env[name])["QueueUrl"]

    def messages(self, url, check, visibility):
        """The messages that are one; what is none is logged and deleted. A pair of message and receipt each."""
        got = self.call("sqs", "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=visibility)
        for m in got.get("Messages", []):
            try:
                yield check(m["Body"]), m["ReceiptHandle"]
            except ValueError as e:
                log.warning("a message is not understood and deleted (%s): %s", e, m["Body"][:300])
                self.delete(url, m["ReceiptHandle"])

    def delete(self, url, receipt):
        self.call("sqs", "DeleteMessage", QueueUrl=url, ReceiptHandle=receipt)

    # -- the master --
    def groups(self):
        """The names of the two groups of this stack, and which is which."""
        names = {}
        for logical in GROUPS:
            def look(logical=logical):
                detail = self.call("cloudformation", "DescribeStackResource", StackName=self.env["AWS_DL_STACK_ID"],
                                   LogicalResourceId=logical)
                return detail["StackResourceDetail"].get("PhysicalResourceId")
            # The workers' group begins once the master's has.
            found = self.until(logical, lambda look=look: self.quietly(look))
            if not found:
                raise Failure(f"the stack has no {logical} after {self.budget:.0f} s")
            names[found] = logical
        return names

    def quietly(self, look):
        try:
            return look()
        except Failure as e:
            log.warning("%s", e)
            return None

    def hear_of_groups(self, names):
        """The first asg-setup of each group."""
        url = self.queue("AWS_DL_MASTER_QUEUE")
        first = {}

        def hear():
            for message, receipt in self.messages(url, check_asg_setup, 60):
                if message["asg"] not in names:
                    log.warning("a message of %s, which is not of this stack, is deleted", message["asg"][:200])
                elif message["asg"] in first:
                    log.info("%s has told of itself before", message["asg"])
                else:
                    first[message["asg"]] = message
                    log.info("%s: %s of %s instances, %s at least", message["asg"], message["launched"], message["desired"],
                             message["min"])
                self.delete(url, receipt)
            return len(first) == len(names)
        if not self.until("word of both groups", hear):
            silent = [logical for name, logical in names.items() if name not in first]
            raise Failure(f"no word of {' and '.join(silent)} within {self.budget:.0f} s; the log of the stack's Lambda tells why")
        return first

    def addresses(self, names):
        """The address of each running instance: of the master, and of the workers."""
        found = self.call("autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=list(names))
        healthy = {i["InstanceId"]: names[g["AutoScalingGroupName"]] for g in found["AutoScalingGroups"]
                   for i in g["Instances"] if i["HealthStatus"] == "Healthy" and i["LifecycleState"] in ("InService", "Pending")}
        running = {}

        def look():
            # Filters, because one that is unknown is an error for all when it is asked for by its name; of the groups, because
            # a filter takes 200 values at most.
            token = {}
            while True:
                got = self.call("ec2", "DescribeInstances", **token,
                                Filters=[{"Name": "tag:aws:autoscaling:groupName", "Values": list(names)},
                                         {"Name": "instance-state-name", "Values": ["running"]}])
                running.update({i["InstanceId"]: i["PrivateIpAddress"] for r in got["Reservations"]
                                for i in r["Instances"] if i.get("PrivateIpAddress") and i["InstanceId"] in healthy})
                if not got.get("NextToken"):
                    return len(running) == len(healthy)
                token = {"NextToken": got["NextToken"]}
        if healthy and not self.until("the instances to run", look, self.worker_patience):
            log.warning("they do not run and are left out: %s", ", ".join(sorted(set(healthy) - set(running))))
        masters = [i for i, logical in healthy.items() if logical == GROUPS[0] and i in running]
        if masters != [self.instance]:
            raise Failure(f"the master's group should have this instance, {self.instance}, and has {', '.join(masters) or 'none'}")
        return {i: ip for i, ip in running.items() if i != self.instance}

    def wait_for_workers(self, workers, least):
        """The addresses of those that have answered."""
        keys = {}

        def look():
            for instance, ip in workers.items():
                told = read_json(self.shared / "hosts" / f"{ip}.json")
                if ip not in keys and told and told.get("instance") == instance and isinstance(told.get("keys"), list):
                    keys[ip] = keys_of(told)
                    log.info("%s has answered", ip)
            return len(keys) == len(workers)
        if workers and not self.until(f"an answer of {len(workers)} workers", look, self.worker_patience):
            silent = ", ".join(f"{i} ({ip})" for i, ip in sorted(workers.items()) if ip not in keys)
            log.warning("no answer of %s; the cluster begins without", silent)
            if len(keys) < least:
                raise Failure(f"{len(keys)} workers have answered, and the group has {least} at least; none came from {silent}")
        elif len(keys) < least:
            raise Failure(f"{len(keys)} workers run, and the group has {least} at least")
        return keys

    def set_up_master(self):
        key = self.files.make_key_pair()
        self.files.let_in(key)
        write_aside(self.shared / "master.json", json.dumps({"ip": self.ip, "instance": self.instance, "key": key}) + "\n")
        self.answer()
        names = self.groups()
        told = self.hear_of_groups(names)
        workers = self.addresses(names)
        of_workers = next(m for name, m in told.items() if names[name] == GROUPS[1])
        if len(workers) < of_workers["launched"]:
            log.warning("%d workers run, of %d that were launched", len(workers), of_workers["launched"])
        keys = self.wait_for_workers(workers, of_workers["min"])
        keys[self.ip] = self.files.host_keys()
        ips = sorted(keys)
        message = {"event": "worker-setup", "master-ip": self.ip, "worker-ips": ips}
        write_aside(self.shared / "known_hosts", known_hosts_lines(keys, self.ip, ips))
        write_aside(self.shared / "cluster.json", json.dumps(message) + "\n")
        self.leave_files(self.ip, ips)
        self.call("sqs", "SendMessage", QueueUrl=self.queue("AWS_DL_WORKER_QUEUE"), MessageBody=json.dumps(message))
        log.info("the cluster: %s", " ".join(ips))
        signal_stack(self.env["AWS_DL_WAIT_HANDLE"], "SUCCESS", self.instance, f"{len(ips)} hosts", min(self.interval, 10))

    # -- workers --
    def set_up_worker(self):
        self.let_master_in()
        self.answer()
        url = self.queue("AWS_DL_WORKER_QUEUE")

        def hear():
            # Everyone reads the same message: it stays visible, and nobody deletes it.
            for message, receipt in self.messages(url, check_worker_setup, 0):
                if message["master-ip"] != (read_json(self.shared / "master.json") or {}).get("ip"):
                    log.warning("a message of %s, which is not this cluster's master, is deleted", message["master-ip"])
                    self.delete(url, receipt)
                    continue
                return message
            return None
        message = self.until("worker-setup", hear)
        if not message:
            raise Failure(f"no worker-setup within {self.budget:.0f} s; the master's log tells why")
        if self.ip not in message["worker-ips"]:
            raise Failure(f"the cluster began without {self.ip}, which answered too late: it has {' '.join(message['worker-ips'])}")
        # The master may have been replaced meanwhile.
        self.let_master_in()
        self.leave_files(message["master-ip"], message["worker-ips"])
        log.info("this host is deeplearning-worker%d", message["worker-ips"].index(self.ip) + 1)

    def set_up_elastic_worker(self):
        # Of an instance that had this address before.
        success = Path(self.env["EFS_MOUNT"]) / f"prepare_data_success_{self.ip}"
        success.unlink(missing_ok=True)
        self.let_master_in()
        self.answer()
        cluster = self.until("the cluster", lambda: read_json(self.shared / "cluster.json"))
        if not cluster:
            raise Failure(f"the master has not left cluster.json in {self.shared}; its log tells why")
        self.leave_files(cluster["master-ip"], cluster["worker-ips"])
        self.prepare_data()
        success.touch()
        log.info("data is prepared; the elastic manager may add %s", self.ip)

    def prepare_data(self):
        script = self.env.get("PREPARE_DATA_SCRIPT")
        if not script:
            return
        if not os.path.isfile(script):
            raise Failure(f"PREPARE_DATA_SCRIPT: there is no file {script}")
        command = [script] if os.access(script, os.X_OK) else [sys.executable, script]
        log.info("running %s", script)
        # Its own variables and no more: the wait handle and what else the set-up knows is not the script's.
        keep = {n: v for n, v in self.env.items() if n in ("PATH", "LANG", "EFS_MOUNT", "AWS_REGION")}
        with subprocess.Popen(command, cwd=self.env["EFS_MOUNT"], env={"HOME": self.files.user.pw_dir, **keep}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as running:
            for line in running.stdout:
                log.info("prepare: %s", line.rstrip())
        if running.returncode != 0:
            raise Failure(f"{script} ended with {running.returncode}: this host is not added to a job")

    def run(self):
        self.begin()
        {"master": self.set_up_master, "worker": self.set_up_worker, "elasticworker": self.set_up_elastic_worker}[self.role]()
        self.watch_for_spot_notice()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="/", help="the folder below which it writes")
    root = Path(parser.parse_args().root)
    file = root / "var/log/dl_cfn_setup.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s setup_host: %(levelname)s: %(message)s",
                        handlers=[logging.FileHandler(file), logging.StreamHandler()])
    # What these libraries log may hold what a request was signed with.
    for library in ("boto3", "botocore", "urllib3"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        Setup(root).run()
    except (Failure, OSError, subprocess.SubprocessError, ValueError, ImportError) as e:
        log.error("%s", e)
        # Without a master there is no cluster: the stack need not wait for its time to be over.
        if os.environ.get("AWS_DL_NODE_TYPE", "").lower() == "master" and os.environ.get("AWS_DL_WAIT_HANDLE"):
            try:
                signal_stack(os.environ["AWS_DL_WAIT_HANDLE"], "FAILURE", "setup_host", str(e), 2)
            except Failure as failed:
                log.error("%s", failed)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
