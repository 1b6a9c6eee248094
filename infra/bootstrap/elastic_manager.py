#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lets instances of a launch template join and leave a job of `tutti-launch --elastic`, which starts this.

    elastic_manager.py --elastic-dir DIR --launch-template ID --tag KEY --since NANOSECONDS --base HOST...

Every 5 s it asks EC2 for the instances of the template that have the tag NodeType=Worker:

    has the tag KEY, runs, and has prepared its data     its address becomes a line of DIR/host_worker
    the tag was deleted                                  the line is removed, and once its worker has left, the instance too
    does not run any more                                the line is removed

An instance has prepared its data when the file $EFS_MOUNT/prepare_data_success_ADDRESS exists and is no older than the instance.
The tag elastic_worker_status is its state: ADD_QUEUED, ADDED, REMOVAL_QUEUED or REMOVED. It follows DIR/host_worker_log.
All other lines of host_worker are left as they are: those of the hosts with which the job began, and a user's own.
Python 3.9 and boto3.
"""
import argparse
import collections
import json
import os
import pwd
import re
import signal
import socket
import sys
import time
from pathlib import Path

from host_files import keys_of, put_known_hosts, read_json

STATUS = "elastic_worker_status"
POLL = 5  # seconds
# An instance that was released before its worker had joined may still join within this time.
LATE = 60
GONE = ("shutting-down", "terminated", "stopping", "stopped")


def say(text):
    print(text, file=sys.stderr, flush=True)


class Log:
    """host_worker_log: the hosts of the job. Both orders of its words are read, "SEQ ADDED HOST TIME_NS" and "SEQ
    HOST ADDED TIME". Lines that are older than the job are ignored."""

    def __init__(self, file, since):
        self.file, self.since = file, since

    def last(self):
        """Returns the last word, ADDED or REMOVED, of each host."""
        found = {}
        try:
            lines = self.file.read_text(errors="replace").split("\n")[:-1]
        except OSError:
            return found
        for line in lines:
            words = line.split()
            if len(words) != 4 or not words[3].isdecimal():
                continue
            host, what = (words[1], words[2]) if words[2] in ("ADDED", "REMOVED") else (words[2], words[1])
            # A time in the second order may be in seconds.
            at = int(words[3]) if len(words[3]) > 12 else (int(words[3]) + 1) * 10**9
            if what in ("ADDED", "REMOVED") and at >= self.since:
                found[host] = what
        return found


def host_of(line):
    """Returns the host of a line of a hosts file, without user, port and slots; empty for a comment or an empty
    line."""
    word = (line.split("#", 1)[0].split() or [""])[0].rsplit("@", 1)[-1]
    if word.startswith("["):
        return word[1:].split("]", 1)[0]
    return word.rsplit(":", 1)[0] if word.count(":") == 1 else word


class HostsFile:
    def __init__(self, file):
        self.file = file

    def lines(self):
        """Returns the lines without their newlines, or `None` if the file is missing."""
        try:
            return self.file.read_text().splitlines()
        except FileNotFoundError:
            return None

    def change(self, gone, new):
        """Removes the lines of the hosts `gone` and appends lines for `new`, in one rename. Returns False if no
        change is needed."""
        while True:
            old = self.lines()
            if old is None:
                return False
            kept = [line for line in old if host_of(line) not in gone]
            there = {host_of(line) for line in kept}
            kept += [line for line in new if host_of(line) not in there]
            if kept == old:
                return False
            aside = self.file.with_name(f"{self.file.name}.tmp")
            aside.write_text("".join(line + "\n" for line in kept))
            # A user may have edited the file meanwhile.
            if self.lines() == old:
                os.rename(aside, self.file)
                return True


def addresses(name):
    try:
        return {info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)} | {name}
    except OSError:
        return {name}


