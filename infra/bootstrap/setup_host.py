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
import pwd
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

log = logging.getLogger("setup_host")

CLUSTER = ["AWS_DL_MASTER_QUEUE", "AWS_DL_WORKER_QUEUE", "AWS_DL_WAITCONDITION_TIMEOUT", "AWS_DL_MASTERLAUNCH_TIMEOUT"]
NEEDED = {"master": [*CLUSTER, "AWS_DL_WAIT_HANDLE"], "worker": CLUSTER, "elasticworker": []}
ALWAYS = ["AWS_DL_STACK_ID", "AWS_DL_DEFAULT_USER", "AWS_REGION", "EFS_MOUNT"]
GROUPS = ("MasterAutoScalingGroup", "WorkerAutoScalingGroup")
DENIED = ("AccessDenied", "UnauthorizedOperation", "AuthFailure")
PATIENCE = 120  # seconds in which what was just created may be unknown or forbidden


class Failure(Exception):
    """Ends the set-up of this host; the text says which step, and why."""


def write_aside(path, text, mode=0o644, owner=None):
    """Replaces a file in one rename, so that nobody reads half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
        out.write(text)
    os.chmod(aside, mode)
    if owner is not None:
        os.chown(aside, owner.pw_uid, owner.pw_gid)
    os.rename(aside, path)


def text_of(path):
    return path.read_text() if path.exists() else ""


def read_json(path):
    """What a file of the shared folder holds; None where it is not there or is half a file."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


