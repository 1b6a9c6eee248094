# SPDX-License-Identifier: MIT
"""Base classes for tests of the set-up of hosts: moto's server as the cloud, with a stack of two groups and two queues;
a server for instance metadata, wait handles and files; and hosts that boot in network namespaces."""
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
BOOTSTRAP = ROOT / "infra" / "bootstrap"
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import netns_cluster  # noqa: E402
from strict_moto import strict  # noqa: E402

REGION = "us-east-1"
SECRET = "the-secret-key-of-the-role"
HANDLE_SECRET = "Signature=the-secret-of-the-wait-handle"
TOKEN = "the-token-of-the-metadata-service"


class Web(ThreadingHTTPServer):
    """Serves the metadata of a host at /<host>/latest/, by version 2 of the protocol; a wait handle, which stores
    signals, at /handle; and the contents of `files`, a status and bytes each, at /files/."""

    daemon_threads = True

    def __init__(self, address):
        super().__init__((address, 0), Handler)
        self.hosts, self.files, self.signals, self.asked = {}, {}, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://{address}:{self.server_port}"

    @property
    def handle(self):
        return f"{self.url}/handle?{HANDLE_SECRET}"

    def add_host(self, name, instance, ip, **more):
        self.hosts[name] = {"instance-id": instance, "local-ipv4": ip, "iam/security-credentials/": "role",
                            "iam/security-credentials/role": '{"Code": "Success"}', **more}
        return f"{self.url}/{name}"


def signal_faults(signal):
    """Returns the reasons, as sentences, for which CloudFormation would refuse a signal of a wait condition."""
    if not isinstance(signal, dict):
        return ["a signal is an object"]
    found = [f"unknown field {name}" for name in signal.keys() - {"Status", "UniqueId", "Reason", "Data"}]
    found += [f"{name} is missing, or no text" for name in ("Status", "UniqueId", "Reason", "Data") if not isinstance(signal.get(name), str)]
    if signal.get("Status") not in ("SUCCESS", "FAILURE"):
        found.append("Status is SUCCESS or FAILURE")
    if not found and len(signal["Reason"]) + len(signal["Data"]) > 4096:
        found.append("Reason and Data have 4096 characters at most")
    return found


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # because the chunks were not read
            return self.refuse(501, "NotImplemented", "A header you provided implies functionality that is not implemented: Transfer-Encoding")
        if not self.headers.get("Content-Length", "").isdecimal():
            return self.refuse(411, "MissingContentLength", "You must provide the Content-Length HTTP header.")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/handle"):
            return self.put_signal(body)
        if self.path.endswith("/latest/api/token"):
            return self.put_token()
        return self.refuse(403, "AccessDenied", "Access Denied")

    def refuse(self, status, code, message):
        self.answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def put_signal(self, body):
        """The wait handle is a pre-signed address of S3 with a signature for an empty Content-Type."""
        if self.path != f"/handle?{HANDLE_SECRET}":
            return self.refuse(403, "SignatureDoesNotMatch", "The request signature we calculated does not match")
        if self.headers.get("Content-Type"):
            return self.refuse(403, "SignatureDoesNotMatch", "Content-Type was not signed")
        try:
            signal = json.loads(body)
            faults = signal_faults(signal)
        except ValueError as e:
            faults = [str(e)]
        if faults:
            return self.refuse(400, "InvalidSignal", "; ".join(faults))
        self.server.signals.append(signal)
        return self.answer(200)

    def put_token(self):
        """Answers with a token of IMDSv2, which is valid for 1 s to 6 hours. A proxy gets no token."""
        if self.headers.get("X-Forwarded-For"):
            return self.refuse(403, "Forbidden", "no token is given to a proxy")
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not seconds.isdecimal() or not 1 <= int(seconds) <= 21600:
            return self.refuse(400, "BadRequest", "X-aws-ec2-metadata-token-ttl-seconds is 1 to 21600")
        return self.answer(200, TOKEN.encode())

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path.startswith("/files/"):
            return self.answer(*self.server.files.get(self.path[7:], (404, b"")))
        name, _, path = self.path[1:].partition("/latest/meta-data/")
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            return self.refuse(401, "Unauthorized", "no token of version 2")
        found = self.server.hosts.get(name, {}).get(path)
        return self.refuse(404, "NotFound", path) if found is None else self.answer(200, found.encode())


class Cloud:
    def __init__(self, address="127.0.0.1"):
        os.environ.update(AWS_ACCESS_KEY_ID="an-access-key", AWS_SECRET_ACCESS_KEY=SECRET, AWS_DEFAULT_REGION=REGION)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.web = Web(address)
        self.strict = strict()
        self.strict.__enter__()
        self.moto = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
        self.moto.start()
        self.endpoint = "http://%s:%s" % self.moto.get_host_and_port()

    def close(self):
        self.moto.stop()
        self.strict.__exit__(None, None, None)
        self.web.shutdown()
        self.web.server_close()

    def client(self, service):
        return boto3.client(service, region_name=REGION, endpoint_url=self.endpoint)


