# SPDX-License-Identifier: MIT
"""The master: it learns which instances the stack has launched, waits for their answers, publishes all addresses,
and reports to the stack that the cluster is complete."""
import json
import sys
import time
import urllib.error
import urllib.request

from host_files import keys_of, known_hosts_lines, read_json, write_aside
from host_setup import CLUSTER, Failure, HostSetup, log
from queue_messages import check_asg_setup

GROUPS = ("MasterAutoScalingGroup", "WorkerAutoScalingGroup")


def signal_stack(handle, status, who, reason, pause):
    """Reports the result to the stack. The address of its handle is a secret: any holder can report a result."""
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
    raise Failure(f"the result {status} could not be reported to the stack: {why}")


class MasterSetup(HostSetup):
    NEEDED = [*CLUSTER, "AWS_DL_WAIT_HANDLE"]

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.worker_patience = self.seconds("AWS_DL_WORKER_SECONDS", 900)

    def more_variables(self):
        """Returns the variables that tutti-launch's elastic manager needs, if the stack has elastic workers."""
        if self.env.get("AWS_DL_ENABLE_ELASTIC_TRAINING", "true").lower() != "true":
            return {}
        given = {name: self.env[name] for name in ("WORKER_LAUNCH_TEMPLATE_ID", "ELASTIC_WORKER_TAG") if self.env.get(name)}
        # The Python that has boto3, independent of the user's environment.
        return {**given, "AWS_DL_PYTHON": sys.executable}

    def groups(self):
        """Returns the names of the two groups of this stack, and the role of each."""
        names = {}
        for logical in GROUPS:
            def look(logical=logical):
                detail = self.call("cloudformation", "DescribeStackResource", StackName=self.env["AWS_DL_STACK_ID"],
                                   LogicalResourceId=logical)
                return detail["StackResourceDetail"].get("PhysicalResourceId")
            # The workers' group starts after the master's.
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
        """Returns the first asg-setup message of each group."""
        url = self.queue("AWS_DL_MASTER_QUEUE")
        first = {}

        def hear():
            for message, receipt in self.messages(url, check_asg_setup, 60):
                if message["asg"] not in names:
                    log.warning("a message of %s, which is not of this stack, is deleted", message["asg"][:200])
                elif message["asg"] in first:
                    log.info("%s has reported before", message["asg"])
                else:
                    first[message["asg"]] = message
                    log.info("%s: %s of %s instances, %s at least", message["asg"], message["launched"], message["desired"],
                             message["min"])
                self.delete(url, receipt)
            return len(first) == len(names)
        if not self.until("reports of both groups", hear):
            silent = [logical for name, logical in names.items() if name not in first]
            raise Failure(f"no report of {' and '.join(silent)} within {self.budget:.0f} s; see the log of the stack's Lambda")
        return first

    def addresses(self, names):
        """Returns the address of each running instance, for the master and for the workers."""
        found = self.call("autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=list(names))
        healthy = {i["InstanceId"]: names[g["AutoScalingGroupName"]] for g in found["AutoScalingGroups"]
                   for i in g["Instances"] if i["HealthStatus"] == "Healthy" and i["LifecycleState"] in ("InService", "Pending")}
        running = {}

        def look():
            # Uses filters, because a request by ids fails for all if one id is unknown. Filters by group, because a
            # filter takes at most 200 values.
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
            log.warning("these do not run and are ignored: %s", ", ".join(sorted(set(healthy) - set(running))))
        masters = [i for i, logical in healthy.items() if logical == GROUPS[0] and i in running]
        if masters != [self.instance]:
            raise Failure(f"the master's group should have this instance, {self.instance}, and has {', '.join(masters) or 'no instance'}")
        return {i: ip for i, ip in running.items() if i != self.instance}

    def wait_for_workers(self, workers, least):
        """Returns the addresses of the workers that have answered."""
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
            log.warning("no answer of %s; the cluster begins without it", silent)
            if len(keys) < least:
                raise Failure(f"{len(keys)} workers have answered, and the group has {least} at least; no answer from {silent}")
        elif len(keys) < least:
            raise Failure(f"{len(keys)} workers run, and the group has {least} at least")
        return keys

    def set_up(self):
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