# ---- the metadata of this instance ----
class Metadata:
    """The instance metadata service, by version 2 of its protocol: a token first."""

    def __init__(self, base=None):
        self.base = (base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254").rstrip("/")
        # A proxy must not see this.
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path):
        """The text at latest/meta-data/PATH; None where there is none. OSError where the service does not answer."""
        ask = urllib.request.Request(f"{self.base}/latest/api/token", method="PUT",
                                     headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"})
        with self.open(ask, timeout=5) as answer:
            token = answer.read().decode()
        ask = urllib.request.Request(f"{self.base}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token})
        try:
            with self.open(ask, timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return None
            raise


# ---- messages of the queues ----
def check_asg_setup(body):
    """The message, or ValueError that says what is wrong with it."""
    message = json.loads(body)
    if not isinstance(message, dict) or message.get("event") != "asg-setup":
        raise ValueError("no asg-setup")
    if not isinstance(message.get("asg"), str):
        raise ValueError("asg is no name")
    if not isinstance(message.get("status"), str) or message["status"].lower() != "success":
        raise ValueError("its status is not success")
    for name in ("min", "desired", "max", "launched"):
        if type(message.get(name)) is not int or message[name] < 0:
            raise ValueError(f"{name} is no count")
    return message


def check_worker_setup(body):
    message = json.loads(body)
    if not isinstance(message, dict) or message.get("event") != "worker-setup":
        raise ValueError("no worker-setup")
    ips = message.get("worker-ips")
    if not isinstance(ips, list) or not all(isinstance(ip, str) for ip in [*ips, message.get("master-ip")]):
        raise ValueError("its addresses are no strings")
    for ip in ips:
        ipaddress.ip_address(ip)
    if len(set(ips)) != len(ips) or ips != sorted(ips):
        raise ValueError("worker-ips is not sorted, or has one twice")
    if message["master-ip"] not in ips:
        raise ValueError("master-ip is not in worker-ips")
    return message


# ---- files of this host ----
def hosts_lines(master_ip, worker_ips):
    return [f"{master_ip} deeplearning-master",
            *(f"{ip} deeplearning-worker{k}" for k, ip in enumerate(worker_ips, 1))]


def without(text, pattern):
    return "".join(line + "\n" for line in text.splitlines() if not re.search(pattern, line))


def gpu_count():
    """How many GPUs nvidia-smi lists; 0 where there are none, or it fails."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


class Files:
    """What the set-up leaves on a host. It may be called again: nothing is there twice."""

    def __init__(self, root, user):
        self.root = Path(root)
        self.user = pwd.getpwnam(user)
        self.home = self.at(self.user.pw_dir)

    def at(self, path):
        return self.root / str(path).lstrip("/")

    def own(self, path):
        os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def write_hosts(self, master_ip, worker_ips):
        path = self.at("/etc/hosts")
        kept = without(text_of(path), r"\sdeeplearning-(master|worker\d+)\s*$")
        # In place: the file may be a mount of its own.
        path.write_text(kept + "".join(line + "\n" for line in hosts_lines(master_ip, worker_ips)))

    def write_workers(self, count):
        path = self.at("/opt/deeplearning/workers")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, "".join(f"deeplearning-worker{k}\n" for k in range(1, count + 1)), owner=self.user)

    def write_profile(self, variables):
        path = self.at("/etc/profile.d/deeplearning.sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = without(text_of(path), rf"^export ({'|'.join(variables)})=")
        write_aside(path, kept + "".join(f"export {name}={value}\n" for name, value in variables.items()))

    def link_programs(self):
        """Puts the programs where ssh looks for them too: it reads no profile."""
        folder = self.at("/usr/local/bin")
        folder.mkdir(parents=True, exist_ok=True)
        for program in sorted(self.at("/opt/tutti/bin").glob("*")):
            aside = folder / f".{program.name}.{os.getpid()}"
            aside.symlink_to(f"/opt/tutti/bin/{program.name}")
            os.rename(aside, folder / program.name)

    def forward_agent(self):
        """Lets ssh hand the agent of whoever has logged in on to the next host."""
        path = self.at("/etc/ssh/ssh_config")
        old = text_of(path)
        new, changed = re.subn(r"(?mi)^[#\s]*ForwardAgent\s+no\s*$", "    ForwardAgent yes", old)
        if not changed and not re.search(r"(?mi)^\s*ForwardAgent\s+yes", old):
            new = old + "Host *\n    ForwardAgent yes\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, new)

    def ssh_folder(self):
        folder = self.home / ".ssh"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.own(folder)
        return folder

    def make_key_pair(self):
        """The public half of this cluster's key pair, which is made once."""
        private = self.ssh_folder() / "id_ed25519"
        if not private.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tutti-cluster", "-f", str(private)], check=True,
                           stdin=subprocess.DEVNULL)
        public = private.with_suffix(".pub")
        self.own(private)
        self.own(public)
        return public.read_text().strip()

    def let_in(self, public_key):
        path = self.ssh_folder() / "authorized_keys"
        kept = without(text_of(path), r"\stutti-cluster\s*$")
        write_aside(path, kept + public_key + "\n", 0o600, self.user)

    def host_keys(self):
        """The public keys of this host's sshd, as "TYPE KEY"."""
        folder = self.at("/etc/ssh")
        if not list(folder.glob("ssh_host_*_key.pub")):
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["ssh-keygen", "-A", *(["-f", str(self.root)] if str(self.root) != "/" else [])], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return [" ".join(p.read_text().split()[:2]) for p in sorted(folder.glob("ssh_host_*_key.pub"))]

    def know_hosts(self, text):
        """Puts lines into known_hosts, in place of those of the same hosts."""
        path = self.ssh_folder() / "known_hosts"
        names = {name for line in text.splitlines() for name in line.split(" ", 1)[0].split(",")}
        kept = [line for line in text_of(path).splitlines() if not names & set(line.split(" ", 1)[0].split(","))]
        write_aside(path, "".join(line + "\n" for line in kept) + text, 0o600, self.user)


def known_hosts_lines(keys_of, master_ip, worker_ips):
    """keys_of: the keys of each address. A line has all names of a host and one of its keys."""
    lines = ""
    for k, ip in enumerate(worker_ips, 1):
        names = ",".join([ip, f"deeplearning-worker{k}", *(["deeplearning-master"] if ip == master_ip else [])])
        lines += "".join(f"{names} {key}\n" for key in keys_of[ip])
    return lines


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
                    f"ExecStart={sys.executable} {script} /run/tutti-spot-notice\nRestart=always\n\n"
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
            # Filters, because one that is unknown is an error for all when it is asked for by its name.
            token = {}
            while True:
                got = self.call("ec2", "DescribeInstances", **token,
                                Filters=[{"Name": "instance-id", "Values": list(healthy)},
                                         {"Name": "instance-state-name", "Values": ["running"]}])
                running.update({i["InstanceId"]: i["PrivateIpAddress"] for r in got["Reservations"]
                                for i in r["Instances"] if i.get("PrivateIpAddress")})
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
                    keys[ip] = [k for k in told["keys"] if isinstance(k, str) and re.fullmatch(r"[-a-z0-9@.]+ [A-Za-z0-9+/=]+", k)]
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