def resource(kind, **properties):
    return {"Type": f"AWS::{kind}", "Properties": properties}


class Stack:
    """The part of the stack that a host of the cluster uses. The test chooses the addresses of instances."""

    def __init__(self, cloud, net="10.99.0", name=None):
        self.cloud, self.net = cloud, net
        self.name = name or f"st-{uuid.uuid4().hex[:8]}"
        self.ec2, self.sqs, self.asg = (cloud.client(s) for s in ("ec2", "sqs", "autoscaling"))
        vpc = self.ec2.create_vpc(CidrBlock=f"{net}.0/24")["Vpc"]["VpcId"]
        self.subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock=f"{net}.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
        self.tag = f"{self.name}-aws-dl-cfn-elastic-worker"
        self.template = self.ec2.create_launch_template(
            LaunchTemplateName=f"{self.name}-elastic", LaunchTemplateData={
                "ImageId": "ami-12345678", "InstanceType": "c5.large", "TagSpecifications": [{
                    "ResourceType": "instance",
                    "Tags": [{"Key": self.tag, "Value": ""}, {"Key": "NodeType", "Value": "Worker"}]}]})["LaunchTemplate"]["LaunchTemplateId"]
        resources = {"Template": resource("EC2::LaunchTemplate", LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "c5.large"})}
        for role in ("Master", "Worker"):
            resources[f"{role}AutoScalingGroup"] = resource(
                "AutoScaling::AutoScalingGroup", MinSize="0", MaxSize="9", DesiredCapacity="0", VPCZoneIdentifier=[self.subnet],
                LaunchTemplate={"LaunchTemplateId": {"Ref": "Template"}, "Version": "1"})
            resources[f"{role}Queue"] = resource("SQS::Queue", QueueName=f"{self.name}-aws-dl-cfn-{role.lower()}")
        formation = cloud.client("cloudformation")
        self.id = formation.create_stack(StackName=self.name, TemplateBody=json.dumps({"Resources": resources}))["StackId"]
        self.groups = {role: formation.describe_stack_resource(StackName=self.name, LogicalResourceId=f"{role}AutoScalingGroup")
                       ["StackResourceDetail"]["PhysicalResourceId"] for role in ("Master", "Worker")}
        self.queues = {role: self.sqs.get_queue_url(QueueName=f"{self.name}-aws-dl-cfn-{role.lower()}")["QueueUrl"]
                       for role in ("Master", "Worker")}

    def launch(self, role, ip):
        """Launches an instance of a group, or of the elastic workers' launch template."""
        how = {"LaunchTemplate": {"LaunchTemplateId": self.template}} if role == "ElasticWorker" else {"ImageId": "ami-12345678"}
        instance = self.ec2.run_instances(**how, MinCount=1, MaxCount=1, SubnetId=self.subnet, PrivateIpAddress=ip)["Instances"][0]
        if role != "ElasticWorker":
            self.asg.attach_instances(InstanceIds=[instance["InstanceId"]], AutoScalingGroupName=self.groups[role])
        return instance["InstanceId"]

    def send(self, role, message):
        self.sqs.send_message(QueueUrl=self.queues[role], MessageBody=message if isinstance(message, str) else json.dumps(message))

    def asg_setup(self, role, least, count):
        """Sends the message of the original template's Lambda function, byte for byte."""
        self.send("Master", f'{{"status": "success", "launched": {count}, "min": {least}, "desired": {count}, "max": {count}, '
                  f'"event": "asg-setup", "asg": "{self.groups[role]}"}}')

    def messages(self, role):
        got = self.sqs.receive_message(QueueUrl=self.queues[role], MaxNumberOfMessages=10, VisibilityTimeout=0)
        return [m["Body"] for m in got.get("Messages", [])]

    def left(self, role):
        """Returns the number of messages in a queue, including those that a host has received."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queues[role], AttributeNames=names)["Attributes"]
        return sum(int(found[n]) for n in names)

    def environment(self, role, name, instance, ip, efs, **more):
        """Returns this process's environment with the variables that user data exports."""
        return {
            **os.environ, "AWS_ENDPOINT_URL": self.cloud.endpoint, "AWS_REGION": REGION, "AWS_DL_URL_SUFFIX": "amazonaws.com", "AWS_DL_POLL_SECONDS": "0.3",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.cloud.web.add_host(name, instance, ip), "AWS_DL_PYTHON": sys.executable,
            "AWS_DL_NODE_TYPE": role, "AWS_DL_MASTER_QUEUE": f"{self.name}-aws-dl-cfn-master",
            "AWS_DL_WORKER_QUEUE": f"{self.name}-aws-dl-cfn-worker", "AWS_DL_WAITCONDITION_TIMEOUT": "700",
            "AWS_DL_MASTERLAUNCH_TIMEOUT": "600", "AWS_DL_STACK_ID": self.id, "AWS_DL_WAIT_HANDLE": self.cloud.web.handle,
            "AWS_DL_ROLE_NAME": "role", "AWS_DL_DEFAULT_USER": "root", "EFS_MOUNT": str(efs), **more}

    @property
    def shared(self):
        return f".tutti-cluster/{self.name}-{self.id.rsplit('-', 1)[-1]}"

    def tags(self, instance):
        found = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        return {t["Key"]: t["Value"] for t in found.get("Tags", [])}

    def state(self, instance):
        return self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["State"]["Name"]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.05)
    return value