class Manager:
    def __init__(self, options, ec2):
        self.ec2 = ec2
        self.template, self.tag = options.launch_template, options.tag
        self.folder = Path(options.elastic_dir)
        self.hosts = HostsFile(self.folder / "host_worker")
        self.log = Log(self.folder / "host_worker_log", options.since)
        self.base = set().union(*[addresses(name) for name in options.base])
        self.efs = Path(os.environ.get("EFS_MOUNT") or "/")
        shared = os.environ.get("DEEPLEARNING_CLUSTER_PATH")
        self.shared = Path(shared) if shared else None
        # Records which lines belong to this manager, also after a restart: address by instance.
        self.file = self.folder / "host_worker_instances"
        self.mine = self.recall()
        self.let_go = {}  # instance: time of the release, and whether it had a line
        self.told = collections.OrderedDict()
        self.slots = None

    def recall(self):
        try:
            known = json.loads(self.file.read_text())
            return {str(i): str(ip) for i, ip in known["instances"].items()} if known["since"] == self.log.since else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def remember(self):
        aside = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        aside.write_text(json.dumps({"since": self.log.since, "instances": self.mine}) + "\n")
        os.rename(aside, self.file)

    def once(self, about, text):
        """Prints the text, unless it was the last text about this."""
        if self.told.get(about) != text:
            self.told[about] = text
            say(text)

    def call(self, action, function, **arguments):
        """Returns EC2's answer, or `None` after a failure. A failure is printed once, and the next check tries again."""
        import botocore.exceptions
        import botocore.parsers
        try:
            answer = function(**arguments)
        except botocore.exceptions.ClientError as e:
            error = e.response.get("Error", {})
            hint = f"; the role of this instance needs ec2:{action}" if re.search("Unauthorized|Denied|AuthFailure",
                                                                                 error.get("Code", "")) else ""
            self.once(action, f"warning: ec2:{action}: {error.get('Code')}: {error.get('Message', '')[:300]}{hint}")
        except (botocore.exceptions.BotoCoreError, botocore.parsers.ResponseParserError) as e:
            self.once(action, f"warning: ec2:{action}: {str(e)[:300]}")
        else:
            self.told.pop(action, None)
            return answer
        return None

    def instances(self):
        """Returns all workers made from the template, or `None` if EC2 does not answer."""
        found, more = [], {}
        while True:
            got = self.call("DescribeInstances", self.ec2.describe_instances, **more,
                            Filters=[{"Name": "tag:aws:ec2launchtemplate:id", "Values": [self.template]},
                                     {"Name": "tag:NodeType", "Values": ["Worker"]}])
            if got is None:
                return None
            found += [i for r in got["Reservations"] for i in r["Instances"]]
            if not got.get("NextToken"):
                return found
            more = {"NextToken": got["NextToken"]}

    def set_tags(self, instance, **tags):
        return self.call("CreateTags", self.ec2.create_tags, Resources=[instance],
                         Tags=[{"Key": k, "Value": v} for k, v in tags.items()]) is not None

    def prepared(self, instance, ip):
        """Returns whether this instance has prepared its data, not an earlier instance with the same address."""
        try:
            made = (self.efs / f"prepare_data_success_{ip}").stat().st_mtime
        except OSError:
            return False
        return made >= instance["LaunchTime"].timestamp()

    def know(self, ip):
        """Puts the host's keys from the shared folder into known_hosts: ssh trusts no others."""
        keys = keys_of(read_json(self.shared / "hosts" / f"{ip}.json")) if self.shared else []
        if not keys:
            return say(f"warning: {ip} has published no host keys; tutti-launch reaches it only if known_hosts has them already")
        path = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh/known_hosts"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        put_known_hosts(path, "".join(f"{ip} {k}\n" for k in keys))

    def slots_of_base(self, lines):
        """Returns the number of processes for a host: the most frequent number among the hosts with which the job
        began."""
        if self.slots is None:
            counts = collections.Counter((re.search(r"\sslots=(\d+)", line) or ["", "1"])[1] for line in lines
                                         if addresses(host_of(line)) & self.base)
            self.slots = int(counts.most_common(1)[0][0]) if counts else 1
        return "" if self.slots == 1 else f" slots={self.slots}"

    # ---- one check ----
    def look(self, over=False):
        """over: the job has ended. No instance joins any more, and those that were to leave count as having left."""
        lines = self.hosts.lines()
        found = self.instances() if lines is not None else None
        if found is None:
            return
        said = self.log.last()
        gone, wanted, leaving = set(), [], []
        for i in found:
            instance, state = i["InstanceId"], i["State"]["Name"]
            tags = {t["Key"]: t["Value"] for t in i.get("Tags", [])}
            ip = i.get("PrivateIpAddress") or self.mine.get(instance)
            if ip in self.base:
                if self.tag not in tags and state == "running":
                    self.once(instance, f"warning: {instance} ({ip}) stays: the job began with it")
            elif state in GONE:
                if instance in self.mine:
                    say(f"{instance} ({self.mine[instance]}) is no longer running")
                    gone.add(self.mine.pop(instance))
                self.let_go.pop(instance, None)
            elif state == "running" and ip:
                (wanted if self.tag in tags else leaving).append((i, instance, ip, tags))
        # An instance that EC2 no longer lists.
        for instance in set(self.mine) - {i["InstanceId"] for i in found}:
            gone.add(self.mine.pop(instance))
        add = [] if over else [w for w in wanted if w[1] not in self.mine and self.prepared(w[0], w[2])]
        for _, instance, ip, _ in add:
            self.know(ip)
            self.mine[instance] = ip
        for _, instance, ip, _ in leaving:
            was_mine = self.mine.pop(instance, None) is not None
            if was_mine:
                say(f"{instance} ({ip}) will leave: its tag {self.tag} was deleted")
            self.let_go.setdefault(instance, (time.monotonic(), was_mine))
            gone.add(ip)
        # An address that another instance has now.
        gone -= set(self.mine.values())
        # A host that a user removed by hand returns at the next check if it has the tag.
        there = {host_of(line) for line in lines}
        new = [] if over else [ip + self.slots_of_base(lines) for ip in self.mine.values() if ip not in there]
        self.remember()
        if self.hosts.change(gone, new):
            for _, instance, ip, _ in add:
                say(f"{instance} ({ip}) is in {self.hosts.file.name}")
        for _, instance, ip, tags in wanted:
            if instance in self.mine:
                self.tag_as(instance, tags, "ADDED" if said.get(ip) == "ADDED" else "ADD_QUEUED")
        for _, instance, ip, tags in leaving:
            self.let_leave(instance, ip, tags, said.get(ip), over)

    def tag_as(self, instance, tags, status):
        new = {STATUS: status}
        if not tags.get("Name"):
            new["Name"] = re.sub("-aws-dl-cfn-elastic-worker$", "", self.tag) + "-ElasticWorker"
        if tags.get(STATUS) == status and "Name" not in new:
            return
        if self.set_tags(instance, **new):
            say(f"{instance} is {status}")

    def let_leave(self, instance, ip, tags, said, over):
        """Handles an instance without the tag: it ends once no process of the job runs on it."""
        was = tags.get(STATUS)
        since, had_line = self.let_go[instance]
        never = was is None and said is None and not had_line
        late = said is None and time.monotonic() - since >= LATE
        if was == "REMOVED" or never or over or said == "REMOVED" or late:
            if was != "REMOVED" and not self.set_tags(instance, **{STATUS: "REMOVED"}):
                return
            if self.call("TerminateInstances", self.ec2.terminate_instances, InstanceIds=[instance]) is None:
                return
            say(f"{instance} ({ip}) is REMOVED and ends")
            try:
                (self.efs / f"prepare_data_success_{ip}").unlink()
            except OSError:
                pass  # The next instance with this address deletes it.
        elif was != "REMOVAL_QUEUED" and self.set_tags(instance, **{STATUS: "REMOVAL_QUEUED"}):
            say(f"{instance} is REMOVAL_QUEUED")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elastic-dir", required=True, help="the folder of host_worker")
    parser.add_argument("--launch-template", required=True, help="its id")
    parser.add_argument("--tag", required=True, help="the tag of instances that belong to the job")
    parser.add_argument("--since", type=int, default=0, help="start time of the job, nanoseconds since 1970")
    parser.add_argument("--base", action="append", default=[], help="a host with which the job began; repeatable")
    options = parser.parse_args()
    poll = float(os.environ.get("AWS_DL_POLL_SECONDS") or POLL)
    try:
        import boto3
        import botocore.config
    except ImportError:
        say("error: python3 has no boto3, which calls EC2. hint: apt-get or dnf install python3-boto3")
        return 2
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        say("error: AWS_REGION is not set")
        return 2
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: ended.append(n))
    config = botocore.config.Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "max_attempts": 3})
    manager = Manager(options, boto3.client("ec2", region_name=region, config=config))
    say(f"watches the instances of {options.launch_template}")
    while not ended:
        manager.look()
        until = time.monotonic() + poll
        while not ended and time.monotonic() < until:
            time.sleep(0.1)
    manager.look(over=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