class CloudCase(unittest.TestCase):
    """Gives each test a folder, and ends the processes that the test started."""

    @classmethod
    def setUpClass(cls):
        cls.cloud = Cloud()
        cls.addClassCleanup(cls.cloud.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tutti-cloud-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.efs = self.folder / "efs"
        self.efs.mkdir()

    def start(self, argv, env=None):
        process = subprocess.Popen(list(map(str, argv)), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        self.addCleanup(end)
        return process

    def finish(self, process, code=0, seconds=60):
        out, _ = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, code, out)
        return out


FAKES = {
    # Stand-ins for parts of a host in the cloud that this machine may lack: an NFS mount, and packages.
    "mount": 'echo "mount $*" >>"$TUTTI_FAKES_LOG"; for last; do :; done\nexec /bin/mount --rbind "$TUTTI_FAKE_EFS" "$last"\n',
    "apt-get": 'echo "apt-get $*" >>"$TUTTI_FAKES_LOG"\n',
    "nvidia-smi": "exit 9\n",
}


class CloudBed(netns_cluster.NetnsCluster):
    """Hosts with a new system: separate /etc/hosts, /etc/profile.d, /etc/ssh, /opt, /usr/local/bin, /var/log and home.
    User data makes the rest. The hosts share one folder, which `mount -t nfs4` mounts, and which contains `data`."""

    def __init__(self, hosts, data=None):
        super().__init__(hosts)
        self.data = data

    @property
    def efs(self):
        return self.folder / "efs"

    def root(self, host):
        return self.folder / f"root{host}"

    def _make_keys(self):
        super()._make_keys()
        netns_cluster.SSH_PORT = 22
        (self.efs / "data").mkdir(parents=True)
        fakes = self.folder / "fakes"
        fakes.mkdir()
        for name, text in FAKES.items():
            (fakes / name).write_text("#!/bin/sh\n" + text)
            (fakes / name).chmod(0o755)

    def _start_host(self, host):
        root = self.root(host)
        for folder in ("etc/profile.d", "etc/ssh", "root", "opt", "usr/local/bin", "var/log"):
            (root / folder).mkdir(parents=True)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        (root / "etc/fstab").write_text("LABEL=root / ext4 defaults 0 1\n")
        # The host has no users of this machine.
        (root / "etc/passwd").write_text(f"root:x:0:0:root:{root}/root:/bin/bash\nsshd:x:106:65534::/run/sshd:/usr/sbin/nologin\n")
        (root / "etc/ssh/ssh_config").write_text("Host *\n#   ForwardAgent no\n    SendEnv LANG\n")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / "etc/ssh/ssh_host_ed25519_key"], check=True)
        (root / "etc/ssh/sshd_config").write_text(
            f"Port 22\nListenAddress {self.address(host)}\nHostKey /etc/ssh/ssh_host_ed25519_key\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n")
        data = f'mount --bind "{self.data}" "$cluster/efs/data" && ' if self.data else ""
        script = (f'cd / && hostname "$1" && cluster=$2 root=$3 && {data}for f in etc/hosts etc/fstab etc/passwd etc/profile.d etc/ssh opt '
                  'var/log; do mount --bind "$root/$f" "/$f" || exit 1; done; mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /run '
                  f'&& mkdir -m 0755 /run/sshd && exec {netns_cluster.SSHD} -D -E "$root/sshd.log"')
        self.sshds[host] = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "--mount", "--", "sh", "-c", script, "sh",
             self.names[host], str(self.folder), str(root)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def log_of(self, host):
        log = self.root(host) / "var/log/dl_cfn_setup.log"
        return log.read_text() if log.exists() else ""


def make_package(cloud, folder):
    """Makes a package with tutti's programs in a bucket and returns its address."""
    top = folder / "package" / "tutti"
    (top / "bin").mkdir(parents=True)
    (top / "share/tutti").mkdir(parents=True)
    for program in ("tools/tutti-launch", "tools/tutti-check-audit", "examples/train_cifar10"):
        shutil.copy(BUILD / program, top / "bin")
    shutil.copytree(BOOTSTRAP, top / "share/tutti/bootstrap", ignore=shutil.ignore_patterns("__pycache__"))
    archive = folder / "tutti.tar.gz"
    subprocess.run(["tar", "-C", top.parent, "--use-compress-program=gzip -1", "-cf", archive, "tutti"], check=True)
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="packages")
    s3.upload_file(str(archive), "packages", "tutti.tar.gz")
    return "s3://packages/tutti.tar.gz"
